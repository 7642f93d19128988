"""Preemption candidates as rows of arrays, in which names are numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_table import MAX_AMOUNT
from vkgateway.scheduler.core.preemption.eviction_units import PreemptionCandidate
from vkgateway.scheduler.core.snapshot import LOW, Gang, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTable:
    """Candidates as arrays by number, including removed ones; read-only, valid until the next change.

    Rows hold what each candidate frees on each of its nodes.
    """

    alive: IntArray
    """0: removed."""
    stage: IntArray
    units: IntArray
    """Thousandths of the pool's unit on which the evicted pods work, including dependents and idled pods."""
    priority: IntArray
    """Number of the priority."""
    low: IntArray
    """1: low band."""
    rank: IntArray
    tenant: IntArray
    """Number of the tenant."""
    digest: IntArray
    """Hash of the name, the last tie breaker."""
    work_begun: FloatArray
    """Units times the start of the work on them, or its last checkpoint."""
    restart_cost: FloatArray
    """Cost of a restart in GPU-seconds."""
    protected_until: FloatArray
    """End of the minimum run time (seconds since the epoch)."""
    since: FloatArray
    created: FloatArray
    """Creation of its gang (seconds since the epoch)."""
    row_candidate: IntArray
    row_node: IntArray
    """Node number, which `node_indices` translates."""
    row_freed: IntArray
    """Freed thousandths, resources by rows."""
    resources: Mapping[str, int]
    """Index of each resource in `row_freed`."""
    tenants: Mapping[str, int]
    """Number of each tenant, in the order of the numbers."""
    priorities: Mapping[int, int]
    """Number of each priority, in the order of the numbers."""


class CandidateRows:
    """Rows of all candidates. Removed candidates leave holes."""

    def __init__(self, unit: str) -> None:
        self._numbers = _NameNumbers(unit)
        self._int_rows = _RowBuffer[np.int64](np.int64, 8)
        self._float_rows = _RowBuffer[np.float64](np.float64, 5)
        self._freed_rows = _RowBuffer[np.int64](np.int64, 2)
        self._translation: tuple[object, IntArray] | None = None

    def as_table(self) -> CandidateTable:
        """Return the current candidates as arrays, valid until the next change."""
        freed, numbers = self._freed_rows.to_array(), self._numbers
        alive, stage, units, priority, low, rank, tenant, digest = self._int_rows.to_array()
        work_begun, restart, protected, since, created = self._float_rows.to_array()
        return CandidateTable(
            alive=alive,
            stage=stage,
            units=units,
            priority=priority,
            low=low,
            rank=rank,
            tenant=tenant,
            digest=digest,
            work_begun=work_begun,
            restart_cost=restart,
            protected_until=protected,
            since=since,
            created=created,
            row_candidate=freed[0],
            row_node=freed[1],
            row_freed=freed[2:],
            resources=numbers.resources,
            tenants=numbers.tenants,
            priorities=numbers.priorities,
        )

    def node_indices(self, names: Sequence[str]) -> IntArray:
        """Return for each node number the index of the node among the names, or -1."""
        known = self._numbers.nodes
        if self._translation is None or self._translation[0] is not names or len(self._translation[1]) != len(known):
            index = {name: position for position, name in enumerate(names)}
            self._translation = names, np.array([index.get(name, -1) for name in known], dtype=np.int64)
        return self._translation[1]

    def append_gang(self, gang: Gang, numbers: Sequence[int], candidates: Sequence[PreemptionCandidate]) -> None:
        """Append the candidates of a gang, whose numbers follow those of all earlier candidates."""
        protected = 0.0
        if gang.minimum_run > 0:
            protected = min(pod.since for pod in candidates[0].running_pods) + gang.minimum_run
        tenant, priority = self._numbers.tenant_number(gang.tenant), self._numbers.priority_number(gang.priority)
        for number, candidate in zip(numbers, candidates, strict=True):
            self._append_candidate(number, candidate, tenant=tenant, priority=priority, protected=protected)

    def remove_candidate(self, number: int) -> None:
        """Mark a candidate as removed."""
        self._int_rows.to_array()[0, number] = 0

    def clear_rows(self) -> None:
        """Remove all rows, and the holes with them."""
        for buffer in (self._int_rows, self._float_rows, self._freed_rows):
            buffer.clear_rows()

    def _append_candidate(
        self, number: int, candidate: PreemptionCandidate, *, tenant: int, priority: int, protected: float
    ) -> None:
        # Called for each pod of a full cluster: a single pod must take a short path through each of these.
        gang, evicted, saved = candidate.gang, candidate.evicted_pods + candidate.idled_pods, candidate.gang.checkpoint
        units, work_begun, since = 0, 0.0, evicted[0].since
        for pod in evicted:
            amount = self._numbers.request_row(pod.shape)[0]
            units += amount
            work_begun += amount * max(pod.since, saved)
            since = min(since, pod.since)
        restart, rank = (max(0.0, gang.restart_cost), 0) if candidate.whole else (0.0, candidate.pods[0].rank)
        low = gang.band is LOW
        self._int_rows.append_row(
            (1, candidate.stage, units, priority, low, rank, tenant, _hash_name(candidate.candidate_id))
        )
        self._float_rows.append_row((work_begun, restart, protected, since, gang.created))
        for node, amounts in self._freed_by_node(candidate).items():
            self._freed_rows.append_row((number, node, *amounts))

    def _freed_by_node(self, candidate: PreemptionCandidate) -> dict[int, tuple[int, ...]]:
        """Return the freed amounts by node number."""
        freed: dict[int, tuple[int, ...]] = {}
        for pod in candidate.pods:
            node, amounts = self._numbers.node_number(pod.node), self._numbers.request_row(pod.shape)[1]
            previous = freed.get(node)
            freed[node] = amounts if previous is None else _add_amounts(previous, amounts)
        return freed


