"""Which pods carry the mark of a gang: told from the pod alone, the same way in every place that asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vkgateway.model.names import (
    GANG_ANNOTATION,
    GANG_MAX_ANNOTATION,
    GANG_MIN_ANNOTATION,
    GANG_SIZE_ANNOTATION,
)

OWN_MARKS: Final = (GANG_ANNOTATION, GANG_MIN_ANNOTATION, GANG_SIZE_ANNOTATION, GANG_MAX_ANNOTATION)
"""Our marks. As labels they are an error, which the tenant reads only if the pod is governed."""

MARK_ANNOTATIONS: Final = (
    *OWN_MARKS,
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name",
    "kueue.x-k8s.io/pod-group-total-count",
)
"""A pod group of Kueue is known by its size: the label with its name alone, which other programs use, too, is none."""

MARK_LABELS: Final = (
    *OWN_MARKS,
    "scheduling.x-k8s.io/pod-group",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
)
"""Labels of Spark applications are not among them: a driver runs alone, and executors start from the first one on."""

MARK_FIELDS: Final = ("schedulingGroup", "workloadRef")
"""Fields of a pod's spec by which Kubernetes names a PodGroup (1.36) or a Workload (1.35)."""

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
