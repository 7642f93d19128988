"""Plain Jobs: no gangs by themselves, and what makes them one."""

from typing import Any

import pytest

from tests.unit.translate.gangs.pods import job, ours, pod, read
from vkgateway.translate.gangs import MarkError, Reference, references


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


def test_a_plain_job_is_no_gang() -> None:
    assert references(indexed()) == ()
    assert read(indexed(), job("sweep", parallelism=4)).group == "research/pod/uid-of-sweep-0-x2x9k"


def test_a_job_that_says_so_is_one() -> None:
    marks = read(indexed(3, gang="job"), job("sweep", parallelism=4, completions=4, activeDeadlineSeconds=900))
    assert (marks.group, marks.way) == ("research/job/sweep", "Job")
    assert (marks.minimum, marks.size, marks.elastic) == (4, 4, False)
    assert (marks.rank, marks.run_limit) == (3, 900.0)


def test_a_number_without_a_name_says_so_too() -> None:
    marks = read(indexed(min="2"), job("sweep", parallelism=4))
    assert (marks.group, marks.minimum, marks.size, marks.elastic) == ("research/job/sweep", 2, 4, True)


def test_fewer_completions_than_parallelism() -> None:
    assert read(indexed(gang="job"), job("sweep", parallelism=8, completions=3)).minimum == 3
    assert read(indexed(gang="job"), job("sweep")).minimum == 1
    assert read(indexed(gang="job"), job("sweep", parallelism=0)).minimum == 1


@pytest.mark.parametrize("marks", [{"gang": "job"}, {"min": "4"}])
def test_what_ended_well_is_not_waited_for(marks: dict[str, str]) -> None:
    found = job("sweep", {"succeeded": 9}, parallelism=4, completions=12)
    read_ = read(indexed(0, **marks), found)
    assert (read_.minimum, read_.size, read_.counts_done) == (3, 4, True)
    without_end = read(indexed(0, **marks), job("sweep", {"succeeded": 9}, parallelism=4))
    assert (without_end.minimum, without_end.counts_done) == (4, False)


def test_a_job_that_is_not_there_is_waited_for() -> None:
    reference = Reference("batch", "Job", "jobs", "research", "sweep")
    assert references(indexed(gang="job")) == (reference,)
    assert read(indexed(gang="job")).waits_for == reference
    assert read(indexed(size="4")).waits_for is None


def test_a_named_gang_of_several_jobs() -> None:
    marks = read(indexed(gang="both", size="6"), job("sweep", parallelism=4))
    assert (marks.group, marks.minimum) == ("research/gang/both", 6)
    assert references(indexed(gang="both", size="6")) == ()


def test_a_minimum_above_the_parallelism() -> None:
    with pytest.raises(MarkError, match="more than the gang's 4 pods; lower it to at most 4"):
        read(indexed(min="5"), job("sweep", parallelism=4))


def test_an_owner_with_an_impossible_name() -> None:
    marked = pod("x", annotations=ours(gang="job"), owner=("batch/v1", "Job", "../x"))
    with pytest.raises(MarkError, match="no name of an object"):
        read(marked)
