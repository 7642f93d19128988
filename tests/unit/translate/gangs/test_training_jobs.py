"""Training jobs of Kubeflow's operators: PyTorchJob, TFJob, and MPIJob of both operators."""

from typing import Any

import pytest

from tests.unit.translate.gangs.pods import beside, ours, pod, read
from vkgateway.scheduler.gangs import MarkError, Reference, gang_references

VERSION = "kubeflow.org/v1"


def replica(kind: str, role: str, index: int, **more: Any) -> Any:
    # As the training operator labels them.
    labels = {
        "training.kubeflow.org/job-name": "bert",
        "training.kubeflow.org/operator-name": f"{kind.lower()}-controller",
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
    }
    if role in ("master", "chief"):
        labels["training.kubeflow.org/job-role"] = "master"
    return pod(f"bert-{role}-{index}", labels=labels, owner=(VERSION, kind, "bert"), **more)


def pytorch(workers: int = 3, **spec: Any) -> Any:
    specs = {"Master": {"replicas": 1}, "Worker": {"replicas": workers}}
    return beside(VERSION, "PyTorchJob", "bert", {"pytorchReplicaSpecs": specs, **spec})


def test_pytorch_job() -> None:
    marks = read(replica("PyTorchJob", "worker", 2), pytorch())
    assert (marks.group, marks.integration) == ("research/training/pytorchjobs/bert", "Kubeflow training job")
    assert (marks.minimum, marks.size, marks.elastic) == (4, 4, False)
    assert (marks.role, dict(marks.role_minimum)) == ("worker", {"master": 1, "worker": 3})
    assert marks.missing_reference is None


def test_master_is_ranked_before_workers() -> None:
    master = read(replica("PyTorchJob", "master", 0), pytorch())
    workers = [read(replica("PyTorchJob", "worker", index), pytorch()) for index in (0, 1, 10)]
    ranks = [marks.rank for marks in (master, *workers)]
    assert ranks == sorted(set(ranks))


def test_elastic_pytorch_job() -> None:
    found = pytorch(8, elasticPolicy={"minReplicas": 2, "maxReplicas": 16, "rdzvBackend": "c10d"})
    marks = read(replica("PyTorchJob", "worker", 0), found)
    assert (marks.minimum, marks.size, marks.maximum, marks.elastic) == (3, 9, 17, True)
    assert dict(marks.role_minimum) == {"master": 1, "worker": 2}


def workers_alone(**policy: Any) -> Any:
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 4}}, "elasticPolicy": {"minReplicas": 2} | policy}
    return beside(VERSION, "PyTorchJob", "bert", spec)


def test_rendezvous_worker_is_required() -> None:
    marks = [read(replica("PyTorchJob", "worker", index), workers_alone()) for index in range(3)]
    assert [each.role for each in marks] == ["rendezvous", "worker", "worker"]
    assert {(each.minimum, each.size, each.elastic) for each in marks} == {(2, 4, True)}
    assert all(dict(each.role_minimum) == {"rendezvous": 1, "worker": 1} for each in marks)

    lowered = read(replica("PyTorchJob", "worker", 3, annotations=ours(min="1")), workers_alone())
    assert (lowered.minimum, dict(lowered.role_minimum)) == (1, {"rendezvous": 1})
    elsewhere = read(replica("PyTorchJob", "worker", 0), workers_alone(rdzvHost="meet.example.org"))
    assert (elsewhere.role, dict(elsewhere.role_minimum)) == ("worker", {"worker": 2})


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"minReplicas": 4, "maxReplicas": 2}, r"minReplicas of PyTorchJob bert .* more than maxReplicas \(2\)"),
        ({"minReplicas": 5, "maxReplicas": 9}, r"more than the replicas of Worker \(3\)"),
        ({"minReplicas": -1}, "not a number of pods"),
    ],
)
def test_invalid_elastic_policy_is_refused(policy: Any, says: str) -> None:
    with pytest.raises(MarkError, match=says):
        read(replica("PyTorchJob", "worker", 0), pytorch(elasticPolicy=policy))


def test_minimum_of_the_scheduling_policy() -> None:
    found = pytorch(7, runPolicy={"schedulingPolicy": {"minAvailable": 4}, "activeDeadlineSeconds": 3600})
    marks = read(replica("PyTorchJob", "worker", 0), found)
    assert (marks.minimum, marks.size, marks.elastic, marks.run_limit) == (4, 8, True, 3600.0)
    # All seven workers cannot be asked for any more, but the master is.
    assert dict(marks.role_minimum) == {"master": 1}


