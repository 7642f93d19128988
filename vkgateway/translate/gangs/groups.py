"""Ways that name a group and its minimum outright: our annotations, Kubernetes, Volcano, coscheduling, Kueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs import values
from vkgateway.translate.gangs.fields import Fields
from vkgateway.translate.gangs.marks import Kind, MarkError
from vkgateway.translate.gangs.own import MIN, NAME, OWNER, SIZE
from vkgateway.translate.gangs.said import Asked, Said
from vkgateway.translate.gangs.sets import JOBSET
from vkgateway.translate.gangs.view import PodView, controller

POD_GROUP: Final = Kind("scheduling.k8s.io", "PodGroup", "podgroups")
WORKLOAD: Final = Kind("scheduling.k8s.io", "Workload", "workloads")
VOLCANO: Final = Kind("scheduling.volcano.sh", "PodGroup", "podgroups")
COSCHEDULING: Final = Kind("scheduling.x-k8s.io", "PodGroup", "podgroups")

VOLCANO_NAMES: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_TASK: Final = "volcano.sh/task-spec"
_TASK_INDEX: Final = "volcano.sh/task-index"
COSCHEDULING_LABEL: Final = "scheduling.x-k8s.io/pod-group"
_KUEUE_LABEL: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
_KUEUE_INDEX: Final = "kueue.x-k8s.io/pod-group-pod-index"
_KUEUE_INDEX_LABEL: Final = "kueue.x-k8s.io/pod-group-pod-index-label"
_KUEUE_RETRIABLE: Final = "kueue.x-k8s.io/retriable-in-group"
_KUEUE_ROLE: Final = "kueue.x-k8s.io/pod-group-role"


def annotated(asked: Asked) -> Said | None:
    """Our own annotations: a name, and a minimum or a size on every pod of the gang."""
    own = asked.own
    if own.name is None or own.name == OWNER:
        return None
    if own.minimum is None and own.size is None:
        way_out = "add vkgateway.io/gang-size, vkgateway.io/gang-min or both to its pods"
        raise MarkError(NAME, own.name, "names a gang, but nothing says how many pods it has", way_out=way_out)
    mark, minimum = (SIZE, own.size) if own.minimum is None else (MIN, own.minimum)
    return Said(name=own.name, firm=True, mark=mark, minimum=minimum, size=own.size, rank=asked.pod.index())


def scheduling_group(asked: Asked) -> Said | None:
    """Kubernetes from 1.36 on: `spec.schedulingGroup` names a PodGroup, which holds the policy (KEP-4671).

    One that the Job controller made says no more than the Job itself: whoever says more of that Job is asked instead.
    """
    pod = asked.pod
    name = (pod.spec.get("schedulingGroup") or {}).get("podGroupName")
    if not name:
        return None
    mark = "spec.schedulingGroup.podGroupName"
    reference = pod.beside(POD_GROUP, name, mark=mark)
    found = asked.look(reference)
    if found is None:
        return Said(name=name, firm=True, rank=pod.index(), missing=reference)
    if (asked.own.of_owner or pod.labels.get(JOBSET)) and _made_for_its_job(found, pod):
        return None
    spec = Fields.spec(found, reference)
    said = _by_policy(name, spec.at("schedulingPolicy"), rank=pod.index())
    levels = [entry.text("key") for entry in spec.at("schedulingConstraints").entries("topology")]
    return replace(said, elastic=False if _as_a_whole(spec) else None, required_level=next(iter(levels), ""))


def workload(asked: Asked) -> Said | None:
    """Kubernetes 1.35: `spec.workloadRef` names a Workload and one of its groups, and may tell replicas of it apart."""
    pod = asked.pod
    wanted = pod.spec.get("workloadRef") or {}
    if not wanted.get("name"):
        return None
    group = wanted.get("podGroup") or ""
    name = "/".join(filter(None, (wanted["name"], group, wanted.get("podGroupReplicaKey"))))
    reference = pod.beside(WORKLOAD, wanted["name"], mark="spec.workloadRef.name")
    found = asked.look(reference)
    if found is None:
        return Said(name=name, firm=True, rank=pod.index(), missing=reference)
    groups = {entry.text("name"): entry for entry in Fields.spec(found, reference).entries("podGroups")}
    if group not in groups:
        way_out = f"use one of those it has: {', '.join(groups) or 'none'}"
        raise MarkError("spec.workloadRef.podGroup", group, f"is no group of {reference}", way_out=way_out)
    return _by_policy(name, groups[group].at("policy"), rank=pod.index())


def volcano(asked: Asked) -> Said | None:
    """Volcano: an annotation names its PodGroup; `minTaskMember` counts by task, told by another annotation."""
    pod = asked.pod
    key = next((key for key in VOLCANO_NAMES if pod.annotations.get(key)), None)
    if key is None:
        return None
    name = pod.annotations[key]
    reference = pod.beside(VOLCANO, name, mark=f"annotation {key}")
    role = pod.annotations.get(_TASK) or pod.labels.get(_TASK) or ""
    said = Said(name=name, firm=True, role=role, rank=pod.index(_TASK_INDEX), missing=reference)
    found = asked.look(reference)
    if found is None:
        return said
    spec = Fields.spec(found, reference)
    roles = spec.at("minTaskMember").counts()
    minimum = max(1, spec.count("minMember", missing=1), sum(roles.values()))
    return replace(said, mark=spec.mark("minMember"), minimum=minimum, role_minimum=roles, core=roles, missing=None)


def coscheduling(asked: Asked) -> Said | None:
    """The coscheduling plugin of scheduler-plugins: a label names its PodGroup."""
    pod = asked.pod
    name = pod.labels.get(COSCHEDULING_LABEL)
    if not name:
        return None
    mark = f"label {COSCHEDULING_LABEL}"
    reference = pod.beside(COSCHEDULING, name, mark=mark)
    found = asked.look(reference)
    if found is None:
        return Said(name=name, firm=True, rank=pod.index(), missing=reference)
    spec = Fields.spec(found, reference)
    minimum = max(1, spec.count("minMember", missing=1))
    return Said(name=name, firm=True, mark=spec.mark("minMember"), minimum=minimum, rank=pod.index())


def kueue(asked: Asked) -> Said | None:
    """Kueue's groups of plain pods: a label names the group, an annotation counts it; all of it, or nothing."""
    pod = asked.pod
    name = pod.labels.get(_KUEUE_LABEL)
    if not name:
        return None
    mark = f"annotation {KUEUE_COUNT}"
    text = pod.annotations.get(KUEUE_COUNT)
    if text is None:
        way_out = f"add the annotation {KUEUE_COUNT} to its pods"
        raise MarkError(f"label {_KUEUE_LABEL}", name, "names a group, but nothing says how many pods", way_out=way_out)
    number = values.count(mark, text)
    rank = pod.index(pod.annotations.get(_KUEUE_INDEX_LABEL, _KUEUE_INDEX), _KUEUE_INDEX)
    role = pod.labels.get(_KUEUE_ROLE, "")
    return Said(
        name=name,
        firm=True,
        mark=mark,
        minimum=number,
        size=number,
        role=role,
        rank=rank,
        replaces_failed=pod.annotations.get(_KUEUE_RETRIABLE) != "false",
    )


def _made_for_its_job(group: Object, pod: PodView) -> bool:
    return pod.controller[:2] == ("batch", "Job") and controller(group) == pod.controller


def _by_policy(name: str, policy: Fields, *, rank: int) -> Said:
    """A group with one of Kubernetes' policies: `gang` with a minimum, or `basic`, which is no gang."""
    if not policy.is_object("gang"):
        return Said(name=name, alone=True)
    gang = policy.at("gang")
    minimum = max(1, gang.count("minCount", missing=1))
    return Said(name=name, firm=True, mark=gang.mark("minCount"), minimum=minimum, rank=rank)


def _as_a_whole(group: Fields) -> bool:
    """Whether a PodGroup's pods may only be disrupted together: `PodGroup` in 1.36, a field `all` from 1.37 on."""
    name = "disruptionMode"
    return "all" in group.at(name) if group.is_object(name) else group.text(name) == "PodGroup"
