"""PersistentVolumeClaims: the compute claim of a tenant's claim, and the mirrored status."""

from __future__ import annotations

from typing import Any, Final

from vkgateway.api.names import NAME_ANNOTATION, UID_ANNOTATION, compute_metadata
from vkgateway.api.objects import Object
from vkgateway.api.quantity import Quantity, parse_quantity
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kinds.volumes.translation.views import STORAGE, ClaimView

_UNSUPPORTED: Final = {
    "data_source": "volumes made from another claim or from a snapshot are not supported yet; copy the data with a pod",
    "data_source_ref": "volumes with a data source are not supported; copy the data with a pod",
    "selector": "volumes are made for claims here, not chosen by labels; leave the selector out",
    "volume_attributes_class_name": "volume attributes classes are not supported yet; leave the class out",
}


def unsupported_reason(claim: ClaimView) -> str:
    """Return why no volume can be provisioned for a claim, empty if one can."""
    return next((why for field, why in _UNSUPPORTED.items() if getattr(claim.spec, field)), "")


def forward_claim(claim: ClaimView, *, name: str, class_name: str, tenant: TenantContext) -> Object:
    """Return the compute claim of a tenant's claim, called `name`, with the compute cluster's class `class_name`.

    Labels and annotations are not forwarded: controllers of backups and snapshots would act on them. The node that the
    tenant's scheduler selected is not forwarded either, because no compute node has that name.
    """
    source = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": compute_metadata(tenant.name, source.namespace, source.name, source.uid) | {"name": name},
        "spec": {
            "accessModes": list(claim.spec.access_modes),
            "volumeMode": claim.spec.volume_mode,
            "storageClassName": class_name,
            "resources": {"requests": {STORAGE: claim.requested_storage}},
        },
    }


def claim_status_patch(tenant_claim: ClaimView, compute_claim: ClaimView) -> Object | None:
    """Return the merge patch that mirrors capacity and resize of a bound claim, or None if nothing differs.

    The tenant cluster's controller sets phase and access modes, from the volume.
    """
    old, new = tenant_claim.status, compute_claim.status
    patch: Object = {}
    if compute_claim.storage_capacity is not None and not is_same_quantity(
        tenant_claim.storage_capacity, compute_claim.storage_capacity
    ):
        patch["capacity"] = {STORAGE: compute_claim.storage_capacity}
    conditions = sanitize_conditions(compute_claim, tenant_claim.metadata.namespace)
    if conditions != list(old.conditions):
        patch["conditions"] = conditions or None
    if old.allocated_resources.get(STORAGE) != new.allocated_resources.get(STORAGE):
        patch["allocatedResources"] = {STORAGE: new.allocated_resources.get(STORAGE)}
    if old.allocated_resource_statuses.get(STORAGE) != new.allocated_resource_statuses.get(STORAGE):
        patch["allocatedResourceStatuses"] = {STORAGE: new.allocated_resource_statuses.get(STORAGE)}
    return patch or None


def sanitize_conditions(compute_claim: ClaimView, namespace: str) -> list[dict[str, Any]]:
    """Return the conditions of a compute claim with the tenant's names. `namespace` is the tenant's."""
    metadata = compute_claim.metadata
    pairs = (
        (metadata.namespace, namespace),
        (compute_claim.spec.volume_name, "the volume"),
        (metadata.uid, metadata.annotations.get(UID_ANNOTATION, "")),
        (metadata.name, metadata.annotations.get(NAME_ANNOTATION, "")),
    )
    cleaner = Sanitizer(tuple((old, new) for old, new in pairs if old and old != new))
    return [cleaner.sanitize_json(condition) for condition in compute_claim.status.conditions]


def is_same_quantity(one: Quantity | None, other: Quantity | None) -> bool:
    """Return whether two amounts are equal, however they are written."""
    if one is None or other is None:
        return one is other
    return parse_quantity(one) == parse_quantity(other)
