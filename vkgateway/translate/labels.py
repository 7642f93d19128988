"""The one rule by which labels of a tenant's pods, and every selector over them, are translated for a compute cluster.

A compute pod carries each label of its tenant pod, under the same key or under a key in `LABEL_DOMAIN`. The second goes
for keys that something in the compute cluster acts on, and for keys that it writes itself. Different keys stay
different, and selectors go through the same translation. A selector therefore matches a compute pod if and only if it
matches the tenant pod.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from vkgateway.model.names import GROUP, is_reserved
from vkgateway.model.objects import Object

LABEL_DOMAIN: Final = f"tenant-label.{GROUP}"
"""Ends the prefix of every renamed key. Tenants cannot set such keys: the domain is reserved."""

_COMPUTE_WRITTEN: Final = frozenset({"topology.kubernetes.io/region", "topology.kubernetes.io/zone"})
"""Labels that an API server copies from the node to each pod that it binds (KEP-4742). In the tenant cluster they tell
of the virtual node, in the compute cluster of the real one."""
_PREFIX_MAX: Final = 253
"""Characters in the prefix of a label key, a DNS subdomain."""
_HASH_LENGTH: Final = 40


@lru_cache(maxsize=8192)
def label_to_compute(key: str, staying: tuple[str, ...]) -> str:
    """Return the key that a compute pod carries for a label key of its tenant pod.

    `staying` are the prefixes of labels that the platform and schedulers act on: see
    `TenantContext.tenant_only_prefixes`.
    """
    if not is_renamed(key, staying):
        return key
    prefix, slash, name = key.rpartition("/")
    if not slash:
        return f"{LABEL_DOMAIN}/{name}"
    if len(prefix) + 1 + len(LABEL_DOMAIN) > _PREFIX_MAX:
        prefix = hashlib.sha256(prefix.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{prefix}.{LABEL_DOMAIN}/{name}"


def is_renamed(key: str, staying: tuple[str, ...]) -> bool:
    """Tell whether compute pods carry a label under another key than tenant pods."""
    return key.startswith(staying) or key in _COMPUTE_WRITTEN or (GROUP in key and is_reserved(key))


def is_tenant_label(key: str) -> bool:
    """Tell whether a label key of a compute pod stands for a label of the tenant pod, rather than for one of ours."""
    prefix = key.rpartition("/")[0]
    return prefix == LABEL_DOMAIN or prefix.endswith(f".{LABEL_DOMAIN}") or not is_reserved(key)


def labels_to_compute(labels: Mapping[str, str] | None, staying: tuple[str, ...]) -> dict[str, str]:
    """Translate labels, or a selector that is a map of labels, such as a Service's."""
    return {label_to_compute(key, staying): value for key, value in (labels or {}).items()}


def selector_to_compute(selector: Mapping[str, Any], staying: tuple[str, ...]) -> Object:
    """Translate a label selector (meta/v1 LabelSelector)."""
    made = dict(selector)
    if made.get("matchLabels"):
        made["matchLabels"] = labels_to_compute(made["matchLabels"], staying)
    if made.get("matchExpressions"):
        made["matchExpressions"] = requirements_to_compute(made["matchExpressions"], staying)
    return made


def requirements_to_compute(requirements: Iterable[Mapping[str, Any]], staying: tuple[str, ...]) -> list[Object]:
    """Translate requirements of a label selector."""
    return [{**entry, "key": label_to_compute(entry["key"], staying)} for entry in requirements]
