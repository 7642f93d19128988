"""Claims: what of a tenant's claim stands below, and what of the compute claim's status is told above."""

from __future__ import annotations

from typing import Any, Final

from vkgateway.model.names import (
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.model.objects import Object
from vkgateway.model.quantity import Quantity, parse_quantity
from vkgateway.translate.context import TenantContext
from vkgateway.translate.sanitizer import Sanitizer
from vkgateway.translate.storage.views import STORAGE, ClaimView

_UNSUPPORTED: Final = {
    "data_source": "volumes made from another claim or from a snapshot are not supported yet; copy the data with a pod",
    "data_source_ref": "volumes made from other data are not supported yet; copy the data with a pod",
    "selector": "volumes are made for claims here, not chosen by labels; leave the selector out",
    "volume_attributes_class_name": "volume attributes classes are not supported yet; leave the class out",
}


def unsupported_reason(claim: ClaimView) -> str:
    """Why no volume can be made for a claim as it is written; empty where one can."""
    return next((why for field, why in _UNSUPPORTED.items() if getattr(claim.spec, field)), "")


def forward_claim(claim: ClaimView, *, name: str, class_name: str, tenant: TenantContext) -> Object:
    """The compute claim that stands for a tenant's, called `name`, of the compute cluster's class `class_name`.

    Labels and annotations stay above: below, controllers of backups and snapshots act on them. So does which node the
    tenant's scheduler chose, for there is none of that name.
    """
    source = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": compute_namespace(tenant.name, source.namespace),
            "labels": {TENANT_LABEL: tenant.name},
            "annotations": {
                NAMESPACE_ANNOTATION: source.namespace,
                NAME_ANNOTATION: source.name,
                UID_ANNOTATION: source.uid,
            },
        },
        "spec": {
            "accessModes": list(claim.spec.access_modes),
            "volumeMode": claim.spec.volume_mode,
            "storageClassName": class_name,
            "resources": {"requests": {STORAGE: claim.requested_storage}},
        },
    }


def claim_status_patch(above: ClaimView, below: ClaimView) -> Object | None:
    """The merge patch that tells a bound claim what it has and how its growing goes; None where it says so already.

    Its phase and access modes are told by the tenant's own controller, from the volume.
    """
    old, new = above.status, below.status
    patch: Object = {}
    if below.storage_capacity is not None and not is_same_quantity(above.storage_capacity, below.storage_capacity):
        patch["capacity"] = {STORAGE: below.storage_capacity}
    conditions = sanitize_conditions(below, above.metadata.namespace)
    if conditions != list(old.conditions):
        patch["conditions"] = conditions or None
    if old.allocated_resources.get(STORAGE) != new.allocated_resources.get(STORAGE):
        patch["allocatedResources"] = {STORAGE: new.allocated_resources.get(STORAGE)}
    if old.allocated_resource_statuses.get(STORAGE) != new.allocated_resource_statuses.get(STORAGE):
        patch["allocatedResourceStatuses"] = {STORAGE: new.allocated_resource_statuses.get(STORAGE)}
    return patch or None


def sanitize_conditions(below: ClaimView, namespace: str) -> list[dict[str, Any]]:
    """The conditions of a compute claim with its names replaced by the tenant's; `namespace` is the tenant's."""
    metadata = below.metadata
    pairs = (
        (metadata.namespace, namespace),
        (below.spec.volume_name, "the volume"),
        (metadata.uid, metadata.annotations.get(UID_ANNOTATION, "")),
        (metadata.name, metadata.annotations.get(NAME_ANNOTATION, "")),
    )
    cleaner = Sanitizer(tuple((old, new) for old, new in pairs if old and old != new))
    return [cleaner.sanitize_json(condition) for condition in below.status.conditions]


def is_same_quantity(one: Quantity | None, other: Quantity | None) -> bool:
    """Tell whether two amounts are equal, however they are written."""
    if one is None or other is None:
        return one is other
    return parse_quantity(one) == parse_quantity(other)
