"""The future of one pool: when which room comes free, and a place in it that is kept for the first who waits."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from vkgateway.arbiter.facts import Band, Gang, Pod, PodState, Policy, Pool, Shape
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.room import Among, Room


@dataclass(frozen=True, slots=True)
class End:
    """A pod, as far as room goes, and when it will have gone (seconds since the epoch)."""

    time: float
    node: str
    shape: Shape


class Ends:
    """When pods will have gone, as far as that is known: declared run limits, observed run times with a margin."""

    def __init__(self, pool: Pool, gangs: Iterable[Gang], policy: Policy, now: float) -> None:
        self._policy = policy
        self._by_pod: dict[str, End] = {}
        for gang in gangs:
            for pod in gang.pods:
                if pod.node and pod.pool == pool.key and (time := self._end(gang, pod)) is not None:
                    self._by_pod[pod.uid] = End(max(now, time), pod.node, pod.shape)

    @property
    def known(self) -> Collection[End]:
        """All ends of which the time is known."""
        return self._by_pod.values()

    def of(self, uid: str) -> float | None:
        """When a pod will have gone; None: not known."""
        end = self._by_pod.get(uid)
        return end.time if end is not None else None

    def until(self, time: float | None, *, without: Container[str]) -> Iterator[End]:
        """Ends up to a time, but for those of some pods."""
        for uid, end in self._by_pod.items():
            if time is not None and end.time <= time and uid not in without:
                yield end

    def copy(self) -> Ends:
        """To look ahead in without a change of what is known."""
        other = copy(self)
        other._by_pod = dict(self._by_pod)
        return other

    def add_leaving(self, gang: Gang, pods: Iterable[Pod], deadline: float) -> None:
        """Pods that were just told to go."""
        for pod in pods:
            self._by_pod[pod.uid] = End(deadline + gang.grace, pod.node, pod.shape)

    def add_start(self, gang: Gang, pods: Sequence[Pod], nodes: Mapping[str, str], now: float) -> None:
        """Pods that start now."""
        run = self.run(gang)
        if run is not None:
            self._by_pod |= {pod.uid: End(now + run, nodes[pod.uid], pod.shape) for pod in pods}

    def run(self, gang: Gang) -> float | None:
        """Seconds that a gang runs, as far as that is known; the time that it was seen to take is stretched."""
        if gang.run_limit is not None:
            return gang.run_limit
        return gang.expected_run * self._policy.run_margin if gang.expected_run is not None else None

    def _end(self, gang: Gang, pod: Pod) -> float | None:
        if pod.state is PodState.ENDING:
            return pod.deadline
        if pod.state is PodState.NOTIFIED:
            return pod.deadline + gang.grace
        run = self.run(gang)
        return pod.since + run if run is not None and pod.state is PodState.PLACED else None


def earliest(
    room: Room, ends: Ends, pods: Sequence[Pod], *, required_level: str = "", among: Among = None
) -> tuple[float, dict[str, str]] | None:
    """When these pods can start for all that is known, and where; None: no known end lets them.

    More room never hurts, so the time is found by halving. The room is left as it is.
    """
    order = sorted((end for end in ends.known if end.node in room), key=lambda end: (end.time, end.node))
    times = sorted({end.time for end in order})

    def fits(index: int) -> dict[str, str] | None:
        mark = room.mark()
        for end in order:
            if end.time > times[index]:
                break
            room.give(end.node, end.shape)
        found = place(room, pods, required_level=required_level, among=among)
        room.undo(mark)
        return found

    if not times or (nodes := fits(len(times) - 1)) is None:
        return None
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        found = fits(middle)
        if found is None:
            low = middle + 1
        else:
            high, nodes = middle, found
    return times[high], nodes


@dataclass(frozen=True, slots=True)
class Reservation:
    """A place in the future, kept for the first gang that does not fit."""

    gang: str
    pods: tuple[Pod, ...]
    nodes: Mapping[str, str]
    start: float | None
    """Seconds since the epoch; None: not known, its nodes are kept free as they empty."""
    lent: tuple[Pod, ...] = ()
    """Placed pods that go as soon as the gang can start."""

    def lets(self, ends: Ends, gang: Gang, now: float) -> bool:
        """Whether the gang, started now, will have gone when the place is needed."""
        run = ends.run(gang)
        return self.start is not None and run is not None and now + run <= self.start

    def may_lend(self, gang: Gang, now: float) -> bool:
        """Whether the gang may start in the place itself, to be let go when its time has come."""
        if gang.band is not Band.LOW:
            return False
        return gang.minimum_run <= 0 or (self.start is not None and now + gang.minimum_run <= self.start)

    def narrow(self, room: Room, ends: Ends) -> None:
        """Take of what is free now all that will be missing at the start unless it is left free; to be undone."""
        missing: dict[str, dict[str, int]] = {}
        for pod in self.pods:
            here = missing.setdefault(self.nodes[pod.uid], {})
            for name, amount in pod.shape.requests:
                here[name] = here.get(name, 0) + amount
        lent = {pod.uid: End(0.0, pod.node, pod.shape) for pod in self.lent}
        for end in (*lent.values(), *ends.until(self.start, without=lent)):
            if end.node in missing:
                here = missing[end.node]
                for name, amount in end.shape.requests:
                    here[name] = here.get(name, 0) - amount
        for node, here in missing.items():
            free = room.free(node)
            room.take(node, Shape.of({name: max(0, min(amount, free.get(name, 0))) for name, amount in here.items()}))
