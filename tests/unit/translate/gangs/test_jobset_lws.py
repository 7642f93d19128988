"""Gangs of JobSet and LeaderWorkerSet, and pods that are created only after others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.translate.gangs.pods import beside, job, ours, pod, read
from vkgateway.scheduler.gangs import GangMarks, MarkError, Reference, gang_references, merge_marks

SET = Reference("jobset.x-k8s.io", "JobSet", "jobsets", "research", "train")
GROUPS = Reference("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", "research", "serve")


def member(role: str = "worker", index: int = 0, pod_index: int = 0, *, annotations: Any = None) -> Any:
    # As the controller of JobSet labels them.
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": role,
        "jobset.sigs.k8s.io/job-index": str(index),
        "batch.kubernetes.io/job-completion-index": str(pod_index),
    }
    owner = ("batch/v1", "Job", f"train-{role}-{index}")
    name = f"train-{role}-{index}-{pod_index}-x7k2p"
    return pod(name, labels=labels, owner=owner, annotations=annotations)


def jobs(name: str, replicas: int | None = None, after: str = "", **spec: Any) -> Any:
    entry: Any = {"name": name, "template": {"spec": {"template": {}, **spec}}}
    if replicas is not None:
        entry["replicas"] = replicas
    if after:
        entry["dependsOn"] = [{"name": after, "status": "Ready"}]
    return entry


def jobset(*replicated: Any, **spec: Any) -> Any:
    return beside("jobset.x-k8s.io/v1alpha2", "JobSet", "train", {"replicatedJobs": list(replicated), **spec})


DRIVER, WORKERS = jobs("driver"), jobs("worker", 2, parallelism=4, completions=4)


def gang_facts(marks: GangMarks) -> tuple[str, int, int | None, bool]:
    return marks.group.removeprefix("research/"), marks.minimum, marks.size, marks.elastic


def test_all_jobs_of_a_jobset_are_one_gang() -> None:
    found = jobset(DRIVER, WORKERS)
    all_marks = [read(member("driver"), found), read(member("worker", 1, 3), found)]

    assert {gang_facts(marks) for marks in all_marks} == {("jobset/train", 9, 9, False)}
    assert {marks.integration for marks in all_marks} == {"JobSet"}
    assert [marks.role for marks in all_marks] == ["driver", "worker"]
    assert dict(all_marks[0].role_minimum) == {"driver": 1, "worker": 8}
    assert merge_marks(all_marks).minimum == 9


def test_pods_are_ranked_in_the_order_of_their_jobs() -> None:
    found = jobset(DRIVER, WORKERS)
    members = [("driver", 0, 0), *(("worker", index, pod_index) for index in range(2) for pod_index in range(4))]
    ranks = [read(member(*each), found).rank for each in members]

    assert ranks == sorted(set(ranks))


def of_attempt(number: int, role: str = "worker", index: int = 0, pod_index: int = 0) -> Any:
    marked = member(role, index, pod_index)
    marked["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = str(number)
    return marked


def test_restarted_jobset_is_a_new_gang_of_the_same_size() -> None:
    found = jobset(DRIVER, WORKERS)
    told_of = [gang_facts(read(of_attempt(number), found)) for number in range(3)]
    assert told_of[0] == gang_facts(read(member(), found)) == ("jobset/train", 9, 9, False)
    assert told_of[1:] == [(f"jobset/train/restart-{number}", 9, 9, False) for number in (1, 2)]
    assert read(of_attempt(1)).group == "research/jobset/train/restart-1", "and before the JobSet is known"
    assert gang_references(of_attempt(1))[0] == SET


@pytest.mark.parametrize(
    ("annotations", "spec", "groups"),
    [
        ({}, {"startupPolicy": {"startupPolicyOrder": "InOrder"}}, ["train/worker", "train/restart-3/worker"]),
        ({"alpha.jobset.sigs.k8s.io/exclusive-topology": "r"}, {}, ["worker/0/others", "restart-3/worker/0/others"]),
    ],
)
def test_restarted_jobset_shares_no_gang_with_its_previous_attempt(
    annotations: Any, spec: Any, groups: list[str]
) -> None:
    found = jobset(DRIVER, WORKERS, **spec)
    found["metadata"]["annotations"] = annotations
    seen = [read(of_attempt(number, "worker", 0, 2), found).group for number in (0, 3)]
    assert seen == [f"research/jobset/train/{group.removeprefix('train/')}" for group in groups]


def test_marks_name_the_jobs_of_the_gang_and_of_its_attempt() -> None:
    together = read(of_attempt(3), jobset(DRIVER, WORKERS)).sibling_jobs
    assert together == (("driver", "train-driver", 1, 3), ("worker", "train-worker", 2, 3))
    apart = jobset(DRIVER, WORKERS, startupPolicy={"startupPolicyOrder": "InOrder"})
    assert [each.role for each in read(member("driver"), apart).sibling_jobs] == ["driver"]


def test_gang_waits_for_a_missing_jobset() -> None:
    assert gang_references(member())[0] == SET
    assert read(member()).missing_reference == SET


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 2}, 2),
        ({"parallelism": 2, "completions": 9}, 2),
        ({"parallelism": 0}, 1),
    ],
)
def test_parallelism_limits_the_pods_of_a_job(spec: Any, pods: int) -> None:
    assert read(member(), jobset(jobs("worker", **spec))).minimum == pods


def test_jobs_with_startup_order_are_separate_gangs() -> None:
    found = jobset(DRIVER, WORKERS, startupPolicy={"startupPolicyOrder": "InOrder"})

    assert gang_facts(read(member("driver"), found)) == ("jobset/train/driver", 1, 1, False)
    assert gang_facts(read(member("worker"), found)) == ("jobset/train/worker", 8, 8, False)


def test_jobs_with_equal_dependencies_are_one_gang() -> None:
    found = jobset(DRIVER, jobs("store"), jobs("worker", 3, after="driver"), jobs("judge", after="driver"))

    assert gang_facts(read(member("store"), found))[:2] == ("jobset/train/driver", 2)
    assert gang_facts(read(member("judge"), found))[:2] == ("jobset/train/worker", 4)


DOMAIN = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "example.com/rack"}


def test_first_pod_of_an_exclusive_job_is_standalone() -> None:
    """JobSet's webhook refuses a Job's other pods until its first one has a node."""
    found = jobset(DRIVER, WORKERS)
    found["metadata"]["annotations"] = DOMAIN
    first, other = read(member("worker", 1, 0), found), read(member("worker", 1, 2), found)

    assert (first.integration, first.minimum) == ("", 1)
    assert gang_facts(other) == ("jobset/train/worker/1/others", 3, 3, False)
    assert read(member("worker", 0, 2), found).group != other.group
    assert (read(member("driver"), found).integration, read(member("driver"), found).minimum) == ("", 1)


def test_exclusive_jobs_with_labelled_nodes_are_one_gang() -> None:
    found = jobset(DRIVER, WORKERS)
    found["metadata"]["annotations"] = DOMAIN | {"alpha.jobset.sigs.k8s.io/node-selector": "true"}
    assert gang_facts(read(member("worker", 1, 2), found))[:2] == ("jobset/train", 9)


def test_a_single_job_may_be_exclusive() -> None:
    exclusive = jobs("worker", 2, parallelism=4, completions=4)
    exclusive["template"]["metadata"] = {"annotations": DOMAIN}
    found = jobset(DRIVER, jobs("store", 2), exclusive)

    assert gang_facts(read(member("store"), found))[:2] == ("jobset/train/driver", 3)
    assert read(member("worker", 0, 0), found).minimum == 1
    assert gang_facts(read(member("worker", 0, 1), found))[:2] == ("jobset/train/worker/0/others", 3)


def test_run_limit_comes_from_the_pods_job() -> None:
    found = jobset(jobs("driver"), jobs("worker", activeDeadlineSeconds=600))
    assert [read(member(role), found).run_limit for role in ("driver", "worker")] == [None, 600]


def test_annotation_may_lower_the_minimum() -> None:
    marks = read(member(annotations=ours(min="3", elastic_max="9")), jobset(DRIVER, WORKERS))
    assert (*gang_facts(marks), dict(marks.role_minimum)) == ("jobset/train", 3, 9, True, {})


def test_gang_job_annotation_makes_each_job_a_gang() -> None:
    marks = read(member(annotations=ours(gang="job")), job("train-worker-0", parallelism=4), jobset(DRIVER, WORKERS))
    assert gang_facts(marks)[:2] == ("job/train-worker-0", 4)


def test_unknown_replicated_job_is_refused() -> None:
    with pytest.raises(MarkError, match=r"is not a job of JobSet train .*; use one of: driver, worker"):
        read(member("other"), jobset(DRIVER, WORKERS))
    with pytest.raises(MarkError, match="use one of: none"):
        read(member("other"), jobset())


def test_invalid_index_counts_as_zero() -> None:
    odd = member()
    odd["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"] = "\u0663"
    assert read(odd, jobset(WORKERS)).rank == 0


def served(index: int = 0, *, group: str = "1", size: str | None = "4", revision: str = "", **more: Any) -> Any:
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "serve",
        "leaderworkerset.sigs.k8s.io/group-index": group,
        "leaderworkerset.sigs.k8s.io/worker-index": str(index),
    }
    if revision:
        labels["leaderworkerset.sigs.k8s.io/template-revision-hash"] = revision
    annotations = {"leaderworkerset.sigs.k8s.io/size": size} if size is not None else {}
    name = f"serve-{group}-{index}" if index else f"serve-{group}"
    return pod(name, labels=labels, annotations=annotations | more.pop("annotations", {}), **more)


def groups(*, size: int = 4, exclusive: str = "", **spec: Any) -> Any:
    found = beside(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve", {"leaderWorkerTemplate": {"size": size}, **spec}
    )
    if exclusive:
        found["metadata"]["annotations"] = {"leaderworkerset.sigs.k8s.io/exclusive-topology": exclusive}
    return found


def test_a_leader_and_its_workers_are_a_gang() -> None:
    marks = [read(served(index), groups(replicas=3)) for index in range(4)]

    assert {gang_facts(each) for each in marks} == {("lws/serve/1", 4, 4, False)}
    assert [(each.role, each.rank) for each in marks] == [("leader", 0), *(("worker", rank) for rank in (1, 2, 3))]
    assert dict(marks[0].role_minimum) == {"leader": 1, "worker": 3}
    assert read(served(group="2"), groups()).group == "research/lws/serve/2"


def test_size_annotation_of_the_groups_revision_wins() -> None:
    assert read(served(size="2", revision="5d8f"), groups(size=4)).minimum == 2
    assert read(served(size="2", revision="5d8f"), groups()).group == "research/lws/serve/1/5d8f"
    assert read(served(size=None), groups(size=3)).minimum == 3
    with pytest.raises(MarkError, match="is not a number of pods"):
        read(served(size="many"), groups())


def test_gang_waits_for_a_missing_leader_worker_set() -> None:
    assert gang_references(served()) == (GROUPS,)
    assert read(served()).missing_reference == GROUPS


@pytest.mark.parametrize("later", [{"startupPolicy": "LeaderReady"}, {"exclusive": "example.com/rack"}])
def test_leader_is_standalone_if_workers_are_created_later(later: Any) -> None:
    leader, worker = read(served(0), groups(**later)), read(served(2), groups(**later))

    assert (leader.integration, leader.minimum) == ("", 1)
    assert gang_facts(worker) == ("lws/serve/1/workers", 3, 3, False)
    alone = read(served(0, size="1"), groups(size=1, **later))
    assert gang_facts(alone) == ("lws/serve/1", 1, 1, False)
