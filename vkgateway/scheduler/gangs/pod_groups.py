"""Explicit pod groups with a minimum: vkgateway's annotations, Kubernetes, Volcano, coscheduling and Kueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs import mark_values
from vkgateway.scheduler.gangs.declarations import GangDeclaration, PodContext
from vkgateway.scheduler.gangs.fields import ObjectFields
from vkgateway.scheduler.gangs.jobset_lws import JOBSET_LABEL
from vkgateway.scheduler.gangs.marks import Kind, MarkError
from vkgateway.scheduler.gangs.own_annotations import JOB_OWNER, MIN_MARK, NAME_MARK, SIZE_MARK
from vkgateway.scheduler.gangs.pod_view import GangPodView, controller_key

POD_GROUP_KIND: Final = Kind("scheduling.k8s.io", "PodGroup", "podgroups")
WORKLOAD_KIND: Final = Kind("scheduling.k8s.io", "Workload", "workloads")
VOLCANO_KIND: Final = Kind("scheduling.volcano.sh", "PodGroup", "podgroups")
COSCHEDULING_KIND: Final = Kind("scheduling.x-k8s.io", "PodGroup", "podgroups")

VOLCANO_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_TASK: Final = "volcano.sh/task-spec"
_TASK_INDEX: Final = "volcano.sh/task-index"
COSCHEDULING_LABEL: Final = "scheduling.x-k8s.io/pod-group"
_KUEUE_LABEL: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT_ANNOTATION: Final = "kueue.x-k8s.io/pod-group-total-count"
_KUEUE_INDEX: Final = "kueue.x-k8s.io/pod-group-pod-index"
_KUEUE_INDEX_LABEL: Final = "kueue.x-k8s.io/pod-group-pod-index-label"
_KUEUE_RETRIABLE: Final = "kueue.x-k8s.io/retriable-in-group"
_KUEUE_ROLE: Final = "kueue.x-k8s.io/pod-group-role"


def read_vkgateway(context: PodContext) -> GangDeclaration | None:
    """Return the gang of vkgateway's annotations: a name, and a minimum or a size, on every pod of the gang."""
    own = context.own_annotations
    if own.name is None or own.name == JOB_OWNER:
        return None
    if own.minimum is None and own.size is None:
        remedy = "set vkgateway.io/gang-size, vkgateway.io/gang-min or both on its pods"
        raise MarkError(NAME_MARK, own.name, "names a gang without a number of pods", remedy=remedy)
    mark, minimum = (SIZE_MARK, own.size) if own.minimum is None else (MIN_MARK, own.minimum)
    return GangDeclaration(
        name=own.name,
        is_explicit=True,
        minimum_source=mark,
        minimum=minimum,
        size=own.size,
        rank=context.pod.pod_index(),
    )


def read_scheduling_group(context: PodContext) -> GangDeclaration | None:
    """Return the gang of `spec.schedulingGroup`, which names a PodGroup that holds the policy (Kubernetes 1.36,
    KEP-4671).

    A PodGroup that the Job controller created declares no more than the Job. If another mark declares more about that
    Job, the result is None.
    """
    pod = context.pod
    name = (pod.spec.get("schedulingGroup") or {}).get("podGroupName")
    if not name:
        return None
    mark = "spec.schedulingGroup.podGroupName"
    reference = pod.reference_to(POD_GROUP_KIND, name, mark=mark)
    found = context.find_object(reference)
    if found is None:
        return GangDeclaration(name=name, is_explicit=True, rank=pod.pod_index(), missing_reference=reference)
    if (context.own_annotations.is_job_gang or pod.labels.get(JOBSET_LABEL)) and _is_job_owned(found, pod):
        return None
    spec = ObjectFields.of_part(found, "spec", reference)
    declaration = _from_policy(name, spec.get_object("schedulingPolicy"), rank=pod.pod_index())
    levels = [entry.get_text("key") for entry in spec.get_object("schedulingConstraints").get_entries("topology")]
    return replace(
        declaration, elastic=False if _is_disrupted_together(spec) else None, required_level=next(iter(levels), "")
    )


def read_workload(context: PodContext) -> GangDeclaration | None:
    """Return the gang of `spec.workloadRef`, which names a Workload, one of its groups, and maybe a replica (Kubernetes
    1.35).
    """
    pod = context.pod
    wanted = pod.spec.get("workloadRef") or {}
    if not wanted.get("name"):
        return None
    group = wanted.get("podGroup") or ""
    name = "/".join(filter(None, (wanted["name"], group, wanted.get("podGroupReplicaKey"))))
    reference = pod.reference_to(WORKLOAD_KIND, wanted["name"], mark="spec.workloadRef.name")
    found = context.find_object(reference)
    if found is None:
        return GangDeclaration(name=name, is_explicit=True, rank=pod.pod_index(), missing_reference=reference)
    groups = {
        entry.get_text("name"): entry
        for entry in ObjectFields.of_part(found, "spec", reference).get_entries("podGroups")
    }
    if group not in groups:
        remedy = f"use one of: {', '.join(groups) or 'none'}"
        raise MarkError("spec.workloadRef.podGroup", group, f"is not a group of {reference}", remedy=remedy)
    return _from_policy(name, groups[group].get_object("policy"), rank=pod.pod_index())


