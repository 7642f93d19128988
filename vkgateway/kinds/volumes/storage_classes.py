"""Storage classes that a tenant may use, kept in its cluster according to its policy and the compute clusters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_STORAGE_CHANGED, RESYNC, TENANT_CHANGED, TENANT_STORAGE_LISTED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.translation.storage_classes import (
    MIRRORED_LABEL,
    ClassOffer,
    NodeLabelsByPool,
    allows_volumes,
    tenant_class,
    tenant_class_names,
)
from vkgateway.kube import errors, resources
from vkgateway.runtime.requests import RequestKind

log = structlog.get_logger(__name__)

_FIELDS: Final = (
    "provisioner",
    "parameters",
    "reclaimPolicy",
    "mountOptions",
    "volumeBindingMode",
    "allowVolumeExpansion",
    "allowedTopologies",
)
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


CLASSES: Final = RequestKind[None]("classes", 0.5)
"""Nodes and classes arrive one by one at the start."""


class StorageClassReconciler:
    """Reconciler of one tenant's storage classes."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._client = scope.client

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(CLASSES, self.reconcile)
            .watches(TENANT_CHANGED, lambda old, _new: self.enqueue(always=allows_volumes(old)))
            .watches_each((TENANT_STORAGE_LISTED, COMPUTE_STORAGE_CHANGED, RESYNC), self.enqueue)
        )

    def enqueue(self, *, always: bool = False) -> None:
        """Request a reconcile if the tenant may have volumes, or `always`: classes that it had before are deleted."""
        if always or allows_volumes(self._scope.tenant):
            self._scope.work_queue.enqueue(CLASSES, None)

    async def reconcile(self, _key: None = None) -> None:
        """Create, update and delete the storage classes in the tenant cluster; the tenant's own classes are left alone.

        Classes of a compute cluster that cannot be read now stay unchanged. Raises ApiError.
        """
        links = self._clusters_by_name()
        known = {name: link for name, link in links.items() if link.classes.is_complete and link.nodes.is_complete}
        wanted = self._desired_classes(known.values(), clusters=len(links))
        page = await self._client.list_all(resources.STORAGE_CLASSES, label_selector=MIRRORED_LABEL)
        existing = {document["metadata"]["name"]: document for document in map(_decode, map(bytes, page.items))}
        for name, document in wanted.items():
            await self._write_class(document, existing.get(name))
        if len(known) == len(links):
            for name in existing.keys() - wanted.keys():
                await self._delete_class(name)

    def _clusters_by_name(self) -> dict[str, ComputeLink]:
        return {binding.link.name: binding.link for binding in self._scope.bindings.values()}

    def _desired_classes(self, links: Iterable[ComputeLink], *, clusters: int) -> dict[str, Object]:
        offers: dict[str, list[ClassOffer]] = {}
        for link in sorted(links, key=lambda link: link.name):
            labels_behind = self._labels_behind(link)
            for view in link.classes.store.values():
                offer = ClassOffer(compute_cluster=link.name, storage_class=view, node_labels_by_pool=labels_behind)
                for name in tenant_class_names(self._scope.tenant, view.metadata.name):
                    offers.setdefault(name, []).append(offer)
        default = self._scope.tenant.default_storage_class
        return {
            name: tenant_class(
                name, found, clusters=clusters, default=name == default if default else _is_default(found)
            )
            for name, found in sorted(offers.items())
        }

    def _labels_behind(self, link: ComputeLink) -> NodeLabelsByPool:
        pools = (binding.pool for binding in self._scope.bindings.values() if binding.link is link)
        return [(pool, [node.metadata.labels for node in link.nodes.nodes_behind(pool).nodes]) for pool in pools]

    async def _write_class(self, wanted: Object, existing: Object | None) -> None:
        name = wanted["metadata"]["name"]
        if existing is not None and _is_current(wanted, existing):
            return
        if existing is None:
            try:
                await self._client.create(resources.STORAGE_CLASSES, wanted)
            except errors.AlreadyExists:
                log.info("the tenant has its own storage class of this name", tenant=self._scope.name, name=name)
            return
        try:
            await self._client.replace(resources.STORAGE_CLASSES, name, wanted)
        except errors.Invalid:  # most fields of a class are immutable; claims read them only at creation
            await self._delete_class(name)
            await self._client.create(resources.STORAGE_CLASSES, wanted)

    async def _delete_class(self, name: str) -> None:
        try:
            await self._client.delete(resources.STORAGE_CLASSES, name)
        except errors.NotFound:
            return


def _is_default(offers: list[ClassOffer]) -> bool:
    return any(offer.storage_class.is_default for offer in offers)


def _is_current(wanted: Object, existing: Object) -> bool:
    metadata = wanted["metadata"]
    found = existing["metadata"]
    return (
        all(wanted.get(field) == existing.get(field) for field in _FIELDS)
        and all((found.get("labels") or {}).get(key) == value for key, value in metadata["labels"].items())
        and all((found.get("annotations") or {}).get(key) == value for key, value in metadata["annotations"].items())
    )
