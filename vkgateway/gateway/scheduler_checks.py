"""Checks of the schedulers of pools in other modes than native: condition SchedulersReady of a ComputeCluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vkgateway.gateway.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.kube import errors
from vkgateway.model.api import NATIVE, Pool
from vkgateway.model.names import POOL_LABEL, SYSTEM_NAMESPACE
from vkgateway.model.objects import Condition, Meta, find_condition
from vkgateway.model.scheduling import queue_name
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.schedulers.kueue import CLUSTER_QUEUES, KUEUE_KINDS, LOCAL_QUEUES

_INSTALL: Final = "install Kueue there, or set scheduling.mode of the pool to native"


class _QueueStatus(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class QueueView(msgspec.Struct):
    """A ClusterQueue, as far as its state matters."""

    metadata: Meta
    status: _QueueStatus = msgspec.field(default_factory=_QueueStatus)


class _QueueList(msgspec.Struct):
    items: tuple[QueueView, ...] = ()


_decode: Final = msgspec.json.Decoder(_QueueList).decode


@dataclass(frozen=True, slots=True)
class KueueState:
    """State of Kueue in a compute cluster."""

    is_served: bool
    queues: tuple[QueueView, ...] = ()
    """The ClusterQueues of the gateway."""
    local_queues: frozenset[str] = frozenset()
    """Names of all LocalQueues in the gateway's namespace."""


async def read_kueue(link: ComputeLink) -> KueueState:
    """Return the state of Kueue in a compute cluster. Raises ApiError if the cluster does not answer."""
    client, params = link.client, {"labelSelector": KUEUE_KINDS.own_selector(link.gateway.value)}
    try:
        queues = _decode(await client.request("GET", CLUSTER_QUEUES.path(), params=params)).items
        local = _decode(await client.request("GET", LOCAL_QUEUES.path(SYSTEM_NAMESPACE))).items
    except errors.NotFound:
        return KueueState(is_served=False)
    return KueueState(is_served=True, queues=queues, local_queues=frozenset(each.metadata.name for each in local))


def scheduler_verdict(
    pools: Iterable[Pool],
    modes: Mapping[str, str],
    kueue: KueueState | None,
    *,
    tenants: Callable[[str], Iterable[str]] = lambda _pool: (),
) -> Verdict | None:
    """Return the verdict on the schedulers of a cluster's pools; None: the arbiter schedules all pools.

    `pools` have the requested modes, `modes` the modes in effect by pool; `kueue` is None if its state is unknown.
    `tenants` returns the tenants that use a pool.
    """
    pools = tuple(pools)
    postponed = [pool for pool in pools if (modes.get(pool.name) or pool.scheduling.mode) != pool.scheduling.mode]
    if postponed:
        texts = (
            f"pool {pool.name!r} stays in mode {modes[pool.name]} instead of {pool.scheduling.mode}"
            for pool in postponed
        )
        hint = "pods with devices or gang marks run there; the mode changes when they have ended"
        return false_verdict("ModeChangeRefused", f"{'; '.join(texts)}: {hint}")
    foreign = [pool for pool in pools if pool.scheduling.mode != NATIVE]
    return _kueue_verdict(foreign, kueue, tenants) if foreign else None


def _kueue_verdict(pools: Sequence[Pool], kueue: KueueState | None, tenants: Callable[[str], Iterable[str]]) -> Verdict:
    """Return the verdict on Kueue as the scheduler of pools."""
    names = ", ".join(pool.name for pool in pools)
    if kueue is None:
        return unknown_verdict("SchedulerUnknown", f"the state of Kueue, which schedules {names}, is not known yet")
    if not kueue.is_served:
        problem = f"the cluster does not serve {CLUSTER_QUEUES.prefix.removeprefix('apis/')}"
        return false_verdict("SchedulerMissing", f"pools {names} need Kueue, and {problem}; {_INSTALL}")
    if missing := sorted(_missing_queues(pools, kueue, tenants)):
        problem = f"LocalQueues in {SYSTEM_NAMESPACE} do not exist: {', '.join(missing)}"
        return false_verdict("QueuesMissing", f"{problem}; create them, or set manageQueues")
    if problems := list(_queue_problems(kueue.queues, {pool.name for pool in pools})):
        return false_verdict("QueuesInactive", "; ".join(problems))
    return true_verdict("SchedulersReady", f"Kueue schedules {names}")


def _queue_problems(queues: Iterable[QueueView], pools: set[str]) -> Iterator[str]:
    """Yield what keeps Kueue from admitting to the queues of pools."""
    for queue in queues:
        if queue.metadata.labels.get(POOL_LABEL) not in pools:
            continue
        active = find_condition(queue.status.conditions, "Active")
        if active is None:
            yield f"ClusterQueue {queue.metadata.name} has no state: Kueue's controller does not answer"
        elif active.status != "True":
            yield f"ClusterQueue {queue.metadata.name}: {active.message or active.reason}"


def _missing_queues(pools: Iterable[Pool], kueue: KueueState, tenants: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Yield the names of LocalQueues that the administrator manages and that do not exist."""
    for pool in pools:
        if not pool.scheduling.manage_queues:
            wanted = {queue_name(pool.scheduling, tenant=tenant, pool=pool.name) for tenant in tenants(pool.name)}
            yield from wanted - kueue.local_queues