def read_volcano(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a Volcano PodGroup, which an annotation names.

    `minTaskMember` counts by task, another annotation.
    """
    pod = context.pod
    key = next((key for key in VOLCANO_ANNOTATIONS if pod.annotations.get(key)), None)
    if key is None:
        return None
    name = pod.annotations[key]
    reference = pod.reference_to(VOLCANO_KIND, name, mark=f"annotation {key}")
    role = pod.annotations.get(_TASK) or pod.labels.get(_TASK) or ""
    declaration = GangDeclaration(
        name=name, is_explicit=True, role=role, rank=pod.pod_index(_TASK_INDEX), missing_reference=reference
    )
    found = context.find_object(reference)
    if found is None:
        return declaration
    spec = ObjectFields.of_part(found, "spec", reference)
    roles = spec.get_object("minTaskMember").get_counts()
    minimum = max(1, spec.get_count("minMember", missing=1), sum(roles.values()))
    return replace(
        declaration,
        minimum_source=spec.field_path("minMember"),
        minimum=minimum,
        role_minimum=roles,
        required_roles=roles,
        missing_reference=None,
    )


def read_coscheduling(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a PodGroup of the coscheduling plugin (scheduler-plugins), which a label names."""
    pod = context.pod
    name = pod.labels.get(COSCHEDULING_LABEL)
    if not name:
        return None
    mark = f"label {COSCHEDULING_LABEL}"
    reference = pod.reference_to(COSCHEDULING_KIND, name, mark=mark)
    found = context.find_object(reference)
    if found is None:
        return GangDeclaration(name=name, is_explicit=True, rank=pod.pod_index(), missing_reference=reference)
    spec = ObjectFields.of_part(found, "spec", reference)
    minimum = max(1, spec.get_count("minMember", missing=1))
    return GangDeclaration(
        name=name, is_explicit=True, minimum_source=spec.field_path("minMember"), minimum=minimum, rank=pod.pod_index()
    )


def read_kueue(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a Kueue pod group: a label names it, an annotation holds its size, and it starts all or
    nothing.
    """
    pod = context.pod
    name = pod.labels.get(_KUEUE_LABEL)
    if not name:
        return None
    mark = f"annotation {KUEUE_COUNT_ANNOTATION}"
    text = pod.annotations.get(KUEUE_COUNT_ANNOTATION)
    if text is None:
        remedy = f"set the annotation {KUEUE_COUNT_ANNOTATION} on its pods"
        raise MarkError(f"label {_KUEUE_LABEL}", name, "names a group without a number of pods", remedy=remedy)
    number = mark_values.parse_count(mark, text)
    rank = pod.pod_index(pod.annotations.get(_KUEUE_INDEX_LABEL, _KUEUE_INDEX), _KUEUE_INDEX)
    role = pod.labels.get(_KUEUE_ROLE, "")
    return GangDeclaration(
        name=name,
        is_explicit=True,
        minimum_source=mark,
        minimum=number,
        size=number,
        role=role,
        rank=rank,
        replaces_failed=pod.annotations.get(_KUEUE_RETRIABLE) != "false",
    )


def _is_job_owned(group: Object, pod: GangPodView) -> bool:
    return pod.controller_key[:2] == ("batch", "Job") and controller_key(group) == pod.controller_key


def _from_policy(name: str, policy: ObjectFields, *, rank: int) -> GangDeclaration:
    """Return the gang of a Kubernetes group policy: `gang` with a minimum, or `basic`, which is no gang."""
    if not policy.is_object("gang"):
        return GangDeclaration(name=name, is_standalone=True)
    gang = policy.get_object("gang")
    minimum = max(1, gang.get_count("minCount", missing=1))
    return GangDeclaration(
        name=name, is_explicit=True, minimum_source=gang.field_path("minCount"), minimum=minimum, rank=rank
    )


def _is_disrupted_together(group: ObjectFields) -> bool:
    """Return whether the pods of a PodGroup may only be disrupted together.

    The mode is `PodGroup` in Kubernetes 1.36, and a field `all` from 1.37 on.
    """
    name = "disruptionMode"
    return "all" in group.get_object(name) if group.is_object(name) else group.get_text(name) == "PodGroup"
