"""Empties the compute clusters of a tenant that is being deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import structlog

from vkgateway.gateway.compute_controller import ComputeController
from vkgateway.kube import errors
from vkgateway.model.api import Tenant, TenantSpec
from vkgateway.model.errors import UnavailableError
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.teardown import remove_tenant

log = structlog.get_logger(__name__)

RemoveFunc = Callable[[ComputeLink, str], Awaitable[None]]

CLEANUP_TIMEOUT = 60.0
"""Pods may take their grace to end; after so long the status says that it lasts."""


def clusters_of(tenant: Tenant, accepted: TenantSpec | None) -> set[str]:
    """Return the compute clusters that hold, or may hold, something of the tenant."""
    wanted = (*tenant.spec.pools, *(accepted.pools if accepted is not None else ()))
    return {pool.compute_cluster for pool in wanted} | {pool.compute_cluster for pool in tenant.status.pools}


async def clean_compute_clusters(
    computes: ComputeController, name: str, *, needed: Collection[str], remove: RemoveFunc = remove_tenant
) -> None:
    """Empty all compute clusters of a tenant, and wait until they are; with `remove_pods` only of its pods.

    Those that it does not use now may still hold something of it from before, and are cleared if they can be.
    Raises UnavailableError where it cannot be done now, or takes too long to be silent about it.
    """
    links = computes.links
    missing = [one for one in needed if one not in links and computes.find_cluster(one) is not None]
    if missing:
        raise UnavailableError(f"waits until compute cluster {missing[0]!r} is connected")
    clearings = (_clean_cluster(link, name, needed=link.name in needed, remove=remove) for link in links.values())
    for result in await asyncio.gather(*clearings, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _clean_cluster(link: ComputeLink, name: str, *, needed: bool, remove: RemoveFunc) -> None:
    try:
        async with asyncio.timeout(CLEANUP_TIMEOUT):
            await remove(link, name)
    except TimeoutError as error:
        raise UnavailableError(f"pods and namespaces are still ending in compute cluster {link.name!r}") from error
    except errors.ApiError as error:
        if needed:
            raise
        log.warning("compute cluster not cleared", tenant=name, compute=link.name, error=str(error))
