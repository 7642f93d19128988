"""The future of one pool: when which room comes free, and a place in it that is kept for the first who waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vkgateway.arbiter.capacity.expected_ends import ExpectedEnds, PodEnd
from vkgateway.arbiter.capacity.future_fit import WantedPods, first_fit_time, make_schedule
from vkgateway.arbiter.capacity.node_resources import AllowedNodes, NodeResources
from vkgateway.arbiter.capacity.placement import place_pods
from vkgateway.arbiter.snapshot import LOW, Gang, Pod, Shape
from vkgateway.model.requests import MilliResources


class PoolForecast:
    """What becomes free in a pool, as far as ends of pods are known. No question changes the room."""

    def __init__(
        self, room: NodeResources, ends: ExpectedEnds, now: float, also: Sequence[PodEnd] = (), *, leaves: int = 0
    ) -> None:
        """`also`: ends beyond those that are known. `leaves`: thousandths of the unit that must be idle beside pods."""
        self._node_resources = room
        self._idle_reserve = leaves
        self._known_ends = ends.freeing_schedule(now)
        self._extra_ends = make_schedule(also, room)

    def earliest_start(
        self, pods: Sequence[Pod], *, required_level: str = "", among: AllowedNodes = None, after: float | None = None
    ) -> float | None:
        """When these pods can start for all that is known; None: no known end lets them.

        `after`: it is known that they cannot start before; they may soon after.
        """
        shape = pods[0].shape
        equal = all(pod.shape is shape or pod.shape == shape for pod in pods)
        if not equal or self._node_resources.has_zones or self._idle_reserve:
            return self._bisect_start(pods, required_level, among, after, equal=equal)
        # Whether equals fit is a matter of counting.
        mask = None if among is None else self._node_resources.node_mask(among)
        found = first_fit_time(
            self._node_resources, self._known_ends, self._extra_ends, WantedPods(shape, len(pods), required_level, mask)
        )
        return found if found is None or after is None else max(found, self._first_time_from(after))

    def place_at(
        self, pods: Sequence[Pod], time: float, *, required_level: str = "", among: AllowedNodes = None
    ) -> dict[str, str] | None:
        """Where these pods can start at a time; None: they cannot."""
        room = self._node_resources
        mark = room.mark()
        for ends in (self._known_ends, self._extra_ends):
            for shape, counts in ends.ends_until(time).counts_by_shape(len(room)):
                room.remove_counts(shape, counts)
        found = place_pods(room, pods, required_level=required_level, among=among)
        if found is not None and self._idle_reserve and room.idle_units < self._idle_reserve:
            found = None
        room.undo(mark)
        return found

    def _first_time_from(self, time: float) -> float:
        """The first known time that is not before this one; where there is none, the last."""
        times = [each for each in (self._known_ends.times, self._extra_ends.times) if len(each)]
        later: list[float] = [each.item(at) for each in times if (at := int(each.searchsorted(time))) < len(each)]
        last: list[float] = [each.item(-1) for each in times]
        return min(later) if later else max(last)

    def _bisect_start(
        self, pods: Sequence[Pod], required_level: str, among: AllowedNodes, after: float | None, *, equal: bool
    ) -> float | None:
        """The same by placing them: more room never hurts, so the time is found by halving."""
        times = np.unique(np.concatenate([self._known_ends.times, self._extra_ends.times]))
        if not len(times):
            return None

        def fits(index: int) -> bool:
            return self.place_at(pods, times.item(index), required_level=required_level, among=among) is not None

        high = last = len(times) - 1
        low = min(int(times.searchsorted(after)), last) if after is not None else 0
        # Whether equals fit may be tried at any time, and the next is the likeliest.
        found = not equal and fits(last)
        if not equal and not found:
            return None
        if equal or after is not None:
            step = 1
            while low < high or not found:
                probe = min(low + step - 1, high)
                if fits(probe):
                    high = probe
                    break
                if probe == last:
                    return None
                low, step = probe + 1, 4 * step
        while low < high:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle + 1
        time: float = times.item(high)
        return time


@dataclass(slots=True)
class Reservation:
    """A place in the future, kept for the first gang that does not fit."""

    gang: str
    start: float | None
    """Seconds since the epoch; None: not known, its nodes are kept free as they empty."""
    refused_classes: set[int] = field(default_factory=set)
    """Kinds of gangs that would have fitted but for it."""
    _needed: dict[str, MilliResources] = field(default_factory=dict)
    """What must be left free now on each of its nodes, or it will be missing at the start."""

    @classmethod
    def for_gang(
        cls, gang: Gang, pods: Iterable[Pod], nodes: Mapping[str, str], start: float | None, *, ends: ExpectedEnds
    ) -> Reservation:
        """A place for these pods of a gang, where pods end as is known."""
        found = cls(gang.id, start)
        for pod in pods:
            _add_requests(found._needed.setdefault(nodes[pod.uid], {}), pod.shape, 1)
        if start is not None:
            for node, shape in ends.ends_on(found._needed, until=start):
                found.count_as_freed(node, shape)
        return found

    def count_as_freed(self, node: str, shape: Shape) -> None:
        """What a pod holds will be free when it is needed."""
        here = self._needed.get(node)
        if here is not None:
            _add_requests(here, shape, -1)

    def can_backfill(self, ends: ExpectedEnds, gang: Gang, now: float) -> bool:
        """Whether the gang, started now, will have gone when the place is needed."""
        run = ends.expected_run_time(gang)
        return self.start is not None and run is not None and now + run <= self.start

    def can_lend_to(self, gang: Gang, now: float) -> bool:
        """Whether the gang may start in the place itself, to be let go when its time has come."""
        if gang.band is not LOW:
            return False
        return gang.minimum_run <= 0 or (self.start is not None and now + gang.minimum_run <= self.start)

    def starts_after(self, ends: ExpectedEnds, uid: str) -> bool:
        """Return whether the start is known to come after a pod's end."""
        end = ends.end_of(uid)
        return self.start is not None and end is not None and end <= self.start

    def withhold_needed(
        self,
        room: NodeResources,
        *,
        counted: Iterable[tuple[str, Shape]] = (),
        coming: Iterable[tuple[str, Shape]] = (),
    ) -> None:
        """Take of what is free now all that will be missing at the start unless it is left free; to be undone.

        `counted`: nodes and shapes of pods that the start counts on as gone, and whose room another gang might take
        instead. `coming`: those of other pods that leave: what becomes free is left free, too.
        """
        taken, leaves = _amounts_by_node(counted), _amounts_by_node(coming)
        for node, here in self._needed.items():
            free, back, more = room.free_on_node(node), taken.get(node, {}), leaves.get(node, {})
            amounts = {
                name: max(0, min(amount + back.get(name, 0), free.get(name, 0) + back.get(name, 0) + more.get(name, 0)))
                for name, amount in here.items()
            }
            room.add_pods(node, Shape.from_requests(amounts))


def _amounts_by_node(pods: Iterable[tuple[str, Shape]]) -> dict[str, MilliResources]:
    found: dict[str, MilliResources] = {}
    for node, shape in pods:
        _add_requests(found.setdefault(node, {}), shape, 1)
    return found


def _add_requests(amounts: MilliResources, shape: Shape, times: int) -> None:
    for name, amount in shape.requests:
        amounts[name] = amounts.get(name, 0) + amount * times
