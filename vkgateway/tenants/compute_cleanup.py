"""Removal of a deleted tenant's objects from the compute clusters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

import structlog

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.types import Tenant, TenantSpec
from vkgateway.clusters import prerequisites
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.link import ComputeLink
from vkgateway.kube import errors
from vkgateway.tenants.teardown import remove_tenant

log = structlog.get_logger(__name__)

RemoveFunc = Callable[[ComputeLink, str], Awaitable[None]]

CLEANUP_TIMEOUT = 60.0
"""Seconds after which the status reports that pods are still terminating."""


def clusters_of(tenant: Tenant, accepted: TenantSpec | None) -> set[str]:
    """Return the compute clusters that may hold objects of the tenant."""
    wanted = (*tenant.spec.pools, *(accepted.pools if accepted is not None else ()))
    return {pool.compute_cluster for pool in wanted} | {pool.compute_cluster for pool in tenant.status.pools}


async def clean_compute_clusters(
    computes: ComputeClusters, name: str, *, needed: Collection[str], remove: RemoveFunc = remove_tenant
) -> None:
    """Remove the tenant's objects from all compute clusters and wait for the end; with `remove_pods`, only its pods.

    Where another gateway owns a tenant of this name, nothing is removed.
    Clusters outside `needed` may still hold objects from an earlier spec; they are cleaned on a best-effort basis.
    Raises UnavailableError if a needed cluster is not connected, or if the removal takes longer than CLEANUP_TIMEOUT.
    """
    links = computes.links
    missing = [cluster for cluster in needed if cluster not in links and computes.find_cluster(cluster) is not None]
    if missing:
        raise UnavailableError(f"waiting for compute cluster {missing[0]!r} to be connected")
    cleanups = (_clean_cluster(link, name, needed=link.name in needed, remove=remove) for link in links.values())
    for result in await asyncio.gather(*cleanups, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _owns_tenant(link: ComputeLink, name: str) -> bool:
    """Return whether the tenant's objects in a cluster belong to this gateway. Raises ApiError."""
    try:
        await take_in(link, name)
    except ConflictError as error:
        log.info("objects of another gateway stay", tenant=name, compute=link.name, why=str(error))
        return False
    return True


async def _clean_cluster(link: ComputeLink, name: str, *, needed: bool, remove: RemoveFunc) -> None:
    try:
        async with asyncio.timeout(CLEANUP_TIMEOUT):
            if await _owns_tenant(link, name):
                await remove(link, name)
    except TimeoutError as error:
        raise UnavailableError(f"pods and namespaces are still terminating in compute cluster {link.name!r}") from error
    except errors.ApiError as error:
        if needed:
            raise
        log.warning("compute cluster not cleaned up", tenant=name, compute=link.name, error=str(error))


async def take_tenant(computes: ComputeClusters, tenant: Tenant) -> errors.ApiError | None:
    """Make this gateway the owner of a tenant in the clusters of its pools, and where it has objects without an owner.

    Clusters in which another gateway owns a tenant of this name are left out. Return the first failed request; the
    next call retries it.
    """
    await computes.gateway.wait()
    name, failure = tenant.metadata.name, None
    wanted = {pool.compute_cluster for pool in tenant.spec.pools}
    for cluster, link in computes.links.items():
        if link.owners.is_own(name) or not link.is_trusted:
            continue
        if cluster in wanted or link.owners.admits(name):
            try:
                with contextlib.suppress(ConflictError):
                    await take_in(link, name)
            except errors.ApiError as error:
                failure = failure or error
    return failure


async def take_in(link: ComputeLink, tenant: str) -> None:
    """Make this gateway the owner of a tenant in one cluster. Raises ConflictError, ApiError."""
    try:
        await link.take_tenant(tenant)
    except errors.NotFound:
        await prerequisites.ensure_namespace(link.client)
        await link.take_tenant(tenant)


async def forget_tenant(link: ComputeLink, tenant: str) -> None:
    """Remove a deleted tenant from a cluster, then give up its ownership."""
    await remove_tenant(link, tenant)
    await link.owners.release(tenant)
