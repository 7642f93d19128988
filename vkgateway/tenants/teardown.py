"""Removal of a tenant from a compute cluster: all of its objects, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from vkgateway.api.names import MIRROR_FINALIZER, TENANT_LABEL
from vkgateway.api.objects import decode_namespace
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.services.name_service import remove_names
from vkgateway.kinds.services.service_cidr import remove_range
from vkgateway.kube import errors, resources
from vkgateway.kube.backoff import Backoff
from vkgateway.runtime.finalizers import remove_finalizer
from vkgateway.runtime.views.ownership import namespace_owner, owned_by
from vkgateway.runtime.views.pods import ComputePodView, decode_compute_pod

log = structlog.get_logger(__name__)

_LOOKS: Final = Backoff(base=0.2, cap=1.0)
_CONCURRENCY: Final = 16
_DEFAULT_GRACE: Final = 30
"""Default termination grace period in seconds (core/v1 PodSpec)."""
_MAX_GRACE: Final = 120
"""Maximum grace period in seconds of a removed tenant's pods: the tenant chooses theirs, even years."""


async def remove_pods(link: ComputeLink, tenant: str) -> None:
    """Delete a tenant's compute pods and wait until all are deleted.

    Pods get their own grace period, two minutes at most. vkgateway's finalizers are removed at the start, since their
    ends are not mirrored any more. The tenant's reconcilers must not run. Raises `errors.ApiError` if the cluster does
    not answer; another call continues the removal.
    """
    await _wait_removed(lambda: _remove_pods(link, tenant))


async def remove_tenant(link: ComputeLink, tenant: str) -> None:
    """Delete a tenant's pods, then its compute namespaces, and wait until all are deleted; see `remove_pods`.

    Kubernetes waits 5 s before it empties a namespace, and checks a namespace with pods again only after half of their
    longest grace period. So the pods are deleted first.
    """
    await remove_pods(link, tenant)
    await remove_names(link, tenant)
    await _wait_removed(lambda: _remove_namespaces(link, tenant))
    await remove_range(link, tenant)


async def _wait_removed(remove: Callable[[], Awaitable[bool]]) -> None:
    looks = 0
    while await remove():
        looks += 1
        await asyncio.sleep(_LOOKS.delay_after(looks))


async def _remove_pods(link: ComputeLink, tenant: str) -> bool:
    """Delete the tenant's pods; return whether there were any."""
    selector = f"{TENANT_LABEL}={tenant}"
    pages = link.client.list_pages(resources.PODS, label_selector=selector)
    views = [decode_compute_pod(bytes(item)) async for page in pages for item in page.items]
    left = [view for view in views if owned_by(tenant, view.metadata)]
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def remove(view: ComputePodView) -> None:
        async with slots:
            await _remove_pod(link, view)

    for result in await asyncio.gather(*map(remove, left), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
    return bool(left)


async def _remove_pod(link: ComputeLink, view: ComputePodView) -> None:
    metadata = view.metadata
    try:
        if view.has_finalizer:
            await remove_finalizer(link.client, resources.PODS, metadata, MIRROR_FINALIZER)
        if metadata.deletion_timestamp is None or (metadata.deletion_grace_period_seconds or 0) > _MAX_GRACE:
            await link.client.delete(
                resources.PODS,
                metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                grace_period_seconds=min(_pod_grace(view), _MAX_GRACE),
            )
    except (errors.NotFound, errors.Conflict):
        return


def _pod_grace(view: ComputePodView) -> int:
    grace = view.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE if grace is None else grace


async def _remove_namespaces(link: ComputeLink, tenant: str) -> bool:
    """Delete the tenant's namespaces; return whether there were any."""
    namespaces = await _list_namespaces(link, tenant)
    for name, (uid, deleting) in namespaces.items():
        if not deleting:
            log.info("removing compute namespace", compute=link.name, tenant=tenant, namespace=name)
            await _delete_namespace(link, name, uid)
    return bool(namespaces)


async def _list_namespaces(link: ComputeLink, tenant: str) -> dict[str, tuple[str, bool]]:
    """Return the UID of each of the tenant's compute namespaces by name, and whether it is being deleted."""
    selector = f"{TENANT_LABEL}={tenant}"
    pages = link.client.list_pages(resources.NAMESPACES, label_selector=selector)
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
