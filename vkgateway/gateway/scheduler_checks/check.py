"""The interface of the check of one scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from vkgateway.gateway.status import Verdict, false_verdict
from vkgateway.model.api import Pool
from vkgateway.model.scheduling import queue_name
from vkgateway.sync.compute.link import ComputeLink

TenantsIn = Callable[[str], Iterable[str]]
"""Returns the tenants that use a pool."""


class SchedulerState(Protocol):
    """State of a scheduler in a compute cluster, as it was read last."""

    def verdict(self, pools: Sequence[Pool], tenants: TenantsIn) -> Verdict:
        """Return the verdict on the scheduler of some pools."""


class ReadState(Protocol):
    """Reader of the state of a scheduler."""

    async def __call__(self, link: ComputeLink) -> SchedulerState:
        """Return the state. Raises ApiError if the cluster does not answer."""


def missing_verdict(title: str, api: str, pools: Iterable[Pool]) -> Verdict:
    """Return the verdict on a scheduler whose API the cluster does not serve."""
    names = ", ".join(pool.name for pool in pools)
    way_out = f"install {title} there, or set scheduling.mode of the pool to native"
    return false_verdict(
        "SchedulerMissing", f"pools {names} need {title}, and the cluster does not serve {api}; {way_out}"
    )


def missing_queues(pools: Iterable[Pool], existing: frozenset[str], tenants: TenantsIn) -> Iterator[str]:
    """Yield the names of queues that the administrator manages and that do not exist."""
    for pool in pools:
        if not pool.scheduling.manage_queues:
            wanted = {queue_name(pool.scheduling, tenant=tenant, pool=pool.name) for tenant in tenants(pool.name)}
            yield from wanted - existing
