"""Takes away everything that a tenant has in a compute cluster: its namespaces and what is in them, nothing else."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.resources import NAMESPACES, PODS
from vkgateway.model.names import MIRROR_FINALIZER, TENANT_LABEL
from vkgateway.model.objects import Meta, NamespaceView, ObjectView
from vkgateway.sync.compute import ComputeLink, namespace_owner, owned_by

log = structlog.get_logger(__name__)

_AT_ONCE = 50

_decode_namespace = msgspec.json.Decoder(NamespaceView).decode
_decode_object = msgspec.json.Decoder(ObjectView).decode


async def clear(link: ComputeLink, tenant: str) -> str:
    """Do what can be done now to empty a compute cluster of a tenant; say what is left, or "" if nothing is.

    To be called again until nothing is left. It reads from the cluster itself, not from what a watch has seen. The
    tenant's reconcilers must not run any more.
    """
    namespaces = await _namespaces(link, tenant)
    for namespace in namespaces:
        if namespace.metadata.deletion_timestamp is None:
            await _delete_namespace(link, namespace)
    pods = await _release_pods(link, tenant)
    if pods:
        return f"{pods} pods are ending in compute cluster {link.name}"
    if namespaces:
        return f"{len(namespaces)} namespaces are being removed from compute cluster {link.name}"
    return ""


async def _namespaces(link: ComputeLink, tenant: str) -> list[NamespaceView]:
    page = await link.client.list_all(NAMESPACES, label_selector=f"{TENANT_LABEL}={tenant}")
    found = [_decode_namespace(item) for item in page.items]
    return [namespace for namespace in found if namespace_owner(namespace) == tenant]


async def _delete_namespace(link: ComputeLink, namespace: NamespaceView) -> None:
    metadata = namespace.metadata
    log.info("removing compute namespace", compute=link.name, namespace=metadata.name)
    try:
        await link.client.delete(NAMESPACES, metadata.name, uid=metadata.uid)
    except (errors.NotFound, errors.Conflict):
        return


async def _release_pods(link: ComputeLink, tenant: str) -> int:
    """Take our finalizer off the tenant's pods, whose ends nobody wants to hear of any more; how many there are."""
    count = 0
    async for page in link.client.pages(PODS, label_selector=f"{TENANT_LABEL}={tenant}", limit=_AT_ONCE):
        found = (_decode_object(item).metadata for item in page.items)
        ours = [metadata for metadata in found if owned_by(tenant, metadata)]
        await asyncio.gather(*(_release(link, metadata) for metadata in ours))
        count += len(ours)
    return count


async def _release(link: ComputeLink, metadata: Meta) -> None:
    if MIRROR_FINALIZER not in metadata.finalizers:
        return
    rest = [one for one in metadata.finalizers if one != MIRROR_FINALIZER]
    change = {"metadata": {"finalizers": rest, "uid": metadata.uid, "resourceVersion": metadata.resource_version}}
    try:
        await link.client.patch(PODS, metadata.name, change, namespace=metadata.namespace)
    except (errors.NotFound, errors.Conflict):
        return
