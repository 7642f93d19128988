"""A quick look, by counting, before a search for victims: whether a gang could fit if all of them were gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Pod
from vkgateway.arbiter.standing import Standing


def could_fit_without(standing: Standing, ask: Ask, pods: Iterable[Pod]) -> bool:
    """Return whether the gang's pods, each shape by itself, would fit without these pods; the room is left as it is.

    False: no search finds a place. True proves nothing. NUMA zones are no matter of counting: True where there are any.
    """
    room = standing.room
    if room.zoned:
        return True
    mark = room.mark()
    room.give_all((pod.node, pod.shape) for pod in pods if pod.node in room)
    counts = Counter(pod.shape for pod in ask.core)
    enough = all(room.total(shape) >= count for shape, count in counts.items())
    room.undo(mark)
    return enough
