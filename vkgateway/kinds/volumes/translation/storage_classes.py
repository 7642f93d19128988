"""Storage classes that a tenant sees: their names and fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL
from vkgateway.api.objects import Object
from vkgateway.kinds.context import ANY, PoolContext, TenantContext
from vkgateway.kinds.volumes.translation.views import (
    DEFAULT_CLASS_ANNOTATION,
    PROVISIONER,
    WAIT_FOR_CONSUMER,
    StorageClassView,
    select_label,
)

MIRRORED_LABEL: Final = "vkgateway.io/mirrored"
"""Label of storage classes that the gateway manages in a tenant cluster. The policy decides which exist."""

NodeLabelsByPool = Sequence[tuple[PoolContext, Sequence[Mapping[str, str]]]]
"""Tenant's virtual nodes in one compute cluster, each with the labels of the compute nodes behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOffer:
    """Class of one compute cluster, and the tenant's virtual nodes there."""

    compute_cluster: str
    storage_class: StorageClassView
    node_labels_by_pool: NodeLabelsByPool


def allows_volumes(tenant: TenantContext) -> bool:
    """Return whether the tenant may have volumes at all."""
    return bool(tenant.storage_classes or tenant.storage_class_names)


def compute_class_name(tenant: TenantContext, name: str) -> str | None:
    """Return the compute name of a class that the tenant names, or None if the policy does not allow it."""
    if name in tenant.storage_class_names:
        return tenant.storage_class_names[name]
    return name if name in tenant.storage_classes or ANY in tenant.storage_classes else None


def tenant_class_names(tenant: TenantContext, compute_name: str) -> list[str]:
    """Return the tenant's names of a compute cluster's class, empty if the tenant may not use it."""
    names = [name for name, target in tenant.storage_class_names.items() if target == compute_name]
    if compute_name not in tenant.storage_class_names and compute_class_name(tenant, compute_name) is not None:
        names.append(compute_name)
    return names


def allowed_names(tenant: TenantContext, compute_name: Iterable[str]) -> list[str]:
    """Return all class names that the tenant may use, for messages.

    `compute_name` are those that compute clusters have.
    """
    named = {*tenant.storage_class_names, *(name for name in tenant.storage_classes if name != ANY)}
    if ANY in tenant.storage_classes:
        named.update(name for target in compute_name for name in tenant_class_names(tenant, target))
    return sorted(named)


def tenant_class(name: str, offers: Sequence[ClassOffer], *, clusters: int, default: bool) -> Object:
    """Return the class as the tenant sees it, without provisioner and topology of the compute cluster.

    `offers` are the compute classes behind it, at least one. `clusters` is the number of compute clusters in which the
    tenant has pools. With several, volumes wait for their first consumer, because their cluster is not known before.
    """
    first = offers[0].storage_class
    waits = clusters > 1 or any(offer.storage_class.waits_for_consumer for offer in offers)
    made: Object = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": name,
            "labels": {MIRRORED_LABEL: "true"},
            "annotations": {DEFAULT_CLASS_ANNOTATION: "true" if default else "false"},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": first.reclaim_policy,
        "volumeBindingMode": WAIT_FOR_CONSUMER if waits else "Immediate",
        "allowVolumeExpansion": all(offer.storage_class.allow_volume_expansion for offer in offers),
    }
    terms = [_topology_term(offer) for offer in offers]
    if len(offers) < clusters or any(len(term["matchLabelExpressions"]) > 1 for term in terms):
        made["allowedTopologies"] = terms
    return made


def _topology_term(offer: ClassOffer) -> Object:
    """Return the allowed topology of volumes, on the labels of virtual nodes."""
    expressions = [{"key": COMPUTE_CLUSTER_LABEL, "values": [offer.compute_cluster]}]
    terms = offer.storage_class.allowed_topologies
    if terms:
        reached = [
            pool
            for pool, nodes in offer.node_labels_by_pool
            if any(_term_matches(labels, term) for labels in nodes for term in terms)
        ]
        chosen = select_label(reached, [pool for pool, _ in offer.node_labels_by_pool])
        if chosen is not None:
            expressions.append({"key": chosen[0], "values": chosen[1] or [NO_POOL]})
    return {"matchLabelExpressions": expressions}


NO_POOL: Final = "none"
"""Name of a pool that does not exist, because a topology must name one."""


def _term_matches(labels: Mapping[str, str], term: Mapping[str, Any]) -> bool:
    """Return whether labels meet all expressions of a topology selector term (core/v1 TopologySelectorTerm)."""
    return all(labels.get(entry["key"]) in entry["values"] for entry in term.get("matchLabelExpressions") or ())
