"""Ways that name a group and its minimum outright: our annotations, Kubernetes, Volcano, coscheduling, Kueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs import mark_values
from vkgateway.translate.gangs.declarations import GangDeclaration, PodContext
from vkgateway.translate.gangs.fields import ObjectFields
from vkgateway.translate.gangs.jobset_lws import JOBSET_LABEL
from vkgateway.translate.gangs.marks import Kind, MarkError
from vkgateway.translate.gangs.own_annotations import JOB_OWNER, MIN_MARK, NAME_MARK, SIZE_MARK
from vkgateway.translate.gangs.pod_view import GangPodView, controller_key

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


def read_vkgateway(asked: PodContext) -> GangDeclaration | None:
    """Our own annotations: a name, and a minimum or a size on every pod of the gang."""
    own = asked.own_annotations
    if own.name is None or own.name == JOB_OWNER:
        return None
    if own.minimum is None and own.size is None:
        way_out = "add vkgateway.io/gang-size, vkgateway.io/gang-min or both to its pods"
        raise MarkError(NAME_MARK, own.name, "names a gang, but nothing says how many pods it has", way_out=way_out)
    mark, minimum = (SIZE_MARK, own.size) if own.minimum is None else (MIN_MARK, own.minimum)
    return GangDeclaration(
        name=own.name, is_explicit=True, minimum_source=mark, minimum=minimum, size=own.size, rank=asked.pod.pod_index()
    )


def read_scheduling_group(asked: PodContext) -> GangDeclaration | None:
    """Kubernetes from 1.36 on: `spec.schedulingGroup` names a PodGroup, which holds the policy (KEP-4671).

    One that the Job controller made says no more than the Job itself: whoever says more of that Job is asked instead.
    """
    pod = asked.pod
    name = (pod.spec.get("schedulingGroup") or {}).get("podGroupName")
    if not name:
        return None
    mark = "spec.schedulingGroup.podGroupName"
    reference = pod.reference_to(POD_GROUP_KIND, name, mark=mark)
    found = asked.find_object(reference)
    if found is None:
        return GangDeclaration(name=name, is_explicit=True, rank=pod.pod_index(), missing_reference=reference)
    if (asked.own_annotations.is_job_gang or pod.labels.get(JOBSET_LABEL)) and _is_job_owned(found, pod):
        return None
    spec = ObjectFields.of_spec(found, reference)
    said = _from_policy(name, spec.get_object("schedulingPolicy"), rank=pod.pod_index())
    levels = [entry.get_text("key") for entry in spec.get_object("schedulingConstraints").get_entries("topology")]
    return replace(said, elastic=False if _is_disrupted_together(spec) else None, required_level=next(iter(levels), ""))


def read_workload(asked: PodContext) -> GangDeclaration | None:
    """Kubernetes 1.35: `spec.workloadRef` names a Workload and one of its groups, and may tell replicas of it apart."""
    pod = asked.pod
    wanted = pod.spec.get("workloadRef") or {}
    if not wanted.get("name"):
        return None
    group = wanted.get("podGroup") or ""
    name = "/".join(filter(None, (wanted["name"], group, wanted.get("podGroupReplicaKey"))))
    reference = pod.reference_to(WORKLOAD_KIND, wanted["name"], mark="spec.workloadRef.name")
    found = asked.find_object(reference)
    if found is None:
        return GangDeclaration(name=name, is_explicit=True, rank=pod.pod_index(), missing_reference=reference)
    groups = {
        entry.get_text("name"): entry for entry in ObjectFields.of_spec(found, reference).get_entries("podGroups")
    }
    if group not in groups:
        way_out = f"use one of those it has: {', '.join(groups) or 'none'}"
        raise MarkError("spec.workloadRef.podGroup", group, f"is no group of {reference}", way_out=way_out)
    return _from_policy(name, groups[group].get_object("policy"), rank=pod.pod_index())


def read_volcano(asked: PodContext) -> GangDeclaration | None:
    """Volcano: an annotation names its PodGroup; `minTaskMember` counts by task, told by another annotation."""
    pod = asked.pod
    key = next((key for key in VOLCANO_ANNOTATIONS if pod.annotations.get(key)), None)
    if key is None:
        return None
    name = pod.annotations[key]
    reference = pod.reference_to(VOLCANO_KIND, name, mark=f"annotation {key}")
    role = pod.annotations.get(_TASK) or pod.labels.get(_TASK) or ""
    said = GangDeclaration(
        name=name, is_explicit=True, role=role, rank=pod.pod_index(_TASK_INDEX), missing_reference=reference
    )
    found = asked.find_object(reference)
    if found is None:
        return said
    spec = ObjectFields.of_spec(found, reference)
    roles = spec.get_object("minTaskMember").get_counts()
    minimum = max(1, spec.get_count("minMember", missing=1), sum(roles.values()))
    return replace(
        said,
        minimum_source=spec.field_path("minMember"),
        minimum=minimum,
        role_minimum=roles,
        required_roles=roles,
        missing_reference=None,
    )


def read_coscheduling(asked: PodContext) -> GangDeclaration | None:
    """The coscheduling plugin of scheduler-plugins: a label names its PodGroup."""
    pod = asked.pod
    name = pod.labels.get(COSCHEDULING_LABEL)
    if not name:
        return None
    mark = f"label {COSCHEDULING_LABEL}"
    reference = pod.reference_to(COSCHEDULING_KIND, name, mark=mark)
    found = asked.find_object(reference)
    if found is None:
        return GangDeclaration(name=name, is_explicit=True, rank=pod.pod_index(), missing_reference=reference)
    spec = ObjectFields.of_spec(found, reference)
    minimum = max(1, spec.get_count("minMember", missing=1))
    return GangDeclaration(
        name=name, is_explicit=True, minimum_source=spec.field_path("minMember"), minimum=minimum, rank=pod.pod_index()
    )


def read_kueue(asked: PodContext) -> GangDeclaration | None:
    """Kueue's groups of plain pods: a label names the group, an annotation counts it; all of it, or nothing."""
    pod = asked.pod
    name = pod.labels.get(_KUEUE_LABEL)
    if not name:
        return None
    mark = f"annotation {KUEUE_COUNT_ANNOTATION}"
    text = pod.annotations.get(KUEUE_COUNT_ANNOTATION)
    if text is None:
        way_out = f"add the annotation {KUEUE_COUNT_ANNOTATION} to its pods"
        raise MarkError(f"label {_KUEUE_LABEL}", name, "names a group, but nothing says how many pods", way_out=way_out)
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
    """A group with one of Kubernetes' policies: `gang` with a minimum, or `basic`, which is no gang."""
    if not policy.is_object("gang"):
        return GangDeclaration(name=name, is_standalone=True)
    gang = policy.get_object("gang")
    minimum = max(1, gang.get_count("minCount", missing=1))
    return GangDeclaration(
        name=name, is_explicit=True, minimum_source=gang.field_path("minCount"), minimum=minimum, rank=rank
    )


def _is_disrupted_together(group: ObjectFields) -> bool:
    """Whether a PodGroup's pods may only be disrupted together: `PodGroup` in 1.36, a field `all` from 1.37 on."""
    name = "disruptionMode"
    return "all" in group.get_object(name) if group.is_object(name) else group.get_text(name) == "PodGroup"
