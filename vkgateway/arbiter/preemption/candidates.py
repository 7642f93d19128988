"""All lots of a pool, that is what of its running work may be evicted, kept in arrays from cycle to cycle.

Lots that are dropped leave holes, which are closed now and then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from vkgateway.arbiter.capacity.free_vectors import MAX_AMOUNT
from vkgateway.arbiter.capacity.node_fit import IntArray
from vkgateway.arbiter.preemption.eviction_units import PreemptionCandidate, candidates_of
from vkgateway.arbiter.snapshot import LOW, Gang, Pod, PoolKey, Shape

FloatArray = npt.NDArray[np.float64]

_MAX_HOLES = 1024
"""Fewer dropped lots than this are not worth closing up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTable:
    """All lots in arrays, by their number, dropped ones among them; good until the next change, not to be written to.

    Rows say what each lot frees on each of its nodes.
    """

    alive: IntArray
    """0: dropped."""
    stage: IntArray
    units: IntArray
    """Thousandths of the pool's unit that are worked with by what goes, companions and what is idle then included."""
    priority: IntArray
    """By the number that `priority_values` gives."""
    low: IntArray
    """1: of the low band."""
    rank: IntArray
    tenant: IntArray
    """By the number that `tenant_names` gives."""
    digest: IntArray
    """A number made of the name alone: the last word between equals."""
    work_begun: FloatArray
    """Units times when the work on them began or was last saved."""
    restart_cost: FloatArray
    """GPU-seconds that a restart takes."""
    protected_until: FloatArray
    """Until when its minimum run time lasts (seconds since the epoch)."""
    since: FloatArray
    created: FloatArray
    """When its gang was created (seconds since the epoch)."""
    row_candidate: IntArray
    row_node: IntArray
    """By the number that `node_indices` translates."""
    row_freed: IntArray
    """Resources by rows, in thousandths."""


class PreemptionCandidates:
    """The lots of one pool. `update_gang` a gang whenever something of it has changed, `remove_gang` it when it has
    gone.
    """

    def __init__(self, pool: PoolKey, unit: str) -> None:
        self.pool = pool
        self.unit = unit
        self.candidates: list[PreemptionCandidate | None] = []
        """By number; None: dropped."""
        self.dependents: dict[int, tuple[int, ...]] = {}
        """For the core of a gang the lots beyond it, which go when it goes."""
        self._numbers_by_gang: dict[str, tuple[int, ...]] = {}
        self._numbers = _NameNumbers(unit)
        self._int_rows = _RowBuffer[np.int64](np.int64, 8)
        self._float_rows = _RowBuffer[np.float64](np.float64, 5)
        self._freed_rows = _RowBuffer[np.int64](np.int64, 2)
        self._holes = 0
        self._translation: tuple[object, IntArray] | None = None

    def __contains__(self, gang: object) -> bool:
        return gang in self._numbers_by_gang

    def __len__(self) -> int:
        return len(self.candidates) - self._holes

    def update_gang(self, gang: Gang) -> None:
        """Take in a gang as it is now; what was known of it before is forgotten."""
        self.remove_gang(gang.id)
        lots = candidates_of(gang, self.pool)
        if lots:
            self._add_gang(gang, lots)

    def remove_gang(self, gang: str) -> None:
        """Forget a gang, if it is known."""
        for number in self._numbers_by_gang.pop(gang, ()):
            self.candidates[number] = None
            self.dependents.pop(number, None)
            self._int_rows.to_array()[0, number] = 0
            self._holes += 1
        if self._holes > _MAX_HOLES and self._holes * 2 > len(self.candidates):
            self._compact_rows()

    def numbers_of_gang(self, gang: str) -> Sequence[int]:
        """The numbers of a gang's lots."""
        return self._numbers_by_gang.get(gang, ())

    def gang_ids(self) -> Iterable[str]:
        """The gangs that have lots."""
        return self._numbers_by_gang.keys()

    def all_pods(self) -> Iterator[Pod]:
        """All pods of all lots."""
        for lot in self.candidates:
            if lot is not None:
                yield from lot.pods

    def as_table(self) -> CandidateTable:
        """All lots as they are now; good until the next change."""
        rows = self._freed_rows.to_array()
        alive, stage, units, priority, low, rank, tenant, digest = self._int_rows.to_array()
        begun, restart, protected, since, created = self._float_rows.to_array()
        return CandidateTable(
            alive=alive,
            stage=stage,
            units=units,
            priority=priority,
            low=low,
            rank=rank,
            tenant=tenant,
            digest=digest,
            work_begun=begun,
            restart_cost=restart,
            protected_until=protected,
            since=since,
            created=created,
            row_candidate=rows[0],
            row_node=rows[1],
            row_freed=rows[2:],
        )

    def resource_columns(self) -> Mapping[str, int]:
        """The column of each resource in `row_freed`."""
        return self._numbers.resources

    def tenant_names(self) -> Iterable[str]:
        """Tenants in the order of their numbers."""
        return self._numbers.tenants

    def priority_values(self) -> Iterable[int]:
        """Priorities in the order of their numbers."""
        return self._numbers.priorities

    def node_indices(self, names: Sequence[str]) -> IntArray:
        """For each node number the node's index among the names; -1 where it is not one of them."""
        known = self._numbers.nodes
        if self._translation is None or self._translation[0] is not names or len(self._translation[1]) != len(known):
            index = {name: position for position, name in enumerate(names)}
            self._translation = names, np.array([index.get(name, -1) for name in known], dtype=np.int64)
        return self._translation[1]

    def _add_gang(self, gang: Gang, lots: Sequence[PreemptionCandidate]) -> None:
        first = len(self.candidates)
        mine = tuple(range(first, first + len(lots)))
        self._numbers_by_gang[gang.id] = mine
        if lots[-1].whole and len(lots) > 1:
            self.dependents[mine[-1]] = mine[:-1]
        protected = 0.0
        if gang.minimum_run > 0:
            protected = min(pod.since for pod in lots[0].running_pods) + gang.minimum_run
        tenant, priority = self._numbers.tenant_number(gang.tenant), self._numbers.priority_number(gang.priority)
        for number, lot in zip(mine, lots, strict=True):
            self._append_candidate(number, lot, tenant=tenant, priority=priority, protected=protected)

    def _append_candidate(
        self, number: int, lot: PreemptionCandidate, *, tenant: int, priority: int, protected: float
    ) -> None:
        # Called for each pod of a full cluster: the lone pod takes the short way through each of these.
        gang, going, saved = lot.gang, lot.evicted_pods + lot.idled_pods, lot.gang.checkpoint
        self.candidates.append(lot)
        units, begun, since = 0, 0.0, going[0].since
        for pod in going:
            amount = self._numbers.request_row(pod.shape)[0]
            units += amount
            begun += amount * max(pod.since, saved)
            since = min(since, pod.since)
        restart, rank = (max(0.0, gang.restart_cost), 0) if lot.whole else (0.0, lot.pods[0].rank)
        low = gang.band is LOW
        self._int_rows.append_row((1, lot.stage, units, priority, low, rank, tenant, _hash_name(lot.candidate_id)))
        self._float_rows.append_row((begun, restart, protected, since, gang.created))
        for node, amounts in self._freed_by_node(lot).items():
            self._freed_rows.append_row((number, node, *amounts))

    def _freed_by_node(self, lot: PreemptionCandidate) -> dict[int, tuple[int, ...]]:
        """By node the amounts of each resource."""
        freed: dict[int, tuple[int, ...]] = {}
        for pod in lot.pods:
            node, amounts = self._numbers.node_number(pod.node), self._numbers.request_row(pod.shape)[1]
            before = freed.get(node)
            freed[node] = amounts if before is None else _add_amounts(before, amounts)
        return freed

    def _compact_rows(self) -> None:
        """Number the lots anew, without holes, in the order that they have."""
        left: dict[str, list[PreemptionCandidate]] = {}
        for lot in self.candidates:
            if lot is not None:
                left.setdefault(lot.gang.id, []).append(lot)
        self.candidates, self.dependents, self._numbers_by_gang, self._holes = [], {}, {}, 0
        for lines in (self._int_rows, self._float_rows, self._freed_rows):
            lines.clear_rows()
        for lots in left.values():
            self._add_gang(lots[0].gang, lots)


