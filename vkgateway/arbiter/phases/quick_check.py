"""A quick look, by counting, before a search for victims: whether a gang could fit if all of them were gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Pod


def could_fit_without(standing: PoolState, ask: PendingGang, pods: Iterable[Pod]) -> bool:
    """Return whether the gang's pods, each shape by itself, would fit without these pods; the room is left as it is.

    False: no search finds a place. True proves nothing. NUMA zones are no matter of counting: True where there are any.
    """
    room = standing.node_resources
    if room.has_zones:
        return True
    mark = room.mark()
    room.remove_many((pod.node, pod.shape) for pod in pods if pod.node in room)
    counts = Counter(pod.shape for pod in ask.min_members)
    enough = all(room.total_capacity(shape) >= count for shape, count in counts.items())
    room.undo(mark)
    return enough
