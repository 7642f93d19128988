"""Gangs of Kubeflow's training operator and MPI operator: launcher, master, parameter servers, workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vkgateway.scheduler.gangs.declarations import ROLE_STRIDE, GangDeclaration, PodContext
from vkgateway.scheduler.gangs.fields import ObjectFields
from vkgateway.scheduler.gangs.marks import Kind, MarkError
from vkgateway.scheduler.gangs.pod_view import GangPodView

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
"""Plural and the field of roles, by kind."""

_ROLE_ORDER: Final = ("launcher", "master", "chief", "ps", "worker", "evaluator")
"""Roles in the order of their ranks: roles that the others depend on come first."""
_WORKER: Final = "worker"
_LAUNCHER: Final = "launcher"
_MASTER: Final = "master"
_RENDEZVOUS: Final = "rendezvous"
"""Role of the first worker of an elastic PyTorchJob without a master: the other workers meet there and need it."""


def read_training_job(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a training job: all its replicas, unless its scheduling or elastic policy requires fewer."""
    pod = context.pod
    name = pod.labels.get(TRAINING_JOB_LABEL)
    kind = _job_kind(pod) if name else ""
    if not name or not kind:
        return None
    plural, field = _KINDS[kind]
    reference = pod.reference_to(Kind(_GROUP, kind, plural), name, mark=f"label {TRAINING_JOB_LABEL}")
    role = next(filter(None, (pod.labels.get(label) for label in _ROLES)), "").lower()
    declaration = GangDeclaration(
        name=f"{plural}/{name}",
        minimum_source=str(reference),
        role=role,
        rank=_role_order(role) * ROLE_STRIDE + pod.pod_index(_INDEX),
        missing_reference=reference,
    )
    found = context.find_object(reference)
    if found is None:
        return declaration
    spec = ObjectFields.of_part(found, "spec", reference)
    final = kind != "MPIJob" and _is_failure_final(spec, field, role)
    declaration = replace(_add_counts(declaration, spec, field), replaces_failed=not final)
    return (
        _add_rendezvous(declaration, first=not pod.pod_index(_INDEX))
        if kind == "PyTorchJob" and _has_rendezvous(spec, field)
        else declaration
    )


def is_recreated_after_deletion(labels: Mapping[str, str]) -> bool:
    """Return whether a pod's operator re-creates it only after it was deleted, not after it ended.

    This is true for workers of MPI operator 0.7. Its launcher is a Job's pod, and Jobs replace failed pods.
    """
    return labels.get(_OPERATOR) == _MPI_OPERATOR and labels.get(_JOB_ROLE) == _WORKER


def training_kinds(pod: GangPodView) -> tuple[Kind, ...]:
    """Return the possible kinds of a pod's job: one, or all if the pod does not specify it."""
    known = _job_kind(pod)
    return tuple(Kind(_GROUP, kind, plural) for kind, (plural, _) in _KINDS.items() if known in ("", kind))


def _is_failure_final(spec: ObjectFields, field: str, role: str) -> bool:
    """Return whether the job fails, without a replacement, if a replica of a role fails."""
    entries = {name.lower(): entry for name, entry in spec.get_object(field).fields_by_name().items()}
    return role in entries and entries[role].get_text("restartPolicy") == "Never"


def _add_counts(declaration: GangDeclaration, spec: ObjectFields, field: str) -> GangDeclaration:
    """Return the declaration with the job's pods by role, and the number of pods it starts with."""
    replicas = {
        role.lower(): entry.get_count("replicas", missing=1)
        for role, entry in spec.get_object(field).fields_by_name().items()
    }
    needed, maximum = _elastic_bounds(spec.get_object("elasticPolicy"), replicas)
    late = spec.get_text("launcherCreationPolicy") == "WaitForWorkersReady"
    # A late launcher is created only once the workers run. A gang that waited for it would never start.
    needed = {role: number for role, number in needed.items() if number and not (late and role == _LAUNCHER)}
    policy = spec.get_object("runPolicy").get_object("schedulingPolicy")
    available = "minAvailable" in policy
    return replace(
        declaration,
        minimum_source=policy.field_path("minAvailable") if available else declaration.minimum_source,
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
    """Return whether the workers meet at the first worker."""
    policy = spec.get_object("elasticPolicy")
    masters = _MASTER in map(str.lower, spec.get_object(field).fields_by_name())
    return "elasticPolicy" in spec and "rdzvHost" not in policy and not masters


def _add_rendezvous(declaration: GangDeclaration, *, first: bool) -> GangDeclaration:
    """Return the declaration with the first worker as a required role."""
    workers = declaration.role_minimum.get(_WORKER, 0)
    others = {_WORKER: workers - 1} if workers > 1 else {}
    rest = {role: number for role, number in declaration.role_minimum.items() if role != _WORKER}
    return replace(
        declaration,
        role=_RENDEZVOUS if first and declaration.role == _WORKER else declaration.role,
        role_minimum=rest | others | {_RENDEZVOUS: 1},
        required_roles={**declaration.required_roles, _RENDEZVOUS: 1},
    )


def _job_kind(pod: GangPodView) -> str:
    """Return the job's kind, from the pod's controller, or from the operator's name for an MPIJob's launcher."""
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
    """Return the replicas that an elastic job needs, and the number of pods to which it may grow. None: not elastic."""
    if _WORKER not in replicas or "minReplicas" not in policy:
        return replicas, None
    workers = replicas[_WORKER]
    least, most = policy.get_count("minReplicas", missing=workers), policy.get_count("maxReplicas", missing=workers)
    for bound, what in ((most, "maxReplicas"), (workers, "the replicas of Worker")):
        if least > bound:
            remedy = f"lower it to at most {bound}"
            raise MarkError(policy.field_path("minReplicas"), least, f"is more than {what} ({bound})", remedy=remedy)
    return {**replicas, _WORKER: least}, sum(replicas.values()) - workers + most
