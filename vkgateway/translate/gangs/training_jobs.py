"""Jobs of Kubeflow's training operator and MPI operator: launcher, master, parameter servers, workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vkgateway.translate.gangs.declarations import ROLE_STRIDE, GangDeclaration, PodContext
from vkgateway.translate.gangs.fields import ObjectFields
from vkgateway.translate.gangs.marks import Kind, MarkError
from vkgateway.translate.gangs.pod_view import GangPodView

_GROUP: Final = "kubeflow.org"
TRAINING_JOB_LABEL: Final = "training.kubeflow.org/job-name"
_OPERATOR: Final = "training.kubeflow.org/operator-name"
_INDEX: Final = "training.kubeflow.org/replica-index"
_JOB_ROLE: Final = "training.kubeflow.org/job-role"
_ROLES: Final = ("training.kubeflow.org/replica-type", _JOB_ROLE)
_MPI_OPERATOR: Final = "mpi-operator"

_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "PyTorchJob": ("pytorchjobs", "pytorchReplicaSpecs"),
    "TFJob": ("tfjobs", "tfReplicaSpecs"),
    "MPIJob": ("mpijobs", "mpiReplicaSpecs"),
    "XGBoostJob": ("xgboostjobs", "xgbReplicaSpecs"),
    "PaddleJob": ("paddlejobs", "paddleReplicaSpecs"),
    "JAXJob": ("jaxjobs", "jaxReplicaSpecs"),
}
"""Kind to plural, and to the field that holds its roles."""

_ROLE_ORDER: Final = ("launcher", "master", "chief", "ps", "worker", "evaluator")
"""Roles in the order of their ranks: what the others cannot do without comes first."""
_WORKER: Final = "worker"
_LAUNCHER: Final = "launcher"
_MASTER: Final = "master"
_RENDEZVOUS: Final = "rendezvous"
"""The first worker of an elastic PyTorchJob without a master: the others meet there, so none gets on without it."""


def read_training_job(asked: PodContext) -> GangDeclaration | None:
    """A training job: all its replicas, unless its scheduling or elastic policy says fewer."""
    pod = asked.pod
    name = pod.labels.get(TRAINING_JOB_LABEL)
    kind = _job_kind(pod) if name else ""
    if not name or not kind:
        return None
    plural, field = _KINDS[kind]
    reference = pod.reference_to(Kind(_GROUP, kind, plural), name, mark=f"label {TRAINING_JOB_LABEL}")
    role = next(filter(None, (pod.labels.get(label) for label in _ROLES)), "").lower()
    said = GangDeclaration(
        name=f"{plural}/{name}",
        minimum_source=str(reference),
        role=role,
        rank=_role_order(role) * ROLE_STRIDE + pod.pod_index(_INDEX),
        missing_reference=reference,
    )
    found = asked.find_object(reference)
    if found is None:
        return said
    spec = ObjectFields.of_spec(found, reference)
    final = kind != "MPIJob" and _is_failure_final(spec, field, role)
    said = replace(_add_counts(said, spec, field), replaces_failed=not final)
    return (
        _add_rendezvous(said, first=not pod.pod_index(_INDEX))
        if kind == "PyTorchJob" and _has_rendezvous(spec, field)
        else said
    )


def is_recreated_after_deletion(labels: Mapping[str, str]) -> bool:
    """Whether a pod is one of those whose operator makes them anew only once they are gone, not where they ended.

    MPI operator 0.7 does so with workers; its launcher is a Job's pod, and Jobs replace what fails.
    """
    return labels.get(_OPERATOR) == _MPI_OPERATOR and labels.get(_JOB_ROLE) == _WORKER


def training_kinds(pod: GangPodView) -> tuple[Kind, ...]:
    """Return the kinds of which a pod's job may be: one, or all where the pod does not tell."""
    known = _job_kind(pod)
    return tuple(Kind(_GROUP, kind, plural) for kind, (plural, _) in _KINDS.items() if known in ("", kind))


