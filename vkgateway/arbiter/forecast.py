"""The future of one pool: when which room comes free, and a place in it that is kept for the first who waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vkgateway.arbiter.ends import End, Ends
from vkgateway.arbiter.facts import LOW, Gang, Pod, Shape
from vkgateway.arbiter.fitting import FloatArray
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.room import Among, Room
from vkgateway.model.requests import Milli


def earliest(
    room: Room,
    ends: Ends,
    pods: Sequence[Pod],
    *,
    now: float,
    required_level: str = "",
    among: Among = None,
    also: Sequence[End] = (),
    after: float | None = None,
) -> tuple[float, dict[str, str]] | None:
    """When these pods can start for all that is known, and where; None: no known end lets them.

    `also`: ends beyond those that are known. `after`: it is known that they cannot start before; they may soon after.
    More room never hurts, so the time is found by halving. The room is left as it is.
    """
    schedule = ends.schedule(now)
    times = _merged(schedule.times, also)

    def fits(index: int) -> dict[str, str] | None:
        time, mark = times.item(index), room.mark()
        for shape, counts in schedule.gone(time):
            room.give_counts(shape, counts)
        for end in also:
            if end.time <= time:
                room.give(end.node, end.shape)
        found = place(room, pods, required_level=required_level, among=among)
        room.undo(mark)
        return found

    if not len(times):
        return None
    last = len(times) - 1
    low, high = (min(int(times.searchsorted(after)), last) if after is not None else 0), last
    # Whether equals fit is a matter of counting: it may be tried at any time, and the next is the likeliest.
    equal = all(pod.shape == pods[0].shape for pod in pods)
    nodes = None if equal else fits(last)
    if nodes is None and not equal:
        return None
    if equal or after is not None:
        step = 1
        while low < high or nodes is None:
            probe = min(low + step - 1, high)
            found = fits(probe)
            if found is not None:
                high, nodes = probe, found
                break
            if probe == last:
                return None
            low, step = probe + 1, 4 * step
    while low < high:
        middle = (low + high) // 2
        found = fits(middle)
        if found is None:
            low = middle + 1
        else:
            high, nodes = middle, found
    assert nodes is not None
    return times.item(high), nodes


def _merged(times: FloatArray, also: Sequence[End]) -> FloatArray:
    """All different times, rising, as `times` are already."""
    if not also:
        return times
    more = np.array(sorted({end.time for end in also}))
    if not len(times):
        return more
    at = times.searchsorted(more)
    new = times[np.minimum(at, len(times) - 1)] != more
    merged: FloatArray = np.insert(times, at[new], more[new])
    return merged


@dataclass(slots=True)
class Reservation:
    """A place in the future, kept for the first gang that does not fit."""

    gang: str
    start: float | None
    """Seconds since the epoch; None: not known, its nodes are kept free as they empty."""
    refused: set[int] = field(default_factory=set)
    """Kinds of gangs that would have fitted but for it."""
    _missing: dict[str, Milli] = field(default_factory=dict)
    """What must be left free now on each of its nodes, or it will be missing at the start."""

    @classmethod
    def of(
        cls, gang: Gang, pods: Iterable[Pod], nodes: Mapping[str, str], start: float | None, *, ends: Ends
    ) -> Reservation:
        """A place for these pods of a gang, where pods end as is known."""
        found = cls(gang.id, start)
        for pod in pods:
            _add(found._missing.setdefault(nodes[pod.uid], {}), pod.shape, 1)
        if start is not None:
            for node, shape in ends.on(found._missing, until=start):
                found.will_be_gone(node, shape)
        return found

    def will_be_gone(self, node: str, shape: Shape) -> None:
        """What a pod holds will be free when it is needed."""
        here = self._missing.get(node)
        if here is not None:
            _add(here, shape, -1)

    def lets(self, ends: Ends, gang: Gang, now: float) -> bool:
        """Whether the gang, started now, will have gone when the place is needed."""
        run = ends.run(gang)
        return self.start is not None and run is not None and now + run <= self.start

    def may_lend(self, gang: Gang, now: float) -> bool:
        """Whether the gang may start in the place itself, to be let go when its time has come."""
        if gang.band is not LOW:
            return False
        return gang.minimum_run <= 0 or (self.start is not None and now + gang.minimum_run <= self.start)

    def starts_after(self, ends: Ends, uid: str) -> bool:
        """Return whether the start is known to come after a pod's end."""
        end = ends.of(uid)
        return self.start is not None and end is not None and end <= self.start

    def narrow(
        self, room: Room, *, counted: Iterable[tuple[str, Shape]] = (), coming: Iterable[tuple[str, Shape]] = ()
    ) -> None:
        """Take of what is free now all that will be missing at the start unless it is left free; to be undone.

        `counted`: nodes and shapes of pods that the start counts on as gone, and whose room another gang might take
        instead. `coming`: those of other pods that leave: what becomes free is left free, too.
        """
        taken, leaves = _by_node(counted), _by_node(coming)
        for node, here in self._missing.items():
            free, back, more = room.free(node), taken.get(node, {}), leaves.get(node, {})
            amounts = {
                name: max(0, min(amount + back.get(name, 0), free.get(name, 0) + back.get(name, 0) + more.get(name, 0)))
                for name, amount in here.items()
            }
            room.take(node, Shape.of(amounts))


def _by_node(pods: Iterable[tuple[str, Shape]]) -> dict[str, Milli]:
    found: dict[str, Milli] = {}
    for node, shape in pods:
        _add(found.setdefault(node, {}), shape, 1)
    return found


def _add(amounts: Milli, shape: Shape, times: int) -> None:
    for name, amount in shape.requests:
        amounts[name] = amounts.get(name, 0) + amount * times
