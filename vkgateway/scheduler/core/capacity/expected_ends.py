"""Expected ends of the pods of one pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vkgateway.scheduler.core.capacity.future_fit import FreeingSchedule, make_schedule
from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_table import NodeTable
from vkgateway.scheduler.core.capacity.run_limits import expected_end, run_start
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.snapshot import ENDING, NOTIFIED, PLACED, Gang, Pod, Policy, Pool, Shape


class PodEnd(NamedTuple):
    """Resources that a pod frees, and the time of its end (seconds since the epoch)."""

    time: float
    node: str
    shape: Shape


class ExpectedEnds:
    """Expected ends by pod: from run limits, observed run times with a margin, and deadlines."""

    def __init__(self, nodes: NodeTable, pool: Pool, policy: Policy, journal: Journal | None = None) -> None:
        self._journal = journal or Journal()
        self._names, self._positions = nodes.names, nodes.positions
        self._pool, self._policy = pool, policy
        self._last_start: tuple[Gang, float | None] | None = None
        self._end_by_pod: dict[str, PodEnd] = {}
        self._columns = EndColumns()
        self._schedule: tuple[float, FreeingSchedule] | None = None

    def end_of(self, uid: str) -> float | None:
        """Return when a pod ends; None: unknown."""
        end = self._end_by_pod.get(uid)
        return end.time if end is not None else None

    def expected_run_time(self, gang: Gang) -> float | None:
        """Return the expected run time of a gang in seconds; None: unknown. Observed run times include the margin."""
        return expected_end(gang, self._pool, self._policy, since=0.0, start=0.0)

    def ends_on(self, nodes: Collection[str], *, until: float) -> Iterator[tuple[str, Shape]]:
        """Yield the node and shape of each pod that ends on these nodes by a time."""
        positions = np.array([self._positions[node] for node in nodes], dtype=np.int64)
        for position, shape in self._columns.ends_at(positions, until):
            yield self._names[position], shape

    def freeing_schedule(self, now: float) -> FreeingSchedule:
        """Return all known ends; none is before now."""
        if self._schedule is None or self._schedule[0] != now:
            self._schedule = now, self._columns.build_schedule(now)
        return self._schedule[1]

    # Changes

    def update_pod(self, gang: Gang, pod: Pod) -> None:
        """Record the expected end of a placed pod."""
        time = self._compute_end(gang, pod)
        if time is not None and pod.node in self._positions:
            self._set_end(pod.uid, PodEnd(time, pod.node, pod.shape))
        else:
            self.remove_pod(pod.uid)

    def remove_pod(self, uid: str) -> None:
        if uid in self._end_by_pod:
            self._set_end(uid, None)

    def add_notified(self, gang: Gang, pods: Iterable[Pod], deadline: float) -> None:
        """Record the ends of pods that were just notified of their eviction."""
        for pod in pods:
            if pod.node in self._positions:
                self._set_end(pod.uid, PodEnd(deadline + gang.grace, pod.node, pod.shape))

    def add_started(self, gang: Gang, pods: Sequence[Pod], nodes: Mapping[str, str], now: float) -> None:
        """Record the ends of pods that start now."""
        time = self._end_of_run(gang, now)
        if time is not None:
            for pod in pods:
                self._set_end(pod.uid, PodEnd(time, nodes[pod.uid], pod.shape))

    def _set_end(self, uid: str, end: PodEnd | None) -> None:
        self._journal.record(self._write_end, uid, self._write_end(uid, end))

    def _write_end(self, uid: str, end: PodEnd | None) -> PodEnd | None:
        """Write an end and return the previous one."""
        self._schedule = None
        previous = self._end_by_pod.pop(uid, None)
        if previous is not None:
            self._columns.column_of(previous.shape).drop_row(uid)
        if end is not None:
            self._end_by_pod[uid] = end
            self._columns.column_of(end.shape).add_row(uid, end.time, self._positions[end.node])
        return previous

    def _compute_end(self, gang: Gang, pod: Pod) -> float | None:
        if pod.state is ENDING:
            return pod.deadline
        if pod.state is NOTIFIED:
            return pod.deadline + gang.grace
        return self._end_of_run(gang, pod.since) if pod.state is PLACED else None

    def _end_of_run(self, gang: Gang, since: float) -> float | None:
        start = self._start_of(gang)
        return expected_end(gang, self._pool, self._policy, since=since, start=since if start is None else start)

    def _start_of(self, gang: Gang) -> float | None:
        """Return when the gang's run began, found once for all its pods."""
        if self._last_start is None or self._last_start[0] is not gang:
            self._last_start = gang, run_start(gang)
        return self._last_start[1]


