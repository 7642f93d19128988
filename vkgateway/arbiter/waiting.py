"""The gangs that have not what they need to run, in columns: put in order without a look at each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

import numpy as np

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import GUARANTEED, PoolKey
from vkgateway.arbiter.fitting import BoolArray, FloatArray, IntArray

_SPARE = 1024
"""Numbers that may be out of use before all are given anew."""


class Waiting:
    """Those that ask for a core, in the order of their names; kept from cycle to cycle."""

    def __init__(self, asks: Iterable[Ask] = ()) -> None:
        self.asks: list[Ask] = []
        self.names: list[str] = []
        self.tenants: dict[str, int] = {}
        """Numbers of tenants, given as they come."""
        self._pools: dict[tuple[tuple[PoolKey, ...], ...], int] = {}
        self._alike: dict[tuple[int, int], int] = {}
        self._columns: tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray, BoolArray, BoolArray, IntArray]
        self._read(sorted(asks, key=_name))

    def __len__(self) -> int:
        return len(self.asks)

    @property
    def tenant(self) -> IntArray:
        """Of each gang the number of its tenant."""
        return self._columns[0]

    @property
    def kind(self) -> IntArray:
        """The number of its kind (`Ask.kind`)."""
        return self._columns[1]

    @property
    def pools(self) -> IntArray:
        """A number for where it may go, equal for gangs that may go to the same pools."""
        return self._columns[2]

    @property
    def created(self) -> FloatArray:
        """When it was created (seconds since the epoch)."""
        return self._columns[3]

    @property
    def priority(self) -> FloatArray:
        """Its priority, without its age."""
        return self._columns[4]

    @property
    def low(self) -> BoolArray:
        """Whether it is of the low band."""
        return self._columns[5]

    @property
    def planned(self) -> BoolArray:
        """Whether the last cycle made a plan for it."""
        return self._columns[6]

    @property
    def alike(self) -> IntArray:
        """A number below `numbers_alike` for its tenant and kind, equal for those that can stand in for each other."""
        return self._columns[7]

    @property
    def numbers_alike(self) -> int:
        """How many such numbers there may be."""
        return len(self._alike)

    def where(self, mask: BoolArray) -> list[Ask]:
        """Those that a mask chooses."""
        return [self.asks[index] for index in np.flatnonzero(mask).tolist()]

    def others(self, names: Iterable[str]) -> BoolArray:
        """A mask of all but those of these names."""
        mask = np.ones(len(self), dtype=bool)
        for name in names:
            at = bisect_left(self.names, name)
            if at < len(self.names) and self.names[at] == name:
                mask[at] = False
        return mask

    def change(self, changed: Mapping[str, Ask | None]) -> None:
        """Follow those that have changed or are new, by name; None: they wait no longer."""
        if len(self._alike) > _SPARE + 4 * len(self.asks):
            self._number_anew()
        gone = list(map(changed.__contains__, self.names))
        come = sorted((ask for ask in changed.values() if ask is not None), key=_name)
        if any(gone):
            stays = ~np.array(gone, dtype=bool)
            self.asks = list(compress(self.asks, stays.tolist()))
            self.names = list(compress(self.names, stays.tolist()))
            self._columns = tuple(column[stays] for column in self._columns)
        if not come:
            return
        before = len(self.asks)
        old, columns = (self.asks, self.names), self._columns
        self._read(come)
        asks, names = old[0] + self.asks, old[1] + self.names
        order = sorted(range(len(names)), key=names.__getitem__) if before else list(range(len(names)))
        self.asks, self.names = [asks[index] for index in order], [names[index] for index in order]
        at = np.array(order, dtype=np.int64)
        self._columns = tuple(  # type: ignore[assignment]
            np.concatenate((kept, new))[at] for kept, new in zip(columns, self._columns, strict=True)
        )

    def _number_anew(self) -> None:
        """Forget the numbers of kinds that nobody is of any more."""
        self._alike = {}
        pairs = zip(self.tenant.tolist(), self.kind.tolist(), strict=True)
        numbers = [self._alike.setdefault(pair, len(self._alike)) for pair in pairs]
        self._columns = (*self._columns[:7], np.array(numbers, dtype=np.int64))

    def _read(self, asks: Sequence[Ask]) -> None:
        gangs = [ask.gang for ask in asks]
        self.asks, self.names = list(asks), [gang.id for gang in gangs]
        tenants, pools, alike = self.tenants, self._pools, self._alike
        numbers = [tenants.setdefault(gang.tenant, len(tenants)) for gang in gangs]
        self._columns = (
            np.array(numbers, dtype=np.int64),
            np.array([ask.kind for ask in asks], dtype=np.int64),
            np.array([pools.setdefault(ask.reach, len(pools)) for ask in asks], dtype=np.int64),
            np.array([gang.created for gang in gangs], dtype=np.float64),
            np.array([gang.priority for gang in gangs], dtype=np.float64),
            np.array([gang.band is not GUARANTEED for gang in gangs], dtype=bool),
            np.array([gang.plan is not None for gang in gangs], dtype=bool),
            np.array(
                [alike.setdefault((tenant, ask.kind), len(alike)) for tenant, ask in zip(numbers, asks, strict=True)],
                dtype=np.int64,
            ),
        )


def _name(ask: Ask) -> str:
    return ask.gang.id
