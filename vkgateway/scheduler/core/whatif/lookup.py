"""Lookup of a question's tenants, pools, nodes and resources; errors list what is available (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from vkgateway.api.errors import InputError, NotFoundError
from vkgateway.api.quantity import Resources
from vkgateway.api.requests import MilliResources, is_extended, to_milli
from vkgateway.scheduler.core.snapshot import Node, Pool, PoolKey, Quota, Snapshot, node_name

_NAMED: Final = 12
"""Number of names that an error lists."""


def find_pool(snapshot: Snapshot, name: str) -> Pool:
    """Return the pool with this name or virtual node.

    Raises:
        NotFoundError: No such pool exists.
        InputError: Several compute clusters have one.
    """
    found = [pool for pool in snapshot.pools if name in (pool.key[1], node_name(pool.key))]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(node_name(pool.key) for pool in found)
        raise InputError(f"pool {name!r} exists in {len(found)} compute clusters", hint=f"Name one of: {names}.")
    available = (node_name(pool.key) for pool in snapshot.pools)
    raise NotFoundError(
        f"pool {name!r} does not exist, or its compute cluster does not respond",
        hint=_available_hint(name, "pools", available),
    )


def quotas_of(snapshot: Snapshot, tenant: str) -> list[Quota]:
    """Return the tenant's quotas. Raises NotFoundError if it has none."""
    found = [quota for quota in snapshot.quotas if quota.tenant == tenant]
    if not found:
        available = {quota.tenant for quota in snapshot.quotas}
        raise NotFoundError(f"tenant {tenant!r} does not exist", hint=_available_hint(tenant, "tenants", available))
    return found


def find_nodes(snapshot: Snapshot, name: str) -> list[tuple[Pool, Node]]:
    """Return a compute node, once for each of its pools.

    Raises:
        NotFoundError: No pool has such a node.
        InputError: Several compute clusters have one.
    """
    cluster, _, node_name = name.rpartition("/")
    found = [
        (pool, node)
        for pool in snapshot.pools
        if cluster in ("", pool.key[0])
        for node in pool.nodes
        if node.name == node_name
    ]
    clusters = sorted({pool.key[0] for pool, _ in found})
    if len(clusters) > 1:
        names = ", ".join(f"{each}/{node_name}" for each in clusters)
        raise InputError(f"node {name!r} exists in {len(clusters)} compute clusters", hint=f"Name one of: {names}.")
    if not found:
        available = (node.name for pool in snapshot.pools for node in pool.nodes)
        raise NotFoundError(f"node {name!r} is in no pool", hint=_available_hint(node_name, "nodes", available))
    return found


def select_pools(snapshot: Snapshot, tenant: str, names: Sequence[str]) -> tuple[PoolKey, ...]:
    """Return the named pools, or all pools of the tenant.

    Raises:
        NotFoundError: The tenant or pool does not exist.
        InputError: The tenant has no quota in the pool.
    """
    tenant_pools = [quota.pool for quota in quotas_of(snapshot, tenant)]
    if not names:
        return tuple(tenant_pools)
    found = [find_pool(snapshot, name).key for name in names]
    for key in found:
        if key not in tenant_pools:
            hint = f"Its pools are: {', '.join(map(node_name, tenant_pools))}."
            raise InputError(f"tenant {tenant!r} has no quota in pool {node_name(key)!r}", hint=hint)
    return tuple(dict.fromkeys(found))


def read_amounts(what: str, resources: Resources, *, zero: bool = False) -> MilliResources:
    """Return amounts in thousandths, devices in whole units; `zero`: an amount may be zero.

    Raises:
        InputError: It names `what`, the resource and its value.
    """
    found: MilliResources = {}
    for name, amount in resources.items():
        try:
            found |= to_milli({name: amount})
        except ValueError as error:
            hint = "Write it as in Kubernetes, like 8, 500m or 16Gi."
            raise InputError(f"{what} of {name}: {error}", hint=hint) from error
        if found[name] < 0 or (found[name] == 0 and not zero):
            raise InputError(f"{what} of {name}: {amount} is not more than 0", hint="Omit it, or request more.")
        if is_extended(name) and found[name] % 1000:
            raise InputError(f"{what} of {name}: {amount} is not a whole number", hint="Devices are not divided.")
    return found


def check_offered(resources: Iterable[str], pools: Sequence[Pool]) -> None:
    """Raise InputError for a resource that no node of these pools has."""
    offered = {name for pool in pools for node in pool.nodes for name in node.allocatable}
    where = ", ".join(node_name(pool.key) for pool in pools)
    for name in resources:
        if name not in offered and name != "pods":
            raise InputError(
                f"resource {name!r} is offered by no node of {where}", hint=_available_hint(name, "resources", offered)
            )


def _available_hint(name: str, what: str, available: Iterable[str]) -> str:
    known = sorted(set(available))
    if not known:
        return f"There are no {what}."
    near = get_close_matches(name, known, n=3)
    listed = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
    return f"Did you mean {' or '.join(near)}? Available {what}: {listed}." if near else f"Available {what}: {listed}."
