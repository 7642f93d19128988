"""Labels, annotations and ownership marks of a compute pod, and every selector over labels.

A compute pod carries each label of its tenant pod, under the same key or under a key in `LABEL_DOMAIN`. Keys that a
component of the compute cluster reads or writes are renamed. Different keys stay different, and selectors are
translated in the same way. A selector therefore matches a compute pod if and only if it matches the tenant pod.
"""

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from vkgateway.api.names import (
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
from vkgateway.api.objects import Object
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.pods.policy.plugins import is_tenant_only_key

LABEL_DOMAIN: Final = f"tenant-label.{GROUP}"
"""Suffix of the prefix of every renamed key. Tenants cannot set such keys: the domain is reserved."""

_COMPUTE_WRITTEN: Final = frozenset({"topology.kubernetes.io/region", "topology.kubernetes.io/zone"})
"""Labels that an API server copies from the node to each pod that it binds (KEP-4742).

In the tenant cluster they describe the virtual node, in the compute cluster the real node.
"""
_PREFIX_MAX: Final = 253
"""Characters in the prefix of a label key, a DNS subdomain."""
_HASH_LENGTH: Final = 40

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

    `derived` are the annotations that its downward API volumes read.
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
    """Return the labels of the compute pod: the tenant's, translated, overridden by vkgateway's."""
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
    annotations |= dict(sorted(derived.items()))
    annotations[IMAGES_ANNOTATION] = ",".join(_image_sums(pod.get("spec") or {}))
    annotations[NAMESPACE_ANNOTATION] = source["namespace"]
    annotations[NAME_ANNOTATION] = source["name"]
    annotations[UID_ANNOTATION] = source["uid"]
    return annotations


@lru_cache(maxsize=8192)
def label_to_compute(key: str, tenant_only: tuple[str, ...]) -> str:
    """Return the key that a compute pod carries for a label key of its tenant pod.

    `tenant_only` are the prefixes of labels that platform and schedulers read: see
    `TenantContext.tenant_only_prefixes`.
    """
    if not is_renamed(key, tenant_only):
        return key
    prefix, slash, name = key.rpartition("/")
    if not slash:
        return f"{LABEL_DOMAIN}/{name}"
    if len(prefix) + 1 + len(LABEL_DOMAIN) > _PREFIX_MAX:
        prefix = hashlib.sha256(prefix.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{prefix}.{LABEL_DOMAIN}/{name}"


def is_renamed(key: str, tenant_only: tuple[str, ...]) -> bool:
    """Return whether compute pods carry a label under another key than tenant pods."""
    return is_tenant_only_key(key, tenant_only) or key in _COMPUTE_WRITTEN or (GROUP in key and is_reserved(key))


def is_tenant_label(key: str) -> bool:
    """Return whether a label key of a compute pod represents a label of the tenant pod, not one of vkgateway."""
    prefix = key.rpartition("/")[0]
    return prefix == LABEL_DOMAIN or prefix.endswith(f".{LABEL_DOMAIN}") or not is_reserved(key)


def labels_to_compute(labels: Mapping[str, str] | None, tenant_only: tuple[str, ...]) -> dict[str, str]:
    """Return translated labels, or a selector that is a map of labels, such as a Service's."""
    return {label_to_compute(key, tenant_only): value for key, value in (labels or {}).items()}


def selector_to_compute(selector: Mapping[str, Any], tenant_only: tuple[str, ...]) -> Object:
    """Return a translated label selector (meta/v1 LabelSelector)."""
    made = dict(selector)
    if made.get("matchLabels"):
        made["matchLabels"] = labels_to_compute(made["matchLabels"], tenant_only)
    if made.get("matchExpressions"):
        made["matchExpressions"] = requirements_to_compute(made["matchExpressions"], tenant_only)
    return made


def requirements_to_compute(requirements: Iterable[Mapping[str, Any]], tenant_only: tuple[str, ...]) -> list[Object]:
    """Return translated requirements of a label selector."""
    return [{**entry, "key": label_to_compute(entry["key"], tenant_only)} for entry in requirements]


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
        if not is_tenant_only_key(key, staying) and not (GROUP in key and is_reserved_annotation(key))
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
