"""Detection of gang marks from the pod alone, with one rule for every caller.

Admission policy, webhook, gateway and CLI must agree which pods wait, and the object that a mark names may not exist
yet. So a pod of a group that turns out to be no gang is scheduled by the arbiter, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from vkgateway.api.names import (
    GANG_ANNOTATION,
    GANG_MAX_ANNOTATION,
    GANG_MIN_ANNOTATION,
    GANG_SIZE_ANNOTATION,
    RESERVED_PREFIX,
)
from vkgateway.scheduler.gangs.application_clusters import RAY_CLUSTER_LABEL, RAY_KIND
from vkgateway.scheduler.gangs.jobset_lws import JOBSET_KIND, JOBSET_LABEL, LWS_KIND, LWS_LABEL
from vkgateway.scheduler.gangs.marks import Kind
from vkgateway.scheduler.gangs.pod_groups import (
    COSCHEDULING_KIND,
    COSCHEDULING_LABEL,
    KUEUE_COUNT_ANNOTATION,
    POD_GROUP_KIND,
    VOLCANO_ANNOTATIONS,
    VOLCANO_KIND,
    WORKLOAD_KIND,
)
from vkgateway.scheduler.gangs.pod_view import GangPodView
from vkgateway.scheduler.gangs.training_jobs import TRAINING_JOB_LABEL, training_kinds

if TYPE_CHECKING:
    from vkgateway.runtime.views.pods import TenantPodView

OWN_MARKS: Final = (GANG_ANNOTATION, GANG_MIN_ANNOTATION, GANG_SIZE_ANNOTATION, GANG_MAX_ANNOTATION)
"""Marks of vkgateway. As labels they are an error, which is reported only for governed pods."""

MARK_ANNOTATIONS: Final = (
    *OWN_MARKS,
    *VOLCANO_ANNOTATIONS,
    KUEUE_COUNT_ANNOTATION,
)
"""Kueue pod groups are detected by their size. Other programs also use the label with the group's name."""

MARK_LABELS: Final = (
    *OWN_MARKS,
    COSCHEDULING_LABEL,
    TRAINING_JOB_LABEL,
    RAY_CLUSTER_LABEL,
    JOBSET_LABEL,
    LWS_LABEL,
)
"""Labels of Spark applications are not included: a driver runs alone, and executors start from the first one on."""

MARK_FIELDS: Final = ("schedulingGroup", "workloadRef")
"""Fields of a pod's spec by which Kubernetes names a PodGroup (1.36) or a Workload (1.35)."""

_STANDALONE_MARKS: Final = frozenset({*OWN_MARKS, KUEUE_COUNT_ANNOTATION})
"""Marks that are valid whatever kinds are served: the pods alone declare the gang's pod count."""

_KINDS_BY_MARK: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(VOLCANO_ANNOTATIONS, VOLCANO_KIND),
    COSCHEDULING_LABEL: COSCHEDULING_KIND,
    RAY_CLUSTER_LABEL: RAY_KIND,
    JOBSET_LABEL: JOBSET_KIND,
    LWS_LABEL: LWS_KIND,
    "schedulingGroup": POD_GROUP_KIND,
    "workloadRef": WORKLOAD_KIND,
}
"""Kind of the object that each other mark refers to. The kind of a training job depends on the pod, too."""

_GANG_HINTS = (
    f"{RESERVED_PREFIX}gang",
    "training.kubeflow.org/",
    "ray.io/",
    "spark-",
    "sparkoperator.k8s.io/",
    "scheduling.k8s.io/",
    "scheduling.x-k8s.io/",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.volcano.sh/",
    "volcano.sh/",
    "kueue.x-k8s.io/",
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
)
"""Prefixes of labels and annotations that make a pod a member of a gang."""

_ANNOTATIONS: Final = frozenset(MARK_ANNOTATIONS)
_LABELS: Final = frozenset(MARK_LABELS)


def has_mark(pod: Mapping[str, Any]) -> bool:
    """Return whether a label, an annotation or a field of a pod names a gang.

    The admission policy of each tenant (`governed.j2`) follows the same rule.
    """
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    return (
        not _ANNOTATIONS.isdisjoint(metadata.get("annotations") or ())
        or not _LABELS.isdisjoint(metadata.get("labels") or ())
        or any(spec.get(field) for field in MARK_FIELDS)
    )


def may_be_member(view: TenantPodView) -> bool:
    """Return whether a pod that requests nothing governed may be a member of a gang, judged by its narrow view."""
    marks = (*view.metadata.labels, *view.metadata.annotations)
    return view.names_group or any(name.startswith(_GANG_HINTS) for name in marks)


def find_marks(*, labels: Iterable[str], annotations: Iterable[str]) -> frozenset[str]:
    """Return the marks among the keys of a pod's labels and annotations."""
    return _LABELS.intersection(labels) | _ANNOTATIONS.intersection(annotations)


def mark_kinds(pod: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Return the kinds of the objects that a pod's marks refer to, each once.

    Standalone marks refer to none.

    For a training job of unknown kind, the result contains all possible kinds.
    """
    kinds: dict[Kind, None] = {}
    for mark in _pod_marks(pod):
        if mark in _KINDS_BY_MARK:
            kinds[_KINDS_BY_MARK[mark]] = None
        elif mark == TRAINING_JOB_LABEL:
            kinds |= dict.fromkeys(training_kinds(GangPodView(dict(pod))))
    return tuple(kinds)


def needs_served_kind(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod carries marks, and all of them are valid only if their kind is served."""
    marks = _pod_marks(pod)
    return bool(marks) and _STANDALONE_MARKS.isdisjoint(marks)


def has_unserved_marks(pod: Mapping[str, Any], unserved: Container[Kind]) -> bool:
    """Return whether a pod carries marks, and none of their kinds is served."""
    return needs_served_kind(pod) and all(kind in unserved for kind in mark_kinds(pod))


def _pod_marks(pod: Mapping[str, Any]) -> list[str]:
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    written = find_marks(labels=metadata.get("labels") or (), annotations=metadata.get("annotations") or ())
    return [*sorted(written), *(field for field in MARK_FIELDS if spec.get(field))]