class _NameNumbers:
    """Numbers for names, in the order in which they were first seen."""

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
        """What a pod holds of the unit, and of each resource by its number, up to the last that it holds."""
        requests = shape.requests
        found = self._request_rows.get(requests)
        if found is None:
            amounts = {self.resources.setdefault(name, len(self.resources)): amount for name, amount in requests}
            line = tuple(min(amounts.get(column, 0), MAX_AMOUNT) for column in range(max(amounts, default=-1) + 1))
            found = self._request_rows[requests] = shape.amount_of(self._unit), line
        return found


def _add_amounts(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(first + second for first, second in zip_longest(one, other, fillvalue=0))


N = TypeVar("N", np.int64, np.float64)


class _RowBuffer(Generic[N]):
    """Lines of numbers, gathered in a list and put into an array when it is asked for; columns are contiguous."""

    def __init__(self, dtype: type[N], width: int) -> None:
        self._dtype: type[N] = dtype
        self._pending: list[tuple[float, ...]] = []
        self._lines: npt.NDArray[N] = np.zeros((width, 64), dtype=dtype)
        self._count = 0

    def append_row(self, line: tuple[float, ...]) -> None:
        """Add a line; it may be longer than those before, which then have zeros there."""
        self._pending.append(line)

    def clear_rows(self) -> None:
        self._pending, self._count = [], 0

    def to_array(self) -> npt.NDArray[N]:
        """Columns by lines."""
        if self._pending:
            width, count = max(map(len, self._pending)), self._count + len(self._pending)
            self._grow_array(width, count)
            first = self._count
            for column in range(width):
                values = [line[column] if column < len(line) else 0 for line in self._pending]
                self._lines[column, first:count] = values
            self._lines[width:, first:count] = 0
            self._pending, self._count = [], count
        return self._lines[:, : self._count]

    def _grow_array(self, width: int, count: int) -> None:
        wide, long = self._lines.shape
        if width > wide or count > long:
            grown = np.zeros((max(width, wide), long if count <= long else 2 * count), dtype=self._dtype)
            grown[:wide, : self._count] = self._lines[:, : self._count]
            self._lines = grown


def _hash_name(name: str) -> int:
    """A number of 63 bits."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
