"""vkgateway's annotations: values, errors, and which of them tenants may set."""

import pytest

from tests.unit.translate.gangs.pods import ours, pod, read
from vkgateway.api import names
from vkgateway.scheduler.gangs import MarkError


def test_pod_without_marks_is_a_gang_of_one() -> None:
    marks = read(pod("notebook"))
    assert marks.group == "research/pod/uid-of-notebook"
    assert (marks.integration, marks.minimum, marks.size, marks.elastic) == ("", 1, None, False)


def test_size_is_the_default_minimum() -> None:
    marks = read(pod("train-3", annotations=ours(gang="train", size="8")))
    assert marks.group == "research/gang/train"
    assert (marks.minimum, marks.size, marks.elastic, marks.rank) == (8, 8, False, 3)
    assert marks.missing_reference is None


def test_gang_with_lower_minimum_is_elastic() -> None:
    marks = read(pod(annotations=ours(gang="train", min="4", size="8")))
    assert (marks.minimum, marks.size, marks.elastic) == (4, 8, True)
    alone = read(pod(annotations=ours(gang="train", min="4")))
    assert (alone.minimum, alone.size, alone.elastic) == (4, None, True)


def test_elastic_up_to_a_maximum() -> None:
    marks = read(pod(annotations=ours(gang="train", min="4", elastic_max="16")))
    assert (marks.minimum, marks.maximum, marks.elastic) == (4, 16, True)
    fixed = read(pod(annotations=ours(gang="train", min="4", size="4", elastic_max="4")))
    assert not fixed.elastic


def test_pod_without_gang_may_set_run_limit_checkpoint_and_cost() -> None:
    annotations = ours(run_limit="1h30m", checkpoint="2026-03-01T12:00:00Z", restart_cost="7200.5")
    marks = read(pod(annotations=annotations))
    assert (marks.run_limit, marks.checkpoint, marks.restart_cost) == (5400.0, 1772366400.0, 7200.5)


def test_smallest_run_limit_wins() -> None:
    assert read(pod(activeDeadlineSeconds=600)).run_limit == 600.0
    assert read(pod(annotations=ours(run_limit="5m"), activeDeadlineSeconds=600)).run_limit == 300.0
    assert read(pod(labels={"kueue.x-k8s.io/max-exec-time-seconds": "60"}, activeDeadlineSeconds=600)).run_limit == 60.0


@pytest.mark.parametrize(
    ("marks", "mark", "value", "says"),
    [
        ({"gang": "a", "min": "-3"}, "vkgateway.io/gang-min", "-3", "whole number from 1"),
        ({"gang": "a", "min": "0"}, "vkgateway.io/gang-min", "0", "whole number from 1"),
        ({"gang": "a", "size": "eight"}, "vkgateway.io/gang-size", "eight", "whole number from 1"),
        ({"gang": "a", "size": "2.5"}, "vkgateway.io/gang-size", "2.5", "whole number from 1"),
        ({"gang": "a", "size": ""}, "vkgateway.io/gang-size", "", "whole number from 1"),
        ({"gang": "a", "min": "9", "size": "8"}, "vkgateway.io/gang-min", "9", "lower it to at most 8"),
        ({"gang": "a", "size": "8", "elastic_max": "6"}, "vkgateway.io/gang-size", "8", "lower it to at most 6"),
        ({"gang": "a", "min": "8", "elastic_max": "6"}, "vkgateway.io/gang-min", "8", "lower it to at most 6"),
        ({"gang": "a/b", "min": "1"}, "vkgateway.io/gang", "a/b", "letters and digits"),
        ({"gang": "a"}, "vkgateway.io/gang", "a", "set vkgateway.io/gang-size"),
        ({"min": "4"}, "vkgateway.io/gang-min", "4", "set the annotation vkgateway.io/gang on all pods"),
        ({"elastic_max": "4"}, "vkgateway.io/gang-elastic-max", "4", "set the annotation"),
        ({"gang": "job"}, "vkgateway.io/gang", "job", "pod template of a Job"),
        ({"run_limit": "soon"}, "vkgateway.io/gang-run-limit", "soon", "90m"),
        ({"run_limit": "0s"}, "vkgateway.io/gang-run-limit", "0s", "90m"),
        ({"run_limit": "500d"}, "vkgateway.io/gang-run-limit", "500d", "longer than a year"),
        ({"checkpoint": "yesterday"}, "vkgateway.io/gang-checkpoint", "yesterday", "2026-03-01"),
        ({"checkpoint": "yesterday"}, "vkgateway.io/gang-checkpoint", "yesterday", "not a time"),
        ({"restart_cost": "-1"}, "vkgateway.io/gang-restart-cost", "-1", "GPU-seconds"),
        ({"restart_cost": "nan"}, "vkgateway.io/gang-restart-cost", "nan", "GPU-seconds"),
    ],
)
def test_invalid_marks_name_mark_value_and_remedy(marks: dict[str, str], mark: str, value: str, says: str) -> None:
    with pytest.raises(MarkError, match=says) as caught:
        read(pod(annotations=ours(**marks)))
    assert caught.value.mark == f"annotation {mark}"
    assert caught.value.value == value
    assert f"annotation {mark} is {value!r}" in str(caught.value)


def test_mark_as_label_is_refused() -> None:
    with pytest.raises(MarkError, match="set it as an annotation") as caught:
        read(pod(labels=ours(gang="train")))
    assert caught.value.mark == "label vkgateway.io/gang"


def test_long_value_is_cut_and_control_characters_are_escaped() -> None:
    with pytest.raises(MarkError) as caught:
        read(pod(annotations=ours(gang="a", min="\n" + "9" * 500)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_gang_keys_are_allowed_as_annotations_only() -> None:
    assert len(names.GANG_ANNOTATIONS) == 7
    for key in names.GANG_ANNOTATIONS:
        assert not names.is_reserved_annotation(key)
        assert names.is_reserved(key)


@pytest.mark.parametrize(
    "key",
    [
        "vkgateway.io/gang-",
        "vkgateway.io/gang-mini",
        "vkgateway.io/Gang",
        "vkgateway.io/gang/min",
        "x.vkgateway.io/gang",
        "vkgateway.io/admission",
        names.TENANT_LABEL,
        names.NAMESPACE_ANNOTATION,
        names.UID_ANNOTATION,
    ],
)
def test_other_reserved_keys_are_forbidden(key: str) -> None:
    assert names.is_reserved_annotation(key)


@pytest.mark.parametrize("key", ["example.com/note", "kwok.vkgateway.io/run-seconds"])
def test_unreserved_keys_are_allowed(key: str) -> None:
    assert not names.is_reserved_annotation(key)
