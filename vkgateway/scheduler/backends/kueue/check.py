"""Check of Kueue in a compute cluster: its API, its controller and the queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vkgateway.api.names import POOL_LABEL, SYSTEM_NAMESPACE
from vkgateway.api.objects import Condition, Meta, find_condition
from vkgateway.api.types import Pool
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict
from vkgateway.kube import errors
from vkgateway.scheduler.backends.check import (
    TenantsIn,
    find_unanswered,
    missing_queues,
    missing_verdict,
    unanswered_verdict,
)
from vkgateway.scheduler.backends.kueue.kinds import CLUSTER_QUEUES, KUEUE_KINDS, LOCAL_QUEUES
from vkgateway.scheduler.backends.kueue.names import API_VERSION


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
    unanswered: str = ""
    """A Workload that Kueue has not handled."""

    def verdict(self, pools: Sequence[Pool], tenants: TenantsIn) -> Verdict:
        """See `SchedulerState`."""
        if not self.is_served:
            return missing_verdict("Kueue", API_VERSION, pools)
        if missing := sorted(missing_queues(pools, self.local_queues, tenants)):
            problem = f"LocalQueues in {SYSTEM_NAMESPACE} do not exist: {', '.join(missing)}"
            return false_verdict("QueuesMissing", f"{problem}; create them, or set manageQueues to true")
        if problems := list(_queue_problems(self.queues, {pool.name for pool in pools})):
            return false_verdict("QueuesInactive", "; ".join(problems))
        if self.unanswered:
            return unanswered_verdict("Kueue", "Workload", self.unanswered)
        return true_verdict("SchedulersReady", f"Kueue schedules {', '.join(pool.name for pool in pools)}")


async def read_kueue(link: ComputeLink) -> KueueState:
    """Return the state of Kueue in a compute cluster. Raises ApiError if the cluster does not answer."""
    client, params = link.client, {"labelSelector": KUEUE_KINDS.own_selector(link.gateway.value)}
    try:
        queues = _decode(await client.request("GET", CLUSTER_QUEUES.path(), params=params)).items
        local = _decode(await client.request("GET", LOCAL_QUEUES.path(SYSTEM_NAMESPACE))).items
    except errors.NotFound:
        return KueueState(is_served=False)
    return KueueState(
        is_served=True,
        queues=queues,
        local_queues=frozenset(each.metadata.name for each in local),
        unanswered=await find_unanswered(link, KUEUE_KINDS),
    )


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
