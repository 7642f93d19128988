"""Labels, annotations and ownership marks of a compute pod."""

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vkgateway.model.names import (
    GROUP,
    MIRROR_FINALIZER,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    POOL_LABEL,
    TENANT_LABEL,
    UID_ANNOTATION,
    is_reserved,
    is_reserved_annotation,
)
from vkgateway.model.objects import Object
from vkgateway.translate import downward_api
from vkgateway.translate.context import PoolContext, TenantContext
from vkgateway.translate.labels import labels_to_compute

COPIED_ANNOTATION: Final = "vkgateway.io/copied"
"""Keys of the copied labels and, after `;`, annotations.

They distinguish keys that the tenant removed from keys that the compute cluster added.
"""

IMAGES_ANNOTATION: Final = "vkgateway.io/images"
"""Checksums of the images in the tenant pod, init containers first.

An image that a webhook of the compute cluster replaced is not a change by the tenant.
"""

READINESS_GATES_ANNOTATION: Final = "vkgateway.io/readiness-gates"
"""Annotation of compute pods: condition types of the tenant pod's readiness gates, separated by commas."""

_KUBERNETES_CONDITIONS: Final = frozenset(
    {
        "AllContainersRestarting",
        "ContainersReady",
        "DisruptionTarget",
        "Initialized",
        "PodReadyToStartContainers",
        "PodResizeInProgress",
        "PodResizePending",
        "PodScheduled",
        "Ready",
    }
)
"""Conditions that kubelets, schedulers and Kubernetes' controllers write (core/v1 PodConditionType)."""
_SUMMED_CONTAINERS: Final = ("initContainers", "containers")
_OUR_LABELS: Final = frozenset({TENANT_LABEL, POOL_LABEL})


def forward_metadata(
    pod: Object, *, tenant: TenantContext, pool: PoolContext, namespace: str, derived: Mapping[str, str]
) -> Object:
    """Return the metadata of the compute pod.

    `derived` are the annotations that its downward API volumes read, with the field of the tenant pod that each holds.
    """
    source = pod["metadata"]
    labels = forward_labels(source, tenant=tenant, pool=pool)
    return {
        "name": source["name"],
        "namespace": namespace,
        "labels": labels,
        "annotations": forward_annotations(pod, tenant=tenant, labels=labels, derived=derived),
        "finalizers": [MIRROR_FINALIZER],
    }


def forward_labels(source: Mapping[str, Any], *, tenant: TenantContext, pool: PoolContext) -> dict[str, str]:
    """Return the labels of the compute pod: the tenant's, translated by `labels`, overridden by vkgateway's."""
    labels = labels_to_compute(source.get("labels"), tenant.tenant_only_prefixes)
    labels[TENANT_LABEL] = tenant.name
    labels[POOL_LABEL] = pool.name
    return labels


def forward_annotations(
    pod: Object, *, tenant: TenantContext, labels: Mapping[str, str], derived: Mapping[str, str]
) -> dict[str, str]:
    """Return the annotations of the compute pod: the tenant's, ownership, and state for later updates.

    `labels` are those of the compute pod (`forward_labels`).
    """
    source = pod["metadata"]
    annotations = _forwardable_annotations(source.get("annotations"), tenant.tenant_only_annotations)
    copied = sorted(labels.keys() - _OUR_LABELS)
    if copied or annotations:
        annotations[COPIED_ANNOTATION] = f"{','.join(copied)};{','.join(sorted(annotations))}"
    gates = render_gates(pod.get("spec") or {})
    if gates:
        annotations[READINESS_GATES_ANNOTATION] = gates
    for name in sorted(derived):
        annotations[name] = downward_api.tenant_value(
            derived[name], labels=source.get("labels") or {}, annotations=source.get("annotations") or {}
        )
    annotations[IMAGES_ANNOTATION] = ",".join(_image_sums(pod.get("spec") or {}))
    annotations[NAMESPACE_ANNOTATION] = source["namespace"]
    annotations[NAME_ANNOTATION] = source["name"]
    annotations[UID_ANNOTATION] = source["uid"]
    return annotations


def unchanged_images(pod: Object, annotations: Mapping[str, str]) -> set[str]:
    """Return the names of tenant containers whose current image was forwarded. `annotations` are the compute pod's."""
    spec = pod["spec"]
    sums, sent = _image_sums(spec), annotations.get(IMAGES_ANNOTATION, "").split(",")
    if len(sums) != len(sent):
        return set()
    names = (container["name"] for kind in _SUMMED_CONTAINERS for container in spec.get(kind) or ())
    return {name for name, new, old in zip(names, sums, sent, strict=True) if new == old}


def _image_sums(spec: Mapping[str, Any]) -> list[str]:
    images = (container.get("image") or "" for kind in _SUMMED_CONTAINERS for container in spec.get(kind) or ())
    return [f"{zlib.crc32(image.encode()):08x}" for image in images]


def _forwardable_annotations(annotations: Mapping[str, str] | None, staying: tuple[str, ...]) -> dict[str, str]:
    """Return the annotations without reserved ones and without those that have a prefix of `staying`."""
    if not annotations:
        return {}
    return {
        key: value
        for key, value in annotations.items()
        if not key.startswith(staying) and not (GROUP in key and is_reserved_annotation(key))
    }


def copied_keys(annotations: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Return the keys of labels and of annotations that were copied to this compute pod before."""
    labels, _, rest = annotations.get(COPIED_ANNOTATION, "").partition(";")
    return set(filter(None, labels.split(","))), set(filter(None, rest.split(",")))


def resources_checksum(spec: Mapping[str, Any]) -> str:
    """Return a checksum of all resources in a pod spec. Different amounts may share it."""
    whole = [container.get("resources") for kind in _SUMMED_CONTAINERS for container in spec.get(kind) or ()]
    return f"{zlib.crc32(msgspec.json.encode([*whole, spec.get('resources')], order='sorted')):08x}"


def render_gates(spec: Mapping[str, Any]) -> str:
    """Return the value of `READINESS_GATES_ANNOTATION` for a tenant pod, empty if it has no gates."""
    return ",".join(gate["conditionType"] for gate in spec.get("readinessGates") or ())


def tenant_gates(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the condition types that only the tenant sets on a pod.

    `annotations` are those of the compute pod. A gate may name a condition that Kubernetes or vkgateway writes. Such a
    condition is never the tenant's.
    """
    text = annotations.get(READINESS_GATES_ANNOTATION)
    if not text:
        return ()
    kinds = dict.fromkeys(text.split(","))
    return tuple(kind for kind in kinds if kind not in _KUBERNETES_CONDITIONS and not is_reserved(kind))
