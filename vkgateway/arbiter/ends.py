"""When the pods of one pool will have gone, as far as that is known, in arrays that are kept from cycle to cycle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vkgateway.arbiter.facts import ENDING, NOTIFIED, PLACED, Gang, Pod, Policy, Shape
from vkgateway.arbiter.fitting import FloatArray, IntArray
from vkgateway.arbiter.freeing import Freeing, freeing_of
from vkgateway.arbiter.room import Room

_NEVER = float("inf")

_SHAPES = 256
"""Shapes that are known by their identity."""


class End(NamedTuple):
    """A pod, as far as room goes, and when it will have gone (seconds since the epoch)."""

    time: float
    node: str
    shape: Shape


class Ends:
    """Ends by pod: declared run limits, observed run times with a margin, deadlines. What was added can be undone."""

    def __init__(self, room: Room, policy: Policy) -> None:
        self._room = room
        self._policy = policy
        self._known: dict[str, End] = {}
        self._columns: dict[Shape, _Column] = {}
        self._column_of: dict[int, tuple[Shape, _Column]] = {}
        """The same by the identity of shapes: pods of one shape mostly share the object, and it is slow to hash."""
        self._journal: list[tuple[str, End | None]] = []
        self._schedule: tuple[float, Freeing] | None = None

    def renew(self, room: Room) -> None:
        """The room of the same nodes, after some of them have changed."""
        self._room = room

    def of(self, uid: str) -> float | None:
        """When a pod will have gone; None: not known."""
        end = self._known.get(uid)
        return end.time if end is not None else None

    def run(self, gang: Gang) -> float | None:
        """Seconds that a gang runs, as far as that is known; the time that it was seen to take is stretched."""
        if gang.run_limit is not None:
            return gang.run_limit
        return gang.expected_run * self._policy.run_margin if gang.expected_run is not None else None

    def on(self, nodes: Collection[str], *, until: float) -> Iterator[tuple[str, Shape]]:
        """What will have gone from these nodes by a time: nodes and shapes, one for each pod."""
        wanted = np.array([self._room.position(node) for node in nodes], dtype=np.int64)
        for shape, column in self._columns.items():
            times, positions = column.rows()
            for position in positions[(times <= until) & np.isin(positions, wanted)].tolist():
                yield self._room.names[position], shape

    def schedule(self, now: float) -> Freeing:
        """All that is known; nothing ends before now."""
        if self._schedule is None or self._schedule[0] != now:
            self._schedule = now, self._scheduled(now)
        return self._schedule[1]

    def _scheduled(self, now: float) -> Freeing:
        rows = [column.rows() for column in self._columns.values()]
        if not rows:
            return freeing_of((), self._room)
        times = np.concatenate([each for each, _ in rows])
        order = np.argsort(times, kind="stable")
        order = order[: int(times[order].searchsorted(_NEVER))]
        kinds = np.repeat(np.arange(len(rows)), [len(each) for each, _ in rows])
        positions = np.concatenate([each for _, each in rows])
        return Freeing(np.maximum(times[order], now), positions[order], kinds[order], list(self._columns))

    # Changes

    def put(self, gang: Gang, pod: Pod) -> None:
        """Take in a placed pod as it is."""
        time = self._end(gang, pod)
        if time is not None and pod.node in self._room:
            self._set(pod.uid, End(time, pod.node, pod.shape))
        else:
            self.drop(pod.uid)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        if uid in self._known:
            self._set(uid, None)

    def add_leaving(self, gang: Gang, pods: Iterable[Pod], deadline: float) -> None:
        """Pods that were just told to go."""
        for pod in pods:
            if pod.node in self._room:
                self._set(pod.uid, End(deadline + gang.grace, pod.node, pod.shape))

    def add_start(self, gang: Gang, pods: Sequence[Pod], nodes: Mapping[str, str], now: float) -> None:
        """Pods that start now."""
        run = self.run(gang)
        if run is not None:
            for pod in pods:
                self._set(pod.uid, End(now + run, nodes[pod.uid], pod.shape))

    def mark(self) -> int:
        """A state to go back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Back to the mark."""
        while len(self._journal) > mark:
            self._write(*self._journal.pop())

    def settle(self) -> None:
        """Everything so far stays."""
        self._journal.clear()

    def _set(self, uid: str, end: End | None) -> None:
        self._journal.append((uid, self._write(uid, end)))

    def _write(self, uid: str, end: End | None) -> End | None:
        """Returns what was known before."""
        self._schedule = None
        before = self._known.pop(uid, None)
        if before is not None:
            self._column(before.shape).drop(uid)
        if end is not None:
            self._known[uid] = end
            self._column(end.shape).add(uid, end.time, self._room.position(end.node))
        return before

    def _column(self, shape: Shape) -> _Column:
        known = self._column_of.get(id(shape))
        if known is None:
            if len(self._column_of) >= _SHAPES:
                self._column_of.clear()
            column = self._columns.get(shape)
            if column is None:
                column = self._columns[shape] = _Column()
            # As long as the shape is here its id is its own.
            known = self._column_of[id(shape)] = shape, column
        return known[1]

    def _end(self, gang: Gang, pod: Pod) -> float | None:
        if pod.state is ENDING:
            return pod.deadline
        if pod.state is NOTIFIED:
            return pod.deadline + gang.grace
        run = self.run(gang)
        return pod.since + run if run is not None and pod.state is PLACED else None


class _Column:
    """Times and positions of the pods of one shape, in rows that are used again."""

    def __init__(self) -> None:
        self._times: FloatArray = np.full(16, _NEVER)
        self._positions: IntArray = np.zeros(16, dtype=np.int64)
        self._row: dict[str, int] = {}
        self._free = list(range(15, -1, -1))

    def rows(self) -> tuple[FloatArray, IntArray]:
        """Free rows are there too: they never end."""
        return self._times, self._positions

    def add(self, uid: str, time: float, position: int) -> None:
        if not self._free:
            size = len(self._times)
            self._times = np.concatenate([self._times, np.full(size, _NEVER)])
            self._positions = np.concatenate([self._positions, np.zeros(size, dtype=np.int64)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        row = self._row[uid] = self._free.pop()
        self._times[row] = time
        self._positions[row] = position

    def drop(self, uid: str) -> None:
        row = self._row.pop(uid)
        self._times[row] = _NEVER
        self._free.append(row)
