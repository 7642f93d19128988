"""Columns over pending gangs, for numpy."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import GUARANTEED, PoolKey

_SPARE = 1024
"""Numbers out of use before all are assigned again."""


class PendingTable:
    """Gangs with pending min members, by name, kept from cycle to cycle."""

    def __init__(self, pending_gangs: Iterable[PendingGang] = ()) -> None:
        self.pending_gangs: list[PendingGang] = []
        self.names: list[str] = []
        self.tenants: dict[str, int] = {}
        """Numbers of tenants, in the order of their first gang."""
        self._pools: dict[tuple[tuple[PoolKey, ...], ...], int] = {}
        self._alike: dict[tuple[int, int], int] = {}
        self._columns: tuple[
            IntArray, IntArray, IntArray, FloatArray, FloatArray, BoolArray, BoolArray, IntArray, BoolArray
        ]
        self.alike_count = 0
        """Upper bound of `alike_numbers`."""
        self._build_columns(sorted(pending_gangs, key=_gang_id))

    def __len__(self) -> int:
        return len(self.pending_gangs)

    @property
    def tenant_numbers(self) -> IntArray:
        """Number of each gang's tenant."""
        return self._columns[0]

    @property
    def equivalence_classes(self) -> IntArray:
        """Equivalence class of each gang (`PendingGang.equivalence_class`)."""
        return self._columns[1]

    @property
    def pool_numbers(self) -> IntArray:
        """Number of each gang's allowed pools, equal for equal pools."""
        return self._columns[2]

    @property
    def created_times(self) -> FloatArray:
        """Creation time of each gang, in seconds since the epoch."""
        return self._columns[3]

    @property
    def base_priorities(self) -> FloatArray:
        """Priority of each gang, without its age."""
        return self._columns[4]

    @property
    def is_low(self) -> BoolArray:
        """Mask of the gangs in the low band."""
        return self._columns[5]

    @property
    def has_plan(self) -> BoolArray:
        """Mask of the gangs with a plan from the last cycle."""
        return self._columns[6]

    @property
    def alike_numbers(self) -> IntArray:
        """Number of each gang's tenant and equivalence class, below `alike_count`."""
        return self._columns[7]

    @property
    def is_short(self) -> BoolArray:
        """Mask of the running gangs that lost members (`Gang.short`)."""
        return self._columns[8]

    def select_gangs(self, mask: BoolArray) -> list[PendingGang]:
        return [self.pending_gangs[index] for index in np.flatnonzero(mask).tolist()]

    def mask_without(self, names: Iterable[str]) -> BoolArray:
        """Return a mask of all gangs without these names."""
        mask = np.ones(len(self), dtype=bool)
        for name in names:
            at = bisect_left(self.names, name)
            if at < len(self.names) and self.names[at] == name:
                mask[at] = False
        return mask

    def apply_changes(self, changed: Mapping[str, PendingGang | None]) -> None:
        """Replace changed and new gangs, by name; None: the gang is no longer pending."""
        if len(self._alike) > _SPARE + 4 * len(self.pending_gangs):
            self._renumber_classes()
        kept_out = list(map(changed.__contains__, self.names))
        added = sorted((pending for pending in changed.values() if pending is not None), key=_gang_id)
        if any(kept_out):
            stays = ~np.array(kept_out, dtype=bool)
            self.pending_gangs = list(compress(self.pending_gangs, stays.tolist()))
            self.names = list(compress(self.names, stays.tolist()))
            self._columns = tuple(column[stays] for column in self._columns)
        if not added:
            return
        before = len(self.pending_gangs)
        old, columns = (self.pending_gangs, self.names), self._columns
        self._build_columns(added)
        pending_gangs, names = old[0] + self.pending_gangs, old[1] + self.names
        order = sorted(range(len(names)), key=names.__getitem__) if before else list(range(len(names)))
        self.pending_gangs, self.names = [pending_gangs[index] for index in order], [names[index] for index in order]
        at = np.array(order, dtype=np.int64)
        self._columns = tuple(  # type: ignore[assignment]
            np.concatenate((kept, new))[at] for kept, new in zip(columns, self._columns, strict=True)
        )

    def _renumber_classes(self) -> None:
        """Assign `alike_numbers` again, without those out of use."""
        self._alike = {}
        pairs = zip(self.tenant_numbers.tolist(), self.equivalence_classes.tolist(), strict=True)
        numbers = [self._alike.setdefault(pair, len(self._alike)) for pair in pairs]
        self._columns = (*self._columns[:7], np.array(numbers, dtype=np.int64), self.is_short)
        self.alike_count = len(self._alike)

    def _build_columns(self, pending_gangs: Sequence[PendingGang]) -> None:
        gangs = [pending.gang for pending in pending_gangs]
        self.pending_gangs, self.names = list(pending_gangs), [gang.id for gang in gangs]
        tenants, pools, alike = self.tenants, self._pools, self._alike
        numbers = [tenants.setdefault(gang.tenant, len(tenants)) for gang in gangs]
        self._columns = (
            np.array(numbers, dtype=np.int64),
            np.array([pending.equivalence_class for pending in pending_gangs], dtype=np.int64),
            np.array(
                [pools.setdefault(pending.part_pools, len(pools)) for pending in pending_gangs],
                dtype=np.int64,
            ),
            np.array([gang.created for gang in gangs], dtype=np.float64),
            np.array([gang.priority for gang in gangs], dtype=np.float64),
            np.array([gang.band is not GUARANTEED for gang in gangs], dtype=bool),
            np.array([gang.plan is not None for gang in gangs], dtype=bool),
            np.array(
                [
                    alike.setdefault((tenant, pending.equivalence_class), len(alike))
                    for tenant, pending in zip(numbers, pending_gangs, strict=True)
                ],
                dtype=np.int64,
            ),
            np.array([gang.short for gang in gangs], dtype=bool),
        )
        self.alike_count = len(alike)


def _gang_id(pending: PendingGang) -> str:
    return pending.gang.id
