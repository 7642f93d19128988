"""Storage classes: which of a compute cluster's a tenant sees, under what names, and what of them it is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.model.names import COMPUTE_CLUSTER_LABEL
from vkgateway.model.objects import Object
from vkgateway.translate.context import ANY, PoolContext, TenantContext
from vkgateway.translate.storage.topology import select_label
from vkgateway.translate.storage.views import (
    DEFAULT_CLASS_ANNOTATION,
    PROVISIONER,
    WAIT_FOR_CONSUMER,
    StorageClassView,
)

MIRRORED_LABEL: Final = "vkgateway.io/mirrored"
"""On storage classes that the gateway keeps in a tenant: those are made as the policy says, and taken away again."""

NodeLabelsByPool = Sequence[tuple[PoolContext, Sequence[Mapping[str, str]]]]
"""A tenant's virtual nodes in one compute cluster, each with the labels of the compute nodes behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOffer:
    """A class of one compute cluster, and the tenant's virtual nodes there."""

    compute_cluster: str
    storage_class: StorageClassView
    node_labels_by_pool: NodeLabelsByPool


def allows_volumes(tenant: TenantContext) -> bool:
    """Tell whether the tenant may have volumes at all."""
    return bool(tenant.storage_classes or tenant.storage_class_names)


def compute_class_name(tenant: TenantContext, name: str) -> str | None:
    """Name below of a class that the tenant names; None where the policy does not allow it."""
    if name in tenant.storage_class_names:
        return tenant.storage_class_names[name]
    return name if name in tenant.storage_classes or ANY in tenant.storage_classes else None


def tenant_class_names(tenant: TenantContext, below: str) -> list[str]:
    """The names by which a tenant knows a class of a compute cluster; none where it may not have it."""
    names = [name for name, target in tenant.storage_class_names.items() if target == below]
    if below not in tenant.storage_class_names and compute_class_name(tenant, below) is not None:
        names.append(below)
    return names


def allowed_names(tenant: TenantContext, below: Iterable[str]) -> list[str]:
    """All class names that the tenant may use, for messages; `below` are those that compute clusters have."""
    named = {*tenant.storage_class_names, *(name for name in tenant.storage_classes if name != ANY)}
    if ANY in tenant.storage_classes:
        named.update(name for target in below for name in tenant_class_names(tenant, target))
    return sorted(named)


def tenant_class(name: str, offers: Sequence[ClassOffer], *, clusters: int, default: bool) -> Object:
    """The class as the tenant sees it: who makes volumes there, and where, stays below.

    `offers` are the classes that stand behind it, at least one; `clusters` counts the compute clusters in which the
    tenant has pools. With several, its volumes wait for the pod that uses them first: before, nobody knows where.
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
    """Where volumes may be, on the labels of virtual nodes."""
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
"""A pool that there is not: a topology must name one."""


def _term_matches(labels: Mapping[str, str], term: Mapping[str, Any]) -> bool:
    """Judge a topology selector term (core/v1 TopologySelectorTerm): all its expressions must hold."""
    return all(labels.get(entry["key"]) in entry["values"] for entry in term.get("matchLabelExpressions") or ())
