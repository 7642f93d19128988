"""When the pods of one pool will have gone, as far as that is known, in arrays that are kept from cycle to cycle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vkgateway.arbiter.capacity.future_fit import FreeingSchedule, make_schedule
from vkgateway.arbiter.capacity.node_fit import FloatArray, IntArray
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.snapshot import ENDING, NOTIFIED, PLACED, Gang, Pod, Policy, Shape

_NEVER = float("inf")

_MAX_SHAPES = 256
"""Shapes that are known by their identity."""


class PodEnd(NamedTuple):
    """A pod, as far as room goes, and when it will have gone (seconds since the epoch)."""

    time: float
    node: str
    shape: Shape


class ExpectedEnds:
    """Ends by pod: declared run limits, observed run times with a margin, deadlines. What was added can be undone."""

    def __init__(self, room: NodeResources, policy: Policy) -> None:
        self._node_resources = room
        self._policy = policy
        self._end_by_pod: dict[str, PodEnd] = {}
        self._columns: dict[Shape, _ShapeColumn] = {}
        self._columns_by_id: dict[int, tuple[Shape, _ShapeColumn]] = {}
        """The same by the identity of shapes: pods of one shape mostly share the object, and it is slow to hash."""
        self._journal: list[tuple[str, PodEnd | None]] = []
        self._schedule: tuple[float, FreeingSchedule] | None = None

    def update_nodes(self, room: NodeResources) -> None:
        """The room of the same nodes, after some of them have changed."""
        self._node_resources = room

    def end_of(self, uid: str) -> float | None:
        """When a pod will have gone; None: not known."""
        end = self._end_by_pod.get(uid)
        return end.time if end is not None else None

    def expected_run_time(self, gang: Gang) -> float | None:
        """Seconds that a gang runs, as far as that is known; the time that it was seen to take is stretched."""
        if gang.run_limit is not None:
            return gang.run_limit
        return gang.expected_run * self._policy.run_margin if gang.expected_run is not None else None

    def ends_on(self, nodes: Collection[str], *, until: float) -> Iterator[tuple[str, Shape]]:
        """What will have gone from these nodes by a time: nodes and shapes, one for each pod."""
        wanted = np.array([self._node_resources.position_of(node) for node in nodes], dtype=np.int64)
        for shape, column in self._columns.items():
            times, positions = column.row_arrays()
            for position in positions[(times <= until) & np.isin(positions, wanted)].tolist():
                yield self._node_resources.names[position], shape

    def freeing_schedule(self, now: float) -> FreeingSchedule:
        """All that is known; nothing ends before now."""
        if self._schedule is None or self._schedule[0] != now:
            self._schedule = now, self._build_schedule(now)
        return self._schedule[1]

    def _build_schedule(self, now: float) -> FreeingSchedule:
        rows = [column.row_arrays() for column in self._columns.values()]
        if not rows:
            return make_schedule((), self._node_resources)
        times = np.concatenate([each for each, _ in rows])
        order = np.argsort(times, kind="stable")
        order = order[: int(times[order].searchsorted(_NEVER))]
        kinds = np.repeat(np.arange(len(rows)), [len(each) for each, _ in rows])
        positions = np.concatenate([each for _, each in rows])
        return FreeingSchedule(np.maximum(times[order], now), positions[order], kinds[order], list(self._columns))

    # Changes

    def update_pod(self, gang: Gang, pod: Pod) -> None:
        """Take in a placed pod as it is."""
        time = self._compute_end(gang, pod)
        if time is not None and pod.node in self._node_resources:
            self._set_end(pod.uid, PodEnd(time, pod.node, pod.shape))
        else:
            self.remove_pod(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """Forget a pod."""
        if uid in self._end_by_pod:
            self._set_end(uid, None)

    def add_notified(self, gang: Gang, pods: Iterable[Pod], deadline: float) -> None:
        """Pods that were just told to go."""
        for pod in pods:
            if pod.node in self._node_resources:
                self._set_end(pod.uid, PodEnd(deadline + gang.grace, pod.node, pod.shape))

    def add_started(self, gang: Gang, pods: Sequence[Pod], nodes: Mapping[str, str], now: float) -> None:
        """Pods that start now."""
        run = self.expected_run_time(gang)
        if run is not None:
            for pod in pods:
                self._set_end(pod.uid, PodEnd(now + run, nodes[pod.uid], pod.shape))

    def mark(self) -> int:
        """A state to go back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Back to the mark."""
        while len(self._journal) > mark:
            self._write_end(*self._journal.pop())

    def forget_marks(self) -> None:
        """Everything so far stays."""
        self._journal.clear()

    def _set_end(self, uid: str, end: PodEnd | None) -> None:
        self._journal.append((uid, self._write_end(uid, end)))

    def _write_end(self, uid: str, end: PodEnd | None) -> PodEnd | None:
        """Returns what was known before."""
        self._schedule = None
        before = self._end_by_pod.pop(uid, None)
        if before is not None:
            self._find_column(before.shape).drop_row(uid)
        if end is not None:
            self._end_by_pod[uid] = end
            self._find_column(end.shape).add_row(uid, end.time, self._node_resources.position_of(end.node))
        return before

    def _find_column(self, shape: Shape) -> _ShapeColumn:
        known = self._columns_by_id.get(id(shape))
        if known is None:
            if len(self._columns_by_id) >= _MAX_SHAPES:
                self._columns_by_id.clear()
            column = self._columns.get(shape)
            if column is None:
                column = self._columns[shape] = _ShapeColumn()
            # As long as the shape is here its id is its own.
            known = self._columns_by_id[id(shape)] = shape, column
        return known[1]

    def _compute_end(self, gang: Gang, pod: Pod) -> float | None:
        if pod.state is ENDING:
            return pod.deadline
        if pod.state is NOTIFIED:
            return pod.deadline + gang.grace
        run = self.expected_run_time(gang)
        return pod.since + run if run is not None and pod.state is PLACED else None


class _ShapeColumn:
    """Times and positions of the pods of one shape, in rows that are used again."""

    def __init__(self) -> None:
        self._times: FloatArray = np.full(16, _NEVER)
        self._positions: IntArray = np.zeros(16, dtype=np.int64)
        self._row_by_pod: dict[str, int] = {}
        self._free_rows = list(range(15, -1, -1))

    def row_arrays(self) -> tuple[FloatArray, IntArray]:
        """Free rows are there too: they never end."""
        return self._times, self._positions

    def add_row(self, uid: str, time: float, position: int) -> None:
        if not self._free_rows:
            size = len(self._times)
            self._times = np.concatenate([self._times, np.full(size, _NEVER)])
            self._positions = np.concatenate([self._positions, np.zeros(size, dtype=np.int64)])
            self._free_rows = list(range(2 * size - 1, size - 1, -1))
        row = self._row_by_pod[uid] = self._free_rows.pop()
        self._times[row] = time
        self._positions[row] = position

    def drop_row(self, uid: str) -> None:
        row = self._row_by_pod.pop(uid)
        self._times[row] = _NEVER
        self._free_rows.append(row)