def test_minimum_above_the_replicas_is_refused() -> None:
    with pytest.raises(MarkError, match=r"minAvailable of PyTorchJob bert .*lower it to at most 4"):
        read(replica("PyTorchJob", "worker", 0), pytorch(runPolicy={"schedulingPolicy": {"minAvailable": 9}}))


def test_tf_job() -> None:
    specs = {"PS": {"replicas": 2}, "Worker": {"replicas": 4}, "Evaluator": {}}
    found = beside(VERSION, "TFJob", "bert", {"tfReplicaSpecs": specs})
    marks = read(replica("TFJob", "ps", 1), found)
    assert (marks.group, marks.role) == ("research/training/tfjobs/bert", "ps")
    assert (marks.minimum, dict(marks.role_minimum)) == (7, {"evaluator": 1, "ps": 2, "worker": 4})
    assert marks.rank < read(replica("TFJob", "worker", 0), found).rank


def mpi_pod(role: str, index: int | None = None) -> Any:
    # As mpi-operator v2 labels them; the launcher is a Job's pod.
    labels = {
        "training.kubeflow.org/job-name": "bert",
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-role": role,
    }
    if index is None:
        return pod("bert-launcher-x2x9k", labels=labels, owner=("batch/v1", "Job", "bert-launcher"))
    labels["training.kubeflow.org/replica-index"] = str(index)
    return pod(f"bert-worker-{index}", labels=labels, owner=("kubeflow.org/v2beta1", "MPIJob", "bert"))


def mpi(**spec: Any) -> Any:
    specs = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 4}}
    return beside("kubeflow.org/v2beta1", "MPIJob", "bert", {"mpiReplicaSpecs": specs, **spec})


def test_mpi_launcher_and_workers_are_one_gang() -> None:
    launcher, worker = read(mpi_pod("launcher"), mpi()), read(mpi_pod("worker", 3), mpi())
    assert launcher.group == worker.group == "research/training/mpijobs/bert"
    assert launcher.minimum == worker.minimum == 5
    assert dict(worker.role_minimum) == {"launcher": 1, "worker": 4}
    assert (launcher.role, worker.role) == ("launcher", "worker")
    assert launcher.rank < worker.rank


def test_late_launcher_is_not_required() -> None:
    marks = read(mpi_pod("worker", 0), mpi(launcherCreationPolicy="WaitForWorkersReady"))
    assert (marks.minimum, marks.size, marks.elastic) == (4, 5, False)
    assert dict(marks.role_minimum) == {"worker": 4}
    assert read(mpi_pod("worker", 0), mpi(launcherCreationPolicy="AtStartup")).minimum == 5


def test_mpi_job_of_the_training_operator() -> None:
    marked = replica("MPIJob", "worker", 0)
    assert read(marked, beside(VERSION, "MPIJob", "bert", mpi()["spec"])).minimum == 5


def test_gang_waits_for_a_missing_training_job() -> None:
    reference = Reference("kubeflow.org", "PyTorchJob", "pytorchjobs", "research", "bert")
    assert gang_references(replica("PyTorchJob", "worker", 0)) == (reference,)
    assert read(replica("PyTorchJob", "worker", 0)).missing_reference == reference
    declared = read(replica("PyTorchJob", "worker", 0, annotations=ours(size="4")))
    assert (declared.missing_reference, declared.minimum, declared.size) == (None, 4, 4)


def test_annotation_may_lower_the_minimum() -> None:
    marks = read(replica("PyTorchJob", "worker", 0, annotations=ours(min="2", elastic_max="6")), pytorch())
    assert (marks.minimum, marks.size, marks.maximum, marks.elastic) == (2, 4, 6, True)
    assert dict(marks.role_minimum) == {"master": 1}


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ({"min": "9"}, "gang-min is '9', which is more than the gang's 4 pods"),
        ({"size": "5"}, "contradicts the 4 pods of PyTorchJob bert"),
        ({"elastic_max": "3"}, "gang-elastic-max is '3', which is less than the gang's 4 pods"),
    ],
)
def test_annotations_that_contradict_the_job_are_refused(marks: dict[str, str], says: str) -> None:
    with pytest.raises(MarkError, match=says):
        read(replica("PyTorchJob", "worker", 0, annotations=ours(**marks)), pytorch())


