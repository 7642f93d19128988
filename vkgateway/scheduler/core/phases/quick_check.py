"""A quick check, by counting, before a search for victims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Pod


def could_fit_without(pool_state: PoolState, pending: PendingGang, pods: Iterable[Pod]) -> bool:
    """Return whether the gang's pods, each shape by itself, would fit without these pods. Nothing changes. False: no
    search finds a placement. True proves nothing. Counting ignores NUMA zones: True where there are any.
    """
    resources = pool_state.node_resources
    if resources.free.zones is not None:
        return True
    with resources.trial():
        resources.remove_many((pod.node, pod.shape) for pod in pods if pod.node in resources.nodes)
        counts = Counter(pod.shape for pod in pending.min_members)
        return all(resources.views[shape].total >= count for shape, count in counts.items())
