"""Taking a tenant away: everything of it that a compute cluster holds, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from vkgateway.kube import errors, resources
from vkgateway.model.names import MIRROR_FINALIZER, TENANT_LABEL
from vkgateway.sync.compute import ComputeLink, decode_namespace, namespace_owner, owned_by
from vkgateway.sync.pods.views import decode_compute_pod

log = structlog.get_logger(__name__)

_LOOK_AGAIN: Final = 0.5


async def remove_tenant(link: ComputeLink, tenant: str) -> None:
    """Delete a tenant's compute namespaces and wait until the last one is gone.

    Pods end with their own grace; our finalizers come off at once, since nobody is left to read how they ended. The
    tenant's reconcilers must not run any more. Raises `errors.ApiError` where the cluster cannot be asked; what was
    removed by then stays removed, and calling it again goes on from there.
    """
    while True:
        namespaces = await _namespaces(link, tenant)
        for name, (uid, deleting) in namespaces.items():
            if not deleting:
                log.info("removing compute namespace", compute=link.name, tenant=tenant, namespace=name)
                await _delete_namespace(link, name, uid)
        await _release_pods(link, tenant)
        if not namespaces:
            return
        await asyncio.sleep(_LOOK_AGAIN)


async def _namespaces(link: ComputeLink, tenant: str) -> dict[str, tuple[str, bool]]:
    """The tenant's compute namespaces: name to UID, and whether they are being deleted already."""
    selector = f"{TENANT_LABEL}={tenant}"
    pages = link.client.pages(resources.NAMESPACES, label_selector=selector)
    views = [decode_namespace(bytes(item)) async for page in pages for item in page.items]
    return {
        view.metadata.name: (view.metadata.uid, view.metadata.deletion_timestamp is not None)
        for view in views
        if namespace_owner(view) == tenant
    }


async def _delete_namespace(link: ComputeLink, name: str, uid: str) -> None:
    try:
        await link.client.delete(resources.NAMESPACES, name, uid=uid)
    except (errors.NotFound, errors.Conflict):
        return


async def _release_pods(link: ComputeLink, tenant: str) -> None:
    async for page in link.client.pages(resources.PODS, label_selector=f"{TENANT_LABEL}={tenant}"):
        for item in page.items:
            view = decode_compute_pod(bytes(item))
            if not view.held or not owned_by(tenant, view.metadata):
                continue
            others = [name for name in view.metadata.finalizers if name != MIRROR_FINALIZER]
            metadata = {"uid": view.metadata.uid, "finalizers": others or None}
            try:
                await link.client.patch(
                    resources.PODS, view.metadata.name, {"metadata": metadata}, namespace=view.metadata.namespace
                )
            except errors.NotFound:
                continue