def test_labels_of_unknown_operators_are_ignored() -> None:
    marks = read(pod("x", labels={"training.kubeflow.org/job-name": "bert"}))
    assert marks.group == "research/pod/uid-of-x"


def test_gang_job_annotation_selects_the_training_job() -> None:
    marks = read(replica("PyTorchJob", "worker", 0, annotations=ours(gang="job")), pytorch())
    assert marks.group == "research/training/pytorchjobs/bert"


def test_role_is_known_without_the_job() -> None:
    marks = read(replica("PyTorchJob", "worker", 0))
    assert marks.role == "worker"
    assert marks.rank > read(replica("PyTorchJob", "master", 0)).rank


def test_too_many_roles_are_refused() -> None:
    specs = {f"role-{index}": {"replicas": 1} for index in range(1001)}
    found = beside(VERSION, "PyTorchJob", "bert", {"pytorchReplicaSpecs": specs})
    with pytest.raises(
        MarkError, match=r"spec.pytorchReplicaSpecs of PyTorchJob bert .* '1001 entries', which are too"
    ):
        read(replica("PyTorchJob", "worker", 0), found)


def test_roles_are_case_insensitive() -> None:
    assert read(replica("PyTorchJob", "Worker", 0), pytorch()).role == "worker"


@pytest.mark.parametrize(("deadline", "seconds"), [(0, 0.0), (90, 90.0), (None, None)])
def test_deadline(deadline: int | None, seconds: float | None) -> None:
    found = pytorch(runPolicy={"activeDeadlineSeconds": deadline})
    assert read(replica("PyTorchJob", "worker", 0), found).run_limit == seconds


@pytest.mark.parametrize("deadline", [-1, True, "90", 1.5])
def test_invalid_deadline_is_refused(deadline: Any) -> None:
    found = pytorch(runPolicy={"activeDeadlineSeconds": deadline})
    with pytest.raises(MarkError, match=r"activeDeadlineSeconds of PyTorchJob bert .* not a number of seconds"):
        read(replica("PyTorchJob", "worker", 0), found)


def test_operator_label_selects_the_kind_without_an_owner() -> None:
    marked = replica("PyTorchJob", "worker", 0)
    for owner in ([], [{"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "name": "n", "controller": True}]):
        marked["metadata"]["ownerReferences"] = owner
        assert read(marked, pytorch()).minimum == 4
    marked["metadata"]["labels"].pop("training.kubeflow.org/operator-name")
    marked["metadata"]["ownerReferences"] = [
        {"apiVersion": "x/v1", "kind": "PyTorchJob", "name": "n", "controller": True}
    ]
    assert read(marked, pytorch()).minimum == 1


def test_equal_elastic_bounds_are_not_elastic() -> None:
    policy = {"minReplicas": 3, "maxReplicas": 3}
    marks = read(replica("PyTorchJob", "worker", 0), pytorch(elasticPolicy=policy))
    assert (marks.minimum, marks.maximum, marks.elastic) == (4, 4, False)


def test_elastic_policy_without_workers_is_ignored() -> None:
    spec = {"pytorchReplicaSpecs": {"Master": {}}, "elasticPolicy": {"minReplicas": 1}}
    marks = read(replica("PyTorchJob", "master", 0), beside(VERSION, "PyTorchJob", "bert", spec))
    assert (marks.minimum, marks.size, marks.maximum) == (1, 1, None)


@pytest.mark.parametrize(
    ("kind", "field", "policy", "replaces"),
    [
        ("PyTorchJob", "pytorchReplicaSpecs", "Never", False),
        ("PyTorchJob", "pytorchReplicaSpecs", "OnFailure", True),
        ("TFJob", "tfReplicaSpecs", "ExitCode", True),
        ("MPIJob", "mpiReplicaSpecs", "Never", True),
    ],
)
def test_failure_with_restart_policy_never_is_final(kind: str, field: str, policy: str, replaces: bool) -> None:
    found = beside(VERSION, kind, "bert", {field: {"Worker": {"replicas": 2, "restartPolicy": policy}}})
    assert read(replica(kind, "worker", 1), found).replaces_failed is replaces
