"""The gangs that have not what they need to run, in columns: put in order without a look at each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import GUARANTEED, PoolKey

_SPARE = 1024
"""Numbers that may be out of use before all are given anew."""


class PendingTable:
    """Those that ask for a core, in the order of their names; kept from cycle to cycle."""

    def __init__(self, asks: Iterable[PendingGang] = ()) -> None:
        self.pending_gangs: list[PendingGang] = []
        self.names: list[str] = []
        self.tenants: dict[str, int] = {}
        """Numbers of tenants, given as they come."""
        self._pools: dict[tuple[tuple[PoolKey, ...], ...], int] = {}
        self._alike: dict[tuple[int, int], int] = {}
        self._columns: tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray, BoolArray, BoolArray, IntArray]
        self._build_columns(sorted(asks, key=_gang_id))

    def __len__(self) -> int:
        return len(self.pending_gangs)

    @property
    def tenant_numbers(self) -> IntArray:
        """Of each gang the number of its tenant."""
        return self._columns[0]

    @property
    def equivalence_classes(self) -> IntArray:
        """The number of its kind (`PendingGang.equivalence_class`)."""
        return self._columns[1]

    @property
    def pool_numbers(self) -> IntArray:
        """A number for where it may go, equal for gangs that may go to the same pools."""
        return self._columns[2]

    @property
    def created_times(self) -> FloatArray:
        """When it was created (seconds since the epoch)."""
        return self._columns[3]

    @property
    def base_priorities(self) -> FloatArray:
        """Its priority, without its age."""
        return self._columns[4]

    @property
    def is_low(self) -> BoolArray:
        """Whether it is of the low band."""
        return self._columns[5]

    @property
    def has_plan(self) -> BoolArray:
        """Whether the last cycle made a plan for it."""
        return self._columns[6]

    @property
    def alike_numbers(self) -> IntArray:
        """A number below `alike_count` for its tenant and kind, equal for those that can stand in for each other."""
        return self._columns[7]

    @property
    def alike_count(self) -> int:
        """How many such numbers there may be."""
        return len(self._alike)

    def select_gangs(self, mask: BoolArray) -> list[PendingGang]:
        """Those that a mask chooses."""
        return [self.pending_gangs[index] for index in np.flatnonzero(mask).tolist()]

    def mask_without(self, names: Iterable[str]) -> BoolArray:
        """A mask of all but those of these names."""
        mask = np.ones(len(self), dtype=bool)
        for name in names:
            at = bisect_left(self.names, name)
            if at < len(self.names) and self.names[at] == name:
                mask[at] = False
        return mask

    def apply_changes(self, changed: Mapping[str, PendingGang | None]) -> None:
        """Follow those that have changed or are new, by name; None: they wait no longer."""
        if len(self._alike) > _SPARE + 4 * len(self.pending_gangs):
            self._renumber_classes()
        gone = list(map(changed.__contains__, self.names))
        come = sorted((ask for ask in changed.values() if ask is not None), key=_gang_id)
        if any(gone):
            stays = ~np.array(gone, dtype=bool)
            self.pending_gangs = list(compress(self.pending_gangs, stays.tolist()))
            self.names = list(compress(self.names, stays.tolist()))
            self._columns = tuple(column[stays] for column in self._columns)
        if not come:
            return
        before = len(self.pending_gangs)
        old, columns = (self.pending_gangs, self.names), self._columns
        self._build_columns(come)
        asks, names = old[0] + self.pending_gangs, old[1] + self.names
        order = sorted(range(len(names)), key=names.__getitem__) if before else list(range(len(names)))
        self.pending_gangs, self.names = [asks[index] for index in order], [names[index] for index in order]
        at = np.array(order, dtype=np.int64)
        self._columns = tuple(  # type: ignore[assignment]
            np.concatenate((kept, new))[at] for kept, new in zip(columns, self._columns, strict=True)
        )

    def _renumber_classes(self) -> None:
        """Forget the numbers of kinds that nobody is of any more."""
        self._alike = {}
        pairs = zip(self.tenant_numbers.tolist(), self.equivalence_classes.tolist(), strict=True)
        numbers = [self._alike.setdefault(pair, len(self._alike)) for pair in pairs]
        self._columns = (*self._columns[:7], np.array(numbers, dtype=np.int64))

    def _build_columns(self, asks: Sequence[PendingGang]) -> None:
        gangs = [ask.gang for ask in asks]
        self.pending_gangs, self.names = list(asks), [gang.id for gang in gangs]
        tenants, pools, alike = self.tenants, self._pools, self._alike
        numbers = [tenants.setdefault(gang.tenant, len(tenants)) for gang in gangs]
        self._columns = (
            np.array(numbers, dtype=np.int64),
            np.array([ask.equivalence_class for ask in asks], dtype=np.int64),
            np.array([pools.setdefault(ask.part_pools, len(pools)) for ask in asks], dtype=np.int64),
            np.array([gang.created for gang in gangs], dtype=np.float64),
            np.array([gang.priority for gang in gangs], dtype=np.float64),
            np.array([gang.band is not GUARANTEED for gang in gangs], dtype=bool),
            np.array([gang.plan is not None for gang in gangs], dtype=bool),
            np.array(
                [
                    alike.setdefault((tenant, ask.equivalence_class), len(alike))
                    for tenant, ask in zip(numbers, asks, strict=True)
                ],
                dtype=np.int64,
            ),
        )


def _gang_id(ask: PendingGang) -> str:
    return ask.gang.id
