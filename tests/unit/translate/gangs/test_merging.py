"""Marks of a gang, merged from those of its pods."""

from dataclasses import replace

import pytest

from vkgateway.scheduler.gangs import GangMarks, MarkError, Reference, merge_marks

ONE = GangMarks(group="research/gang/train", integration="vkgateway.io/gang", minimum=4, size=8, elastic=True)


def test_pods_with_equal_marks_are_merged() -> None:
    pods = [replace(ONE, rank=rank, role="worker") for rank in (3, 1, 2)]
    assert merge_marks(pods) == ONE


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(ONE, minimum=6), "the minimum of gang research/gang/train is '6', which is 4 on another"),
        (replace(ONE, size=None), "the size of gang"),
        (replace(ONE, maximum=16), "the largest size of gang"),
        (replace(ONE, role_minimum={"ps": 1}), "the minimum of each role"),
    ],
)
def test_contradicting_pods_raise_mark_error(other: GangMarks, says: str) -> None:
    with pytest.raises(MarkError, match=says):
        merge_marks([ONE, ONE, other])


def test_merge_uses_latest_checkpoint_and_largest_restart_cost() -> None:
    pods = [replace(ONE, checkpoint=50.0, restart_cost=10.0), replace(ONE, checkpoint=90.0), ONE]
    assert (merge_marks(pods).checkpoint, merge_marks(pods).restart_cost) == (90.0, 10.0)


def test_run_limit_requires_a_limit_on_all_pods() -> None:
    assert merge_marks([replace(ONE, run_limit=60.0), replace(ONE, run_limit=90.0)]).run_limit == 90.0
    assert merge_marks([replace(ONE, run_limit=60.0), ONE]).run_limit is None


def test_topology_levels_are_merged() -> None:
    assert merge_marks([ONE, replace(ONE, required_level="rack")]).required_level == "rack"
    assert merge_marks([replace(ONE, preferred_level="rack"), ONE]).preferred_level == "rack"
    with pytest.raises(MarkError, match="required topology level"):
        merge_marks([replace(ONE, required_level="rack"), ONE, replace(ONE, required_level="domain")])


def test_one_missing_reference_makes_the_gang_wait() -> None:
    missing = Reference("batch", "Job", "jobs", "research", "sweep")
    made = merge_marks([ONE, replace(ONE, minimum=1, size=None, elastic=False, missing_reference=missing)])
    assert (made.missing_reference, made.is_unserved) == (missing, False)
    assert not made.elastic


def test_unserved_reference_is_merged() -> None:
    missing = Reference("ray.io", "RayCluster", "rayclusters", "research", "c")
    made = merge_marks([ONE, replace(ONE, missing_reference=missing, is_unserved=True)])
    assert (made.missing_reference, made.is_unserved) == (missing, True)


@pytest.mark.parametrize("pods", [[], [ONE, replace(ONE, group="research/gang/other")]])
def test_pods_of_several_gangs_are_refused(pods: list[GangMarks]) -> None:
    with pytest.raises(ValueError, match="one gang"):
        merge_marks(pods)
