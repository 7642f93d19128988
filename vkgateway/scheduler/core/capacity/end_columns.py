"""End times of pods in arrays by shape, which last from cycle to cycle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vkgateway.scheduler.core.capacity.future_fit import FreeingSchedule, make_schedule
from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.snapshot import Shape

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
