"""Which pods carry the mark of a gang: told from the pod alone, the same way in every place that asks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from vkgateway.model.names import (
    GANG_ANNOTATION,
    GANG_MAX_ANNOTATION,
    GANG_MIN_ANNOTATION,
    GANG_SIZE_ANNOTATION,
)
from vkgateway.translate.gangs.clusters import RAY_CLUSTER, RAY_KIND
from vkgateway.translate.gangs.groups import (
    COSCHEDULING,
    COSCHEDULING_LABEL,
    KUEUE_COUNT,
    POD_GROUP,
    VOLCANO,
    VOLCANO_NAMES,
    WORKLOAD,
)
from vkgateway.translate.gangs.marks import Kind
from vkgateway.translate.gangs.sets import JOBSET, JOBSET_KIND, LWS, LWS_KIND
from vkgateway.translate.gangs.training import TRAINING_JOB, job_kinds
from vkgateway.translate.gangs.view import PodView

OWN_MARKS: Final = (GANG_ANNOTATION, GANG_MIN_ANNOTATION, GANG_SIZE_ANNOTATION, GANG_MAX_ANNOTATION)
"""Our marks. As labels they are an error, which the tenant reads only if the pod is governed."""

MARK_ANNOTATIONS: Final = (
    *OWN_MARKS,
    *VOLCANO_NAMES,
    KUEUE_COUNT,
)
"""A pod group of Kueue is known by its size: the label with its name alone, which other programs use, too, is none."""

MARK_LABELS: Final = (
    *OWN_MARKS,
    COSCHEDULING_LABEL,
    TRAINING_JOB,
    RAY_CLUSTER,
    JOBSET,
    LWS,
)
"""Labels of Spark applications are not among them: a driver runs alone, and executors start from the first one on."""

MARK_FIELDS: Final = ("schedulingGroup", "workloadRef")
"""Fields of a pod's spec by which Kubernetes names a PodGroup (1.36) or a Workload (1.35)."""

_BY_ITSELF: Final = frozenset({*OWN_MARKS, KUEUE_COUNT})
"""Marks that count whatever kinds there are: the pods alone say how many of them the gang takes."""

_KIND_OF: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(VOLCANO_NAMES, VOLCANO),
    COSCHEDULING_LABEL: COSCHEDULING,
    RAY_CLUSTER: RAY_KIND,
    JOBSET: JOBSET_KIND,
    LWS: LWS_KIND,
    "schedulingGroup": POD_GROUP,
    "workloadRef": WORKLOAD,
}
"""The kind of object that gives each other mark its meaning. That of a training job depends on the pod, too."""

_ANNOTATIONS: Final = frozenset(MARK_ANNOTATIONS)
_LABELS: Final = frozenset(MARK_LABELS)


def carries_mark(pod: Mapping[str, Any]) -> bool:
    """Return whether a label, an annotation or a field of a pod names a gang.

    The admission policy of each tenant (`admission-gate.yaml.j2`) follows the same rule.
    """
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    return (
        not _ANNOTATIONS.isdisjoint(metadata.get("annotations") or ())
        or not _LABELS.isdisjoint(metadata.get("labels") or ())
        or any(spec.get(field) for field in MARK_FIELDS)
    )


def written_marks(*, labels: Iterable[str], annotations: Iterable[str]) -> frozenset[str]:
    """Return the marks among the keys of a pod's labels and annotations."""
    return _LABELS.intersection(labels) | _ANNOTATIONS.intersection(annotations)


def mark_kinds(pod: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Return the kinds of the objects that a pod's marks refer to, each once; none for marks that count by themselves.

    Of a training job whose kind the pod does not tell, they are all that it may be.
    """
    kinds: dict[Kind, None] = {}
    for mark in _marks(pod):
        if mark in _KIND_OF:
            kinds[_KIND_OF[mark]] = None
        elif mark == TRAINING_JOB:
            kinds |= dict.fromkeys(job_kinds(PodView(dict(pod))))
    return tuple(kinds)


def needs_kind(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod carries marks, and all of them mean something only where their kind is served."""
    marks = _marks(pod)
    return bool(marks) and _BY_ITSELF.isdisjoint(marks)


def is_void(pod: Mapping[str, Any], unserved: Container[Kind]) -> bool:
    """Return whether a pod carries marks, and none of them means anything: none of their kinds is served."""
    return needs_kind(pod) and all(kind in unserved for kind in mark_kinds(pod))


def _marks(pod: Mapping[str, Any]) -> list[str]:
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    written = written_marks(labels=metadata.get("labels") or (), annotations=metadata.get("annotations") or ())
    return [*sorted(written), *(field for field in MARK_FIELDS if spec.get(field))]
