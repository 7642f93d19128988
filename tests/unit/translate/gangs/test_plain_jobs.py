"""Plain Jobs as gangs."""

from typing import Any

import pytest

from tests.unit.translate.gangs.pods import job, ours, pod, read
from vkgateway.scheduler.gangs import MarkError, Reference, gang_references

REFERENCE = Reference("batch", "Job", "jobs", "research", "sweep")


def indexed(index: int = 0, **marks: str) -> Any:
    # As the Job controller makes the pods of an Indexed Job.
    labels = {
        "batch.kubernetes.io/job-name": "sweep",
        "batch.kubernetes.io/controller-uid": "o-1",
        "batch.kubernetes.io/job-completion-index": str(index),
        "job-name": "sweep",
    }
    annotations = {"batch.kubernetes.io/job-completion-index": str(index), **ours(**marks)}
    return pod(f"sweep-{index}-x2x9k", labels=labels, annotations=annotations, owner=("batch/v1", "Job", "sweep"))


def test_plain_job_is_no_gang() -> None:
    assert gang_references(indexed()) == ()
    assert read(indexed(), job("sweep", parallelism=4)).group == "research/pod/uid-of-sweep-0-x2x9k"


def test_gang_job_annotation_makes_a_job_a_gang() -> None:
    marks = read(indexed(3, gang="job"), job("sweep", parallelism=4, completions=4, activeDeadlineSeconds=900))
    assert (marks.group, marks.integration) == ("research/job/sweep", "Job")
    assert (marks.minimum, marks.size, marks.elastic) == (4, 4, False)
    assert (marks.rank, marks.run_limit) == (3, 900.0)


def test_count_without_name_makes_a_job_a_gang() -> None:
    marks = read(indexed(min="2"), job("sweep", parallelism=4))
    assert (marks.group, marks.minimum, marks.size, marks.elastic) == ("research/job/sweep", 2, 4, True)


def test_completions_limit_the_size() -> None:
    assert read(indexed(gang="job"), job("sweep", parallelism=8, completions=3)).minimum == 3
    assert read(indexed(gang="job"), job("sweep")).minimum == 1
    assert read(indexed(gang="job"), job("sweep", parallelism=0)).minimum == 1


@pytest.mark.parametrize("marks", [{"gang": "job"}, {"min": "4"}])
def test_succeeded_pods_lower_the_minimum(marks: dict[str, str]) -> None:
    found = job("sweep", {"succeeded": 9}, parallelism=4, completions=12)
    read_ = read(indexed(0, **marks), found)
    assert (read_.minimum, read_.size, read_.excludes_succeeded) == (3, 4, True)


FAILED_FOR_GOOD = {"failedIndexes": "1,3-5", "succeeded": 2}


@pytest.mark.parametrize(
    ("status", "spec", "minimum"),
    [
        ({"failedIndexes": "1"}, {"completions": 4}, 3),
        (FAILED_FOR_GOOD, {"completions": 12}, 4),
        (FAILED_FOR_GOOD, {"completions": 8}, 2),
        ({"failedIndexes": "0-3"}, {"completions": 4}, 1),
        ({"failedIndexes": "?,2-"}, {"completions": 4}, 4),
        ({}, {}, 4),
        ({"succeeded": 1, "active": 2}, {}, 2),
        ({"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}, {"completions": 4}, 1),
        ({"conditions": [{"type": "FailureTarget", "status": "True"}], "active": 3}, {"completions": 4}, 1),
        ({"conditions": [{"type": "Failed", "status": "False"}, {"type": "Suspended", "status": "True"}]}, {}, 4),
    ],
)
def test_minimum_counts_pods_that_can_still_arrive(status: Any, spec: Any, minimum: int) -> None:
    """A gang does not wait for an index that failed for good, or for work without further pods."""
    marks = read(indexed(gang="job"), job("sweep", status, parallelism=4, **spec))
    assert (marks.minimum, marks.size, marks.excludes_succeeded) == (minimum, 4, True)
    elastic = read(indexed(gang="job", min="2"), job("sweep", status, parallelism=4, **spec))
    assert elastic.minimum == min(2, minimum)


def test_gang_waits_for_a_missing_job() -> None:
    assert gang_references(indexed(gang="job")) == (REFERENCE,)
    assert read(indexed(gang="job")).missing_reference == REFERENCE
    assert read(indexed(size="4")).missing_reference is None


def test_named_gang_of_several_jobs() -> None:
    marks = read(indexed(gang="both", size="6"), job("sweep", {"failedIndexes": "2"}, parallelism=4, completions=4))
    assert (marks.group, marks.minimum) == ("research/gang/both", 6)
    assert (marks.controller_uid, marks.job_desired, marks.job_ended) == ("o-1", 4, 1)
    assert gang_references(indexed(gang="both", size="6")) == (REFERENCE,)
    assert read(indexed(gang="both", size="6")).missing_reference == REFERENCE


def test_job_with_all_pods_of_a_named_gang_is_its_own_gang() -> None:
    """Several Jobs may use one name, such as the runs of a CronJob. Pods of one are no members of the other."""
    assert read(indexed(gang="nightly", size="4"), job("sweep", parallelism=4)).group == "research/gang/nightly/sweep"
    assert read(indexed(gang="nightly", size="5"), job("sweep", parallelism=4)).group == "research/gang/nightly"


@pytest.mark.parametrize(("parallelism", "group"), [(4, "research/gang/nightly/sweep"), (2, "research/gang/nightly")])
def test_each_run_of_a_cron_job_is_its_own_gang(parallelism: int, group: str) -> None:
    found = job("sweep", parallelism=parallelism)
    assert read(indexed(gang="nightly", min="3"), found).group == "research/gang/nightly"
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "c-1", "controller": True}
    found["metadata"]["ownerReferences"] = [owner]
    assert read(indexed(gang="nightly", min="3"), found).group == group


def test_minimum_above_the_parallelism_is_refused() -> None:
    with pytest.raises(MarkError, match="more than the gang's 4 pods; lower it to at most 4"):
        read(indexed(min="5"), job("sweep", parallelism=4))


def test_owner_with_invalid_name_is_refused() -> None:
    marked = pod("x", annotations=ours(gang="job"), owner=("batch/v1", "Job", "../x"))
    with pytest.raises(MarkError, match="not a valid object name"):
        read(marked)
