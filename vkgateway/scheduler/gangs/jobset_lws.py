"""Gangs of two SIG projects: JobSet, several Jobs as one, and LeaderWorkerSet, groups of a leader and workers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs import mark_values
from vkgateway.scheduler.gangs.declarations import ROLE_STRIDE, GangDeclaration, PodContext
from vkgateway.scheduler.gangs.fields import ObjectFields
from vkgateway.scheduler.gangs.job_pods import read_job_pods
from vkgateway.scheduler.gangs.marks import GangMarks, Kind, MarkError, Reference, SiblingJobs
from vkgateway.scheduler.gangs.own_annotations import JOB_OWNER
from vkgateway.scheduler.gangs.pod_view import GangPodView

JOBSET_KIND: Final = Kind("jobset.x-k8s.io", "JobSet", "jobsets")
LWS_KIND: Final = Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets")

JOBSET_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
_ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
"""Number of times that all Jobs of the set were re-created."""
_JOB_DOMAIN: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_NODES_LABELLED: Final = "alpha.jobset.sigs.k8s.io/node-selector"
"""The nodes were assigned to the Jobs beforehand, so all pods of an exclusive Job are created together."""

LWS_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
_MEMBER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
_REVISION: Final = "leaderworkerset.sigs.k8s.io/template-revision-hash"
_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_LEADER: Final = "leader"


@dataclass(frozen=True, slots=True)
class _ReplicatedJob:
    """Identical Jobs of a JobSet, with the number of pods that run at the same time in each."""

    name: str
    replicas: int
    pods: int
    run_limit: float | None
    startup_stage: Hashable
    """Equal for Jobs that are created together."""
    is_exclusive: bool
    """Each Job has a topology domain to itself: its other pods are created once its first pod has a node."""


def read_jobset(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a JobSet: the pods of all its Jobs, or of those Jobs that are created together.

    With exclusive topology, the first pod of each Job starts alone, and the other pods of the Job are a gang. The pods
    of a restarted set are a new gang: pods of the previous attempt may still exist, and none is a member of it.
    """
    pod = context.pod
    name, role = pod.labels.get(JOBSET_LABEL), pod.labels.get(_REPLICATED_JOB)
    if not name or not role or context.own_annotations.name == JOB_OWNER:
        return None
    reference = pod.reference_to(JOBSET_KIND, name, mark=f"label {JOBSET_LABEL}")
    jobset, attempt = name, _parse_index(pod.labels.get(_ATTEMPT, ""))
    if attempt:
        name = f"{name}/restart-{attempt}"
    declaration = GangDeclaration(
        name=name, minimum_source=str(reference), role=role, rank=pod.pod_index(), missing_reference=reference
    )
    found = context.find_object(reference)
    if found is None:
        return declaration
    jobs = _all_jobs(ObjectFields.of_part(found, "metadata", reference), ObjectFields.of_part(found, "spec", reference))
    job = next((each for each in jobs if each.name == role), None)
    if job is None:
        remedy = f"use one of: {', '.join(each.name for each in jobs) or 'none'}"
        raise MarkError(f"label {_REPLICATED_JOB}", role, f"is not a job of {reference}", remedy=remedy)
    if job.is_exclusive:
        return _in_exclusive_domain(declaration, job, context.pod)
    together = [each for each in jobs if each.startup_stage == job.startup_stage and not each.is_exclusive]
    size = max(1, sum(each.replicas * each.pods for each in together))
    return replace(
        declaration,
        name=name if len(together) == len(jobs) else f"{name}/{together[0].name}",
        minimum=size,
        size=size,
        role_minimum={each.name: each.replicas * each.pods for each in together if each.replicas * each.pods},
        rank=together.index(job) * ROLE_STRIDE
        + _parse_index(pod.labels.get(_JOB_INDEX, "")) * job.pods
        + pod.pod_index(),
        run_limit=job.run_limit,
        sibling_jobs=tuple(
            SiblingJobs(each.name, f"{jobset}-{each.name}", each.replicas, attempt) for each in together
        ),
        missing_reference=None,
    )


def read_sibling_job(found: Object, reference: Reference, jobs: SiblingJobs) -> GangMarks | None:
    """Return what a Job of a gang without pods says about its pods; None if it is of another attempt.

    Raises:
        MarkError: a field of the Job has the wrong type.
    """
    labels = ObjectFields.of_part(found, "spec", reference).get_object("template").get_object("metadata")
    if _parse_index(labels.get_object("labels").get_text(_ATTEMPT)) != jobs.attempt:
        return None
    pods = read_job_pods(found, reference)
    return GangMarks(
        group="",
        role=jobs.role,
        controller_uid=found["metadata"]["uid"],
        job_desired=pods.desired,
        job_ended=pods.ended_count,
    )


def _parse_index(index: str) -> int:
    """Return an index or a number of restarts, or 0 if the text is not a number."""
    return int(index) if index.isascii() and index.isdigit() and len(index) < 7 else 0


def _in_exclusive_domain(declaration: GangDeclaration, job: _ReplicatedJob, pod: GangPodView) -> GangDeclaration:
    """Return the gang of a pod whose Job has a topology domain to itself."""
    name = f"{declaration.name}/{job.name}/{_parse_index(pod.labels.get(_JOB_INDEX, ''))}"
    index = pod.pod_index()
    if not index:
        return replace(
            declaration, name=f"{name}/{_LEADER}", is_standalone=True, run_limit=job.run_limit, missing_reference=None
        )
    others = max(1, job.pods - 1)
    return replace(
        declaration,
        name=f"{name}/others",
        minimum=others,
        size=others,
        rank=index,
        run_limit=job.run_limit,
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
    """Return whether a JobSet, or the template of its Jobs, requests a topology domain for each Job."""
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


def read_leader_worker_set(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a LeaderWorkerSet: one group, with the leader and all its workers.

    If workers are created only once their leader is ready or has a node, the leader starts alone and the workers are a
    gang.
    """
    pod = context.pod
    name, index = pod.labels.get(LWS_LABEL), pod.labels.get(_GROUP)
    if not name or not index:
        return None
    group = "/".join(filter(None, (name, index, pod.labels.get(_REVISION))))
    reference = pod.reference_to(LWS_KIND, name, mark=f"label {LWS_LABEL}")
    rank = pod.pod_index(_MEMBER)
    role = "worker" if rank else _LEADER
    found = context.find_object(reference)
    if found is None:
        return GangDeclaration(
            name=group, minimum_source=str(reference), role=role, rank=rank, missing_reference=reference
        )
    spec, text = ObjectFields.of_part(found, "spec", reference), pod.annotations.get(_SIZE)
    size, mark = spec.get_object("leaderWorkerTemplate").get_count("size", missing=1), str(reference)
    if text is not None:
        # The annotation holds the size of the revision that created this group.
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
