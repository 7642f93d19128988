"""Translation of a tenant's pod labels, and of every selector over them, for a compute cluster.

A compute pod carries each label of its tenant pod, under the same key or under a key in `LABEL_DOMAIN`. Keys that a
component of the compute cluster reads or writes are renamed. Different keys stay different, and selectors are
translated in the same way. A selector therefore matches a compute pod if and only if it matches the tenant pod.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from vkgateway.model.names import GROUP, is_reserved
from vkgateway.model.objects import Object

LABEL_DOMAIN: Final = f"tenant-label.{GROUP}"
"""Suffix of the prefix of every renamed key. Tenants cannot set such keys: the domain is reserved."""

_COMPUTE_WRITTEN: Final = frozenset({"topology.kubernetes.io/region", "topology.kubernetes.io/zone"})
"""Labels that an API server copies from the node to each pod that it binds (KEP-4742).

In the tenant cluster they describe the virtual node, in the compute cluster the real node.
"""
_PREFIX_MAX: Final = 253
"""Characters in the prefix of a label key, a DNS subdomain."""
_HASH_LENGTH: Final = 40


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
    return key.startswith(tenant_only) or key in _COMPUTE_WRITTEN or (GROUP in key and is_reserved(key))


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
