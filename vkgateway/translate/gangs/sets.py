"""Sets of Kubernetes' own SIGs: JobSet, several Jobs as one; LeaderWorkerSet, groups of a leader and workers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs import values
from vkgateway.translate.gangs.fields import Fields
from vkgateway.translate.gangs.marks import Kind, MarkError
from vkgateway.translate.gangs.own import OWNER
from vkgateway.translate.gangs.said import ROLE_STRIDE, Asked, Said
from vkgateway.translate.gangs.view import PodView

JOBSET_KIND: Final = Kind("jobset.x-k8s.io", "JobSet", "jobsets")
LWS_KIND: Final = Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets")

JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
_ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
"""How many times all Jobs of the set were made anew before this one."""
_JOB_DOMAIN: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_NODES_LABELLED: Final = "alpha.jobset.sigs.k8s.io/node-selector"
"""Somebody gave each Job its nodes before: then all pods of an exclusive Job are made at once."""

LWS: Final = "leaderworkerset.sigs.k8s.io/name"
_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
_MEMBER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
_REVISION: Final = "leaderworkerset.sigs.k8s.io/template-revision-hash"
_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_LEADER: Final = "leader"


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Equal Jobs of a JobSet, and how many pods run of each at once."""

    name: str
    number: int
    pods: int
    run_limit: float | None
    stage: Hashable
    """Equal for those that are made at the same time."""
    exclusive: bool
    """Each has a domain of the network for itself: its other pods are made once its first one has a node."""


def jobset(asked: Asked) -> Said | None:
    """A JobSet: the pods of all its Jobs; where some Jobs are made only after others, those that are made together.

    With exclusive topology each Job's first pod starts for itself, and its others as a gang. Pods of a restarted set
    are a gang of their own: those of before may still be there, running, ending or done, and none is a member of it.
    """
    pod = asked.pod
    name, role = pod.labels.get(JOBSET), pod.labels.get(_REPLICATED_JOB)
    if not name or not role or asked.own.name == OWNER:
        return None
    reference = pod.beside(JOBSET_KIND, name, mark=f"label {JOBSET}")
    attempt = _number(pod.labels.get(_ATTEMPT, ""))
    if attempt:
        name = f"{name}/restart-{attempt}"
    said = Said(name=name, mark=str(reference), role=role, rank=pod.index(), missing=reference)
    found = asked.look(reference)
    if found is None:
        return said
    jobs = _all_jobs(Fields.metadata(found, reference), Fields.spec(found, reference))
    own = next((each for each in jobs if each.name == role), None)
    if own is None:
        way_out = f"use one of those it has: {', '.join(each.name for each in jobs) or 'none'}"
        raise MarkError(f"label {_REPLICATED_JOB}", role, f"is no job of {reference}", way_out=way_out)
    if own.exclusive:
        return _in_own_domain(said, own, asked.pod)
    together = [each for each in jobs if each.stage == own.stage and not each.exclusive]
    size = max(1, sum(each.number * each.pods for each in together))
    return replace(
        said,
        name=name if len(together) == len(jobs) else f"{name}/{together[0].name}",
        minimum=size,
        size=size,
        role_minimum={each.name: each.number * each.pods for each in together if each.number * each.pods},
        rank=together.index(own) * ROLE_STRIDE + _number(pod.labels.get(_JOB_INDEX, "")) * own.pods + pod.index(),
        run_limit=own.run_limit,
        missing=None,
    )


def _number(index: str) -> int:
    """An index or a number of restarts; what is no number is passed over."""
    return int(index) if index.isascii() and index.isdigit() and len(index) < 7 else 0


def _in_own_domain(said: Said, own: _Jobs, pod: PodView) -> Said:
    """A pod of a Job that has a domain for itself."""
    name = f"{said.name}/{own.name}/{_number(pod.labels.get(_JOB_INDEX, ''))}"
    index = pod.index()
    if not index:
        return replace(said, name=f"{name}/{_LEADER}", alone=True, run_limit=own.run_limit, missing=None)
    others = max(1, own.pods - 1)
    return replace(
        said, name=f"{name}/others", minimum=others, size=others, rank=index, run_limit=own.run_limit, missing=None
    )


def _all_jobs(metadata: Fields, spec: Fields) -> list[_Jobs]:
    in_order = spec.at("startupPolicy").text("startupPolicyOrder") == "InOrder"
    exclusive = _exclusive(metadata)
    return [_jobs(entry, in_order=in_order, exclusive=exclusive) for entry in spec.entries("replicatedJobs")]


def _exclusive(metadata: Fields) -> bool:
    """Whether a JobSet, or the template of its Jobs, asks for a domain of the network for each Job."""
    annotations = metadata.at("annotations")
    return bool(annotations.text(_JOB_DOMAIN)) and _NODES_LABELLED not in annotations


def _jobs(entry: Fields, *, in_order: bool, exclusive: bool) -> _Jobs:
    name, template = entry.text("name"), entry.at("template")
    job = template.at("spec")
    pods = job.count("parallelism", missing=1)
    if "completions" in job:
        pods = min(pods, job.count("completions", missing=1))
    after = tuple((each.text("name"), each.text("status")) for each in entry.entries("dependsOn"))
    limit = job.seconds("activeDeadlineSeconds")
    return _Jobs(
        name=name,
        number=entry.count("replicas", missing=1),
        pods=pods,
        run_limit=limit,
        stage=name if in_order else after,
        exclusive=exclusive or _exclusive(template.at("metadata")),
    )


def leader_worker_set(asked: Asked) -> Said | None:
    """A LeaderWorkerSet: each of its groups by itself, the leader and all its workers.

    Where workers are made only once their leader is ready, or has a node, it starts for itself and they as a gang.
    """
    pod = asked.pod
    name, index = pod.labels.get(LWS), pod.labels.get(_GROUP)
    if not name or not index:
        return None
    group = "/".join(filter(None, (name, index, pod.labels.get(_REVISION))))
    reference = pod.beside(LWS_KIND, name, mark=f"label {LWS}")
    rank = pod.index(_MEMBER)
    role = "worker" if rank else _LEADER
    found = asked.look(reference)
    if found is None:
        return Said(name=group, mark=str(reference), role=role, rank=rank, missing=reference)
    spec, text = Fields.spec(found, reference), pod.annotations.get(_SIZE)
    size, mark = spec.at("leaderWorkerTemplate").count("size", missing=1), str(reference)
    if text is not None:
        # Of the revision that this group was made from.
        size, mark = values.count(f"annotation {_SIZE}", text), f"annotation {_SIZE}"
    workers = max(0, size - 1)
    if workers and _leader_first(found, spec):
        if role == _LEADER:
            return Said(name=f"{group}/leader", alone=True)
        return Said(name=f"{group}/workers", mark=mark, minimum=workers, size=workers, role=role, rank=rank)
    roles = {_LEADER: 1, "worker": workers} if workers else {_LEADER: 1}
    return Said(
        name=group,
        mark=mark,
        minimum=workers + 1,
        size=workers + 1,
        role=role,
        role_minimum=roles,
        core={_LEADER: 1},
        rank=rank,
    )


def _leader_first(found: Object, spec: Fields) -> bool:
    annotations = (found.get("metadata") or {}).get("annotations") or {}
    return spec.text("startupPolicy") == "LeaderReady" or bool(annotations.get(_EXCLUSIVE))