class _NameNumbers:
    """Numbers for names, in the order of first use."""

    def __init__(self, unit: str) -> None:
        self.nodes: dict[str, int] = {}
        self.tenants: dict[str, int] = {}
        self.priorities: dict[int, int] = {}
        self.resources: dict[str, int] = {}
        self._unit = unit
        self._request_rows: dict[tuple[tuple[str, int], ...], tuple[int, tuple[int, ...]]] = {}

    def node_number(self, name: str) -> int:
        return self.nodes.setdefault(name, len(self.nodes))

    def tenant_number(self, name: str) -> int:
        return self.tenants.setdefault(name, len(self.tenants))

    def priority_number(self, value: int) -> int:
        return self.priorities.setdefault(value, len(self.priorities))

    def request_row(self, shape: Shape) -> tuple[int, tuple[int, ...]]:
        """Return what a pod holds of the unit, and of each resource by its number, up to the last one that it holds."""
        requests = shape.requests
        found = self._request_rows.get(requests)
        if found is None:
            amounts = {self.resources.setdefault(name, len(self.resources)): amount for name, amount in requests}
            row = tuple(min(amounts.get(column, 0), MAX_AMOUNT) for column in range(max(amounts, default=-1) + 1))
            found = self._request_rows[requests] = shape.amount_of(self._unit), row
        return found


def _add_amounts(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(first + second for first, second in zip_longest(one, other, fillvalue=0))


N = TypeVar("N", np.int64, np.float64)


class _RowBuffer(Generic[N]):
    """Rows of numbers, collected in a list and written to an array on demand; columns are contiguous."""

    def __init__(self, dtype: type[N], width: int) -> None:
        self._dtype: type[N] = dtype
        self._pending: list[tuple[float, ...]] = []
        self._lines: npt.NDArray[N] = np.zeros((width, 64), dtype=dtype)
        self._count = 0

    def append_row(self, row: tuple[float, ...]) -> None:
        """Append a row. If it is longer than earlier rows, those get zeros."""
        self._pending.append(row)

    def clear_rows(self) -> None:
        self._pending, self._count = [], 0

    def to_array(self) -> npt.NDArray[N]:
        """Return the array, columns by rows."""
        if self._pending:
            width, count = max(map(len, self._pending)), self._count + len(self._pending)
            self._grow_array(width, count)
            first = self._count
            for column in range(width):
                values = [row[column] if column < len(row) else 0 for row in self._pending]
                self._lines[column, first:count] = values
            self._lines[width:, first:count] = 0
            self._pending, self._count = [], count
        return self._lines[:, : self._count]

    def _grow_array(self, width: int, count: int) -> None:
        old_width, old_length = self._lines.shape
        if width > old_width or count > old_length:
            grown = np.zeros(
                (max(width, old_width), old_length if count <= old_length else 2 * count), dtype=self._dtype
            )
            grown[:old_width, : self._count] = self._lines[:, : self._count]
            self._lines = grown


def _hash_name(name: str) -> int:
    """Return a hash of 63 bits."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
