"""Expected ends of the pods of one pool, in arrays that last from cycle to cycle."""

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
"""Number of shapes that are found by identity."""


class PodEnd(NamedTuple):
    """Resources that a pod frees, and the time of its end (seconds since the epoch)."""

    time: float
    node: str
    shape: Shape


class ExpectedEnds:
    """Expected ends by pod: from declared run limits, observed run times with a margin, and deadlines.

    Changes can be undone.
    """

    def __init__(self, resources: NodeResources, policy: Policy) -> None:
        self._node_resources = resources
        self._policy = policy
        self._end_by_pod: dict[str, PodEnd] = {}
        self._columns: dict[Shape, _ShapeColumn] = {}
        self._columns_by_id: dict[int, tuple[Shape, _ShapeColumn]] = {}
        """Columns by the identity of shapes: equal pods mostly share the shape, and its hash is slow."""
        self._journal: list[tuple[str, PodEnd | None]] = []
        self._schedule: tuple[float, FreeingSchedule] | None = None

    def update_nodes(self, resources: NodeResources) -> None:
        """Set the resources of the same nodes after some of them changed."""
        self._node_resources = resources

    def end_of(self, uid: str) -> float | None:
        """Return when a pod ends; None: unknown."""
        end = self._end_by_pod.get(uid)
        return end.time if end is not None else None

    def expected_run_time(self, gang: Gang) -> float | None:
        """Return the expected run time of a gang in seconds; None: unknown. Observed run times include the margin."""
        if gang.run_limit is not None:
            return gang.run_limit
        return gang.expected_run * self._policy.run_margin if gang.expected_run is not None else None

    def ends_on(self, nodes: Collection[str], *, until: float) -> Iterator[tuple[str, Shape]]:
        """Yield the node and shape of each pod that ends on these nodes by a time."""
        wanted = np.array([self._node_resources.nodes.positions[node] for node in nodes], dtype=np.int64)
        for shape, column in self._columns.items():
            times, positions = column.row_arrays()
            for position in positions[(times <= until) & np.isin(positions, wanted)].tolist():
                yield self._node_resources.nodes.names[position], shape

    def freeing_schedule(self, now: float) -> FreeingSchedule:
        """Return all known ends; none is before now."""
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
        """Record the expected end of a placed pod."""
        time = self._compute_end(gang, pod)
        if time is not None and pod.node in self._node_resources.nodes:
            self._set_end(pod.uid, PodEnd(time, pod.node, pod.shape))
        else:
            self.remove_pod(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod."""
        if uid in self._end_by_pod:
            self._set_end(uid, None)

    def add_notified(self, gang: Gang, pods: Iterable[Pod], deadline: float) -> None:
        """Record the ends of pods that were just notified of their eviction."""
        for pod in pods:
            if pod.node in self._node_resources.nodes:
                self._set_end(pod.uid, PodEnd(deadline + gang.grace, pod.node, pod.shape))

    def add_started(self, gang: Gang, pods: Sequence[Pod], nodes: Mapping[str, str], now: float) -> None:
        """Record the ends of pods that start now."""
        run_time = self.expected_run_time(gang)
        if run_time is not None:
            for pod in pods:
                self._set_end(pod.uid, PodEnd(now + run_time, nodes[pod.uid], pod.shape))

    def mark(self) -> int:
        """Return a mark for `undo`."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo all changes since the mark."""
        while len(self._journal) > mark:
            self._write_end(*self._journal.pop())

    def forget_marks(self) -> None:
        """Keep all changes so far: earlier marks become invalid."""
        self._journal.clear()

    def _set_end(self, uid: str, end: PodEnd | None) -> None:
        self._journal.append((uid, self._write_end(uid, end)))

    def _write_end(self, uid: str, end: PodEnd | None) -> PodEnd | None:
        """Write an end and return the previous one."""
        self._schedule = None
        previous = self._end_by_pod.pop(uid, None)
        if previous is not None:
            self._find_column(previous.shape).drop_row(uid)
        if end is not None:
            self._end_by_pod[uid] = end
            self._find_column(end.shape).add_row(uid, end.time, self._node_resources.nodes.positions[end.node])
        return previous

    def _find_column(self, shape: Shape) -> _ShapeColumn:
        entry = self._columns_by_id.get(id(shape))
        if entry is None:
            if len(self._columns_by_id) >= _MAX_SHAPES:
                self._columns_by_id.clear()
            column = self._columns.get(shape)
            if column is None:
                column = self._columns[shape] = _ShapeColumn()
            # The stored reference keeps the shape alive, so its id stays unique.
            entry = self._columns_by_id[id(shape)] = shape, column
        return entry[1]

    def _compute_end(self, gang: Gang, pod: Pod) -> float | None:
        if pod.state is ENDING:
            return pod.deadline
        if pod.state is NOTIFIED:
            return pod.deadline + gang.grace
        run_time = self.expected_run_time(gang)
        return pod.since + run_time if run_time is not None and pod.state is PLACED else None


class _ShapeColumn:
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
