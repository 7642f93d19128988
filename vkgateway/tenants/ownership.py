"""Ownership of tenants in compute clusters: taken before a tenant uses a cluster, given up when it is deleted."""

from __future__ import annotations

import contextlib

from vkgateway.api.errors import ConflictError
from vkgateway.api.types import Tenant
from vkgateway.clusters import prerequisites
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.link import ComputeLink
from vkgateway.kube import errors
from vkgateway.tenants.teardown import remove_tenant


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