def _is_failure_final(spec: ObjectFields, field: str, role: str) -> bool:
    """Whether the operator creates no other replica of a role where one fails: the job has failed then."""
    entries = {name.lower(): entry for name, entry in spec.get_object(field).fields_by_name().items()}
    return role in entries and entries[role].get_text("restartPolicy") == "Never"


def _add_counts(said: GangDeclaration, spec: ObjectFields, field: str) -> GangDeclaration:
    """The job's pods by its roles, and how many of them it starts with."""
    replicas = {
        role.lower(): entry.get_count("replicas", missing=1)
        for role, entry in spec.get_object(field).fields_by_name().items()
    }
    needed, maximum = _elastic_bounds(spec.get_object("elasticPolicy"), replicas)
    late = spec.get_text("launcherCreationPolicy") == "WaitForWorkersReady"
    # A late launcher is made only once the workers run: a gang that waited for it would never start.
    needed = {role: number for role, number in needed.items() if number and not (late and role == _LAUNCHER)}
    policy = spec.get_object("runPolicy").get_object("schedulingPolicy")
    available = "minAvailable" in policy
    return replace(
        said,
        minimum_source=policy.field_path("minAvailable") if available else said.minimum_source,
        minimum=max(1, policy.get_count("minAvailable", missing=0) if available else sum(needed.values())),
        size=max(1, sum(replicas.values())),
        maximum=maximum,
        elastic=False if late else None,
        role_minimum=needed,
        required_roles={role: number for role, number in needed.items() if role != _WORKER},
        run_limit=spec.get_object("runPolicy").get_seconds("activeDeadlineSeconds"),
        missing_reference=None,
    )


def _has_rendezvous(spec: ObjectFields, field: str) -> bool:
    """Whether the workers meet at the first of them."""
    policy = spec.get_object("elasticPolicy")
    masters = _MASTER in map(str.lower, spec.get_object(field).fields_by_name())
    return "elasticPolicy" in spec and "rdzvHost" not in policy and not masters


def _add_rendezvous(said: GangDeclaration, *, first: bool) -> GangDeclaration:
    """The same, with the first worker as one that is always needed."""
    workers = said.role_minimum.get(_WORKER, 0)
    others = {_WORKER: workers - 1} if workers > 1 else {}
    rest = {role: number for role, number in said.role_minimum.items() if role != _WORKER}
    return replace(
        said,
        role=_RENDEZVOUS if first and said.role == _WORKER else said.role,
        role_minimum=rest | others | {_RENDEZVOUS: 1},
        required_roles={**said.required_roles, _RENDEZVOUS: 1},
    )


def _job_kind(pod: GangPodView) -> str:
    """The job's kind: its pods' controller, or where that is a Job (an MPIJob's launcher), the operator's name."""
    group, kind, _ = pod.controller_key
    if group == _GROUP and kind in _KINDS:
        return kind
    operator = pod.labels.get(_OPERATOR, "")
    if operator == _MPI_OPERATOR:
        return "MPIJob"
    return next((kind for kind in _KINDS if operator == f"{kind.lower()}-controller"), "")


def _role_order(role: str) -> int:
    return _ROLE_ORDER.index(role) if role in _ROLE_ORDER else _ROLE_ORDER.index(_WORKER)


def _elastic_bounds(policy: ObjectFields, replicas: Mapping[str, int]) -> tuple[Mapping[str, int], int | None]:
    """The replicas that an elastic job needs to run, and how many pods it may grow to; None: not elastic."""
    if _WORKER not in replicas or "minReplicas" not in policy:
        return replicas, None
    workers = replicas[_WORKER]
    least, most = policy.get_count("minReplicas", missing=workers), policy.get_count("maxReplicas", missing=workers)
    for bound, what in ((most, "maxReplicas"), (workers, "the replicas of Worker")):
        if least > bound:
            way_out = f"lower it to at most {bound}"
            raise MarkError(policy.field_path("minReplicas"), least, f"is more than {what} ({bound})", way_out=way_out)
    return {**replicas, _WORKER: least}, sum(replicas.values()) - workers + most
