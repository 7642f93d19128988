"""Forecast of one pool's free capacity, and the reservation for the first waiting gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.capacity.expected_ends import ExpectedEnds, PodEnd
from vkgateway.scheduler.core.capacity.future_fit import WantedPods, first_fit_time, make_schedule
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.node_table import AllowedNodes
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.snapshot import LOW, Gang, Pod, Shape, have_peer_rules


class PoolForecast:
    """Forecast of a pool's free capacity from the expected ends of pods. Queries do not change the node resources."""

    def __init__(
        self,
        resources: NodeResources,
        ends: ExpectedEnds,
        now: float,
        extra_ends: Sequence[PodEnd] = (),
        *,
        idle_reserve: int = 0,
    ) -> None:
        """Create a forecast.

        `extra_ends` are ends beyond the expected ones. `idle_reserve` is the amount of the unit, in thousandths, that a
        placement must leave idle.
        """
        self._node_resources = resources
        self._idle_reserve = idle_reserve
        self._known_ends = ends.freeing_schedule(now)
        self._extra_ends = make_schedule(extra_ends, resources.nodes.positions)

    def earliest_start(
        self, pods: Sequence[Pod], *, required_level: str = "", among: AllowedNodes = None, after: float | None = None
    ) -> float | None:
        """Return the earliest time at which these pods can start; None: no known end frees enough.

        `after`: the pods are known not to fit before this time, and likely to fit soon after.
        """
        shape = pods[0].shape
        equal = all(pod.shape is shape or pod.shape == shape for pod in pods)
        counts = self._node_resources.free.zones is None and not self._idle_reserve and not have_peer_rules(pods)
        if not equal or not counts:
            return self._bisect_start(pods, required_level, among, after, equal=equal)
        # Counting decides whether equal pods fit.
        mask = None if among is None else self._node_resources.nodes.mask_of(among)
        found = first_fit_time(
            self._node_resources, self._known_ends, self._extra_ends, WantedPods(shape, len(pods), required_level, mask)
        )
        return found if found is None or after is None else max(found, self._first_time_from(after))

    def place_at(
        self, pods: Sequence[Pod], time: float, *, required_level: str = "", among: AllowedNodes = None
    ) -> dict[str, str] | None:
        """Return the nodes on which these pods can start at a time; None: they do not fit."""
        resources = self._node_resources
        with resources.trial():
            for ends in (self._known_ends, self._extra_ends):
                for shape, positions, counts in ends.ends_until(time).counts_by_shape(len(resources.nodes)):
                    resources.remove_pods_at(positions, shape, counts)
            found = place_pods(resources, pods, required_level=required_level, among=among)
            if found is not None and self._idle_reserve and resources.free.idle_units < self._idle_reserve:
                found = None
        return found

    def _first_time_from(self, time: float) -> float:
        """Return the first known time from this one on, or the last known time."""
        times = [each for each in (self._known_ends.times, self._extra_ends.times) if len(each)]
        later: list[float] = [each.item(index) for each in times if (index := int(each.searchsorted(time))) < len(each)]
        last: list[float] = [each.item(-1) for each in times]
        return min(later) if later else max(last)

    def _bisect_start(
        self, pods: Sequence[Pod], required_level: str, among: AllowedNodes, after: float | None, *, equal: bool
    ) -> float | None:
        """Return the earliest start by placing the pods: free capacity only grows, so bisection finds the time."""
        times = np.unique(np.concatenate([self._known_ends.times, self._extra_ends.times]))
        if not len(times):
            return None

        def fits(index: int) -> bool:
            return self.place_at(pods, times.item(index), required_level=required_level, among=among) is not None

        high = last = len(times) - 1
        low = min(int(times.searchsorted(after)), last) if after is not None else 0
        # Equal pods are cheap to place, and the next times are the likeliest.
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
    """Future start of the first gang that does not fit, with its nodes."""

    gang: str
    start: float | None
    """Seconds since the epoch; None: unknown, and capacity that its nodes free stays reserved."""
    refused_classes: set[int] = field(default_factory=set)
    """Equivalence classes of gangs that only the reservation keeps from starting."""
    _needed: dict[str, MilliResources] = field(default_factory=dict)
    """Amounts by node that must stay free now for the start to succeed."""

    @classmethod
    def for_gang(
        cls, gang: Gang, pods: Iterable[Pod], nodes: Mapping[str, str], start: float | None, *, ends: ExpectedEnds
    ) -> Reservation:
        """Return the reservation of these pods on these nodes, given the expected ends."""
        reservation = cls(gang.id, start)
        for pod in pods:
            _add_requests(reservation._needed.setdefault(nodes[pod.uid], {}), pod.shape, 1)
        if start is not None:
            for node, shape in ends.ends_on(reservation._needed, until=start):
                reservation.count_as_freed(node, shape)
        return reservation

    def count_as_freed(self, node: str, shape: Shape) -> None:
        """Count the resources of a pod as free at the start."""
        needed = self._needed.get(node)
        if needed is not None:
            _add_requests(needed, shape, -1)

    def can_backfill(self, ends: ExpectedEnds, gang: Gang, now: float) -> bool:
        """Return whether the gang, started now, ends before the reserved start."""
        run_time = ends.expected_run_time(gang)
        return self.start is not None and run_time is not None and now + run_time <= self.start

    def can_lend_to(self, gang: Gang, now: float) -> bool:
        """Return whether the gang may start on reserved capacity and be evicted when the reserved gang can start."""
        if gang.band is not LOW:
            return False
        return gang.minimum_run <= 0 or (self.start is not None and now + gang.minimum_run <= self.start)

    def starts_after(self, ends: ExpectedEnds, uid: str) -> bool:
        """Return whether the start is known to come after a pod's end."""
        end = ends.end_of(uid)
        return self.start is not None and end is not None and end <= self.start

    def withhold_needed(
        self,
        resources: NodeResources,
        *,
        freed_pods: Iterable[tuple[str, Shape]] = (),
        terminating_pods: Iterable[tuple[str, Shape]] = (),
    ) -> None:
        """Take the free amounts that the reserved start needs; the caller undoes this.

        `freed_pods`: nodes and shapes of pods that the start expects to have ended, and whose resources another gang
        could take. `terminating_pods`: nodes and shapes of other terminating pods; the capacity that they free stays
        reserved, too.
        """
        freed, terminating = _amounts_by_node(freed_pods), _amounts_by_node(terminating_pods)
        for node, needed in self._needed.items():
            free, returned, expected = resources.free.amounts_on(node), freed.get(node, {}), terminating.get(node, {})
            amounts = {
                name: max(
                    0,
                    min(
                        amount + returned.get(name, 0),
                        free.get(name, 0) + returned.get(name, 0) + expected.get(name, 0),
                    ),
                )
                for name, amount in needed.items()
            }
            resources.add_pods(node, Shape.from_requests(amounts))


def _amounts_by_node(pods: Iterable[tuple[str, Shape]]) -> dict[str, MilliResources]:
    found: dict[str, MilliResources] = {}
    for node, shape in pods:
        _add_requests(found.setdefault(node, {}), shape, 1)
    return found


def _add_requests(amounts: MilliResources, shape: Shape, times: int) -> None:
    for name, amount in shape.requests:
        amounts[name] = amounts.get(name, 0) + amount * times
