"""Sets of Kubernetes' own SIGs: JobSet, several Jobs as one; LeaderWorkerSet, groups of a leader and workers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs import mark_values
from vkgateway.translate.gangs.declarations import ROLE_STRIDE, GangDeclaration, PodContext
from vkgateway.translate.gangs.fields import ObjectFields
from vkgateway.translate.gangs.marks import Kind, MarkError
from vkgateway.translate.gangs.own_annotations import JOB_OWNER
from vkgateway.translate.gangs.pod_view import GangPodView

JOBSET_KIND: Final = Kind("jobset.x-k8s.io", "JobSet", "jobsets")
LWS_KIND: Final = Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets")

JOBSET_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
_ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
"""How many times all Jobs of the set were made anew before this one."""
_JOB_DOMAIN: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_NODES_LABELLED: Final = "alpha.jobset.sigs.k8s.io/node-selector"
"""Somebody gave each Job its nodes before: then all pods of an exclusive Job are made at once."""

LWS_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
_MEMBER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
_REVISION: Final = "leaderworkerset.sigs.k8s.io/template-revision-hash"
_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_LEADER: Final = "leader"


@dataclass(frozen=True, slots=True)
class _ReplicatedJob:
    """Equal Jobs of a JobSet, and how many pods run of each at once."""

    name: str
    replicas: int
    pods: int
    run_limit: float | None
    startup_stage: Hashable
    """Equal for those that are made at the same time."""
    is_exclusive: bool
    """Each has a domain of the network for itself: its other pods are made once its first one has a node."""


def read_jobset(asked: PodContext) -> GangDeclaration | None:
    """A JobSet: the pods of all its Jobs; where some Jobs are made only after others, those that are made together.

    With exclusive topology each Job's first pod starts for itself, and its others as a gang. Pods of a restarted set
    are a gang of their own: those of before may still be there, running, ending or done, and none is a member of it.
    """
    pod = asked.pod
    name, role = pod.labels.get(JOBSET_LABEL), pod.labels.get(_REPLICATED_JOB)
    if not name or not role or asked.own_annotations.name == JOB_OWNER:
        return None
    reference = pod.reference_to(JOBSET_KIND, name, mark=f"label {JOBSET_LABEL}")
    attempt = _parse_index(pod.labels.get(_ATTEMPT, ""))
    if attempt:
        name = f"{name}/restart-{attempt}"
    said = GangDeclaration(
        name=name, minimum_source=str(reference), role=role, rank=pod.pod_index(), missing_reference=reference
    )
    found = asked.find_object(reference)
    if found is None:
        return said
    jobs = _all_jobs(ObjectFields.of_metadata(found, reference), ObjectFields.of_spec(found, reference))
    own = next((each for each in jobs if each.name == role), None)
    if own is None:
        way_out = f"use one of those it has: {', '.join(each.name for each in jobs) or 'none'}"
        raise MarkError(f"label {_REPLICATED_JOB}", role, f"is no job of {reference}", way_out=way_out)
    if own.is_exclusive:
        return _in_exclusive_domain(said, own, asked.pod)
    together = [each for each in jobs if each.startup_stage == own.startup_stage and not each.is_exclusive]
    size = max(1, sum(each.replicas * each.pods for each in together))
    return replace(
        said,
        name=name if len(together) == len(jobs) else f"{name}/{together[0].name}",
        minimum=size,
        size=size,
        role_minimum={each.name: each.replicas * each.pods for each in together if each.replicas * each.pods},
        rank=together.index(own) * ROLE_STRIDE
        + _parse_index(pod.labels.get(_JOB_INDEX, "")) * own.pods
        + pod.pod_index(),
        run_limit=own.run_limit,
        missing_reference=None,
    )


def _parse_index(index: str) -> int:
    """An index or a number of restarts; what is no number is passed over."""
    return int(index) if index.isascii() and index.isdigit() and len(index) < 7 else 0


def _in_exclusive_domain(said: GangDeclaration, own: _ReplicatedJob, pod: GangPodView) -> GangDeclaration:
    """A pod of a Job that has a domain for itself."""
    name = f"{said.name}/{own.name}/{_parse_index(pod.labels.get(_JOB_INDEX, ''))}"
    index = pod.pod_index()
    if not index:
        return replace(
            said, name=f"{name}/{_LEADER}", is_standalone=True, run_limit=own.run_limit, missing_reference=None
        )
    others = max(1, own.pods - 1)
    return replace(
        said,
        name=f"{name}/others",
        minimum=others,
        size=others,
        rank=index,
        run_limit=own.run_limit,
        missing_reference=None,
    )


def _all_jobs(metadata: ObjectFields, spec: ObjectFields) -> list[_ReplicatedJob]:
    in_order = spec.get_object("startupPolicy").get_text("startupPolicyOrder") == "InOrder"
    exclusive = _is_exclusive(metadata)
    return [
        _read_replicated_job(entry, in_order=in_order, exclusive=exclusive)
        for entry in spec.get_entries("replicatedJobs")
    ]


def _is_exclusive(metadata: ObjectFields) -> bool:
    """Whether a JobSet, or the template of its Jobs, asks for a domain of the network for each Job."""
    annotations = metadata.get_object("annotations")
    return bool(annotations.get_text(_JOB_DOMAIN)) and _NODES_LABELLED not in annotations


def _read_replicated_job(entry: ObjectFields, *, in_order: bool, exclusive: bool) -> _ReplicatedJob:
    name, template = entry.get_text("name"), entry.get_object("template")
    job = template.get_object("spec")
    pods = job.get_count("parallelism", missing=1)
    if "completions" in job:
        pods = min(pods, job.get_count("completions", missing=1))
    after = tuple((each.get_text("name"), each.get_text("status")) for each in entry.get_entries("dependsOn"))
    limit = job.get_seconds("activeDeadlineSeconds")
    return _ReplicatedJob(
        name=name,
        replicas=entry.get_count("replicas", missing=1),
        pods=pods,
        run_limit=limit,
        startup_stage=name if in_order else after,
        is_exclusive=exclusive or _is_exclusive(template.get_object("metadata")),
    )


def read_leader_worker_set(asked: PodContext) -> GangDeclaration | None:
    """A LeaderWorkerSet: each of its groups by itself, the leader and all its workers.

    Where workers are made only once their leader is ready, or has a node, it starts for itself and they as a gang.
    """
    pod = asked.pod
    name, index = pod.labels.get(LWS_LABEL), pod.labels.get(_GROUP)
    if not name or not index:
        return None
    group = "/".join(filter(None, (name, index, pod.labels.get(_REVISION))))
    reference = pod.reference_to(LWS_KIND, name, mark=f"label {LWS_LABEL}")
    rank = pod.pod_index(_MEMBER)
    role = "worker" if rank else _LEADER
    found = asked.find_object(reference)
    if found is None:
        return GangDeclaration(
            name=group, minimum_source=str(reference), role=role, rank=rank, missing_reference=reference
        )
    spec, text = ObjectFields.of_spec(found, reference), pod.annotations.get(_SIZE)
    size, mark = spec.get_object("leaderWorkerTemplate").get_count("size", missing=1), str(reference)
    if text is not None:
        # Of the revision that this group was made from.
        size, mark = mark_values.parse_count(f"annotation {_SIZE}", text), f"annotation {_SIZE}"
    workers = max(0, size - 1)
    if workers and _starts_leader_first(found, spec):
        if role == _LEADER:
            return GangDeclaration(name=f"{group}/leader", is_standalone=True)
        return GangDeclaration(
            name=f"{group}/workers", minimum_source=mark, minimum=workers, size=workers, role=role, rank=rank
        )
    roles = {_LEADER: 1, "worker": workers} if workers else {_LEADER: 1}
    return GangDeclaration(
        name=group,
        minimum_source=mark,
        minimum=workers + 1,
        size=workers + 1,
        role=role,
        role_minimum=roles,
        required_roles={_LEADER: 1},
        rank=rank,
    )


def _starts_leader_first(found: Object, spec: ObjectFields) -> bool:
    annotations = (found.get("metadata") or {}).get("annotations") or {}
    return spec.get_text("startupPolicy") == "LeaderReady" or bool(annotations.get(_EXCLUSIVE))