_NEVER = float("inf")

_MAX_SHAPES = 256
"""Number of shapes that are found by identity."""


class EndColumns:
    """End times and node positions of pods, a column for each shape."""

    def __init__(self) -> None:
        self._columns: dict[Shape, ShapeColumn] = {}
        self._columns_by_id: dict[int, tuple[Shape, ShapeColumn]] = {}
        """Columns by the identity of shapes: equal pods mostly share the shape, and its hash is slow."""

    def column_of(self, shape: Shape) -> ShapeColumn:
        """Return the column of a shape; a new one if there is none."""
        entry = self._columns_by_id.get(id(shape))
        if entry is None:
            if len(self._columns_by_id) >= _MAX_SHAPES:
                self._columns_by_id.clear()
            column = self._columns.get(shape)
            if column is None:
                column = self._columns[shape] = ShapeColumn()
            # The stored reference keeps the shape alive, so its id stays unique.
            entry = self._columns_by_id[id(shape)] = shape, column
        return entry[1]

    def ends_at(self, positions: IntArray, until: float) -> Iterator[tuple[int, Shape]]:
        """Yield the position and shape of each pod that ends on these nodes by a time."""
        for shape, column in self._columns.items():
            times, nodes = column.row_arrays()
            for position in nodes[(times <= until) & np.isin(nodes, positions)].tolist():
                yield position, shape

    def build_schedule(self, now: float) -> FreeingSchedule:
        """Return all ends; none is before now."""
        rows = [column.row_arrays() for column in self._columns.values()]
        if not rows:
            return make_schedule((), {})
        times = np.concatenate([each for each, _ in rows])
        order = np.argsort(times, kind="stable")
        order = order[: int(times[order].searchsorted(_NEVER))]
        kinds = np.repeat(np.arange(len(rows)), [len(each) for each, _ in rows])
        positions = np.concatenate([each for _, each in rows])
        return FreeingSchedule(np.maximum(times[order], now), positions[order], kinds[order], list(self._columns))


class ShapeColumn:
    """End times and node positions of the pods of one shape, in reusable rows."""

    def __init__(self) -> None:
        self._times: FloatArray = np.full(16, _NEVER)
        self._positions: IntArray = np.zeros(16, dtype=np.int64)
        self._row_by_pod: dict[str, int] = {}
        self._free_rows = list(range(15, -1, -1))

    def row_arrays(self) -> tuple[FloatArray, IntArray]:
        """Return the times and positions of all rows. Free rows never end."""
        return self._times, self._positions

    def add_row(self, uid: str, time: float, position: int) -> None:
        """Add the end of a pod."""
        if not self._free_rows:
            size = len(self._times)
            self._times = np.concatenate([self._times, np.full(size, _NEVER)])
            self._positions = np.concatenate([self._positions, np.zeros(size, dtype=np.int64)])
            self._free_rows = list(range(2 * size - 1, size - 1, -1))
        row = self._row_by_pod[uid] = self._free_rows.pop()
        self._times[row] = time
        self._positions[row] = position

    def drop_row(self, uid: str) -> None:
        """Remove a pod."""
        row = self._row_by_pod.pop(uid)
        self._times[row] = _NEVER
        self._free_rows.append(row)
