"""Who of a pool may be called in for whom: kept from cycle to cycle, and brought up to date when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import PLACED, Gang, Pool
from vkgateway.arbiter.lots import core_of


class Calling:
    """The lots of a pool: all that borrow, and those that also a gang that borrows may call in.

    Each question is asked with the gangs that have something in the pool, and the uids of the pods inside cells.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._all = _Kept(Evictable(pool.key, pool.measure), as_it_counts)
        self._surplus = _Kept(Evictable(pool.key, pool.measure), self._only_surplus)
        self._stale: set[str] = set()
        self._behind: dict[str, dict[str, None]] = {}
        self._ahead_of: dict[str, Sequence[str]] = {}

    def changed(self, gang: str) -> None:
        """Something of this gang has changed."""
        self._all.stale.add(gang)
        self._surplus.stale.add(gang)
        self._stale.add(gang)

    def gone(self, gang: str) -> None:
        """Nothing of this gang is left in the pool. Of one that was never asked about nothing is remembered."""
        self._all.gone(gang)
        self._surplus.gone(gang)
        if gang in self._ahead_of:
            self._stale.add(gang)
        else:
            self._stale.discard(gang)

    @property
    def remembered(self) -> int:
        """How many gangs are to be looked at again when somebody asks."""
        return len(self._all.stale | self._surplus.stale | self._stale)

    def evictable(self, gangs: Mapping[str, Gang], inside: Set[str]) -> Evictable:
        """What runs outside of cells."""
        return self._all.fresh(gangs, inside)

    def surplus(self, gangs: Mapping[str, Gang], inside: Set[str]) -> Evictable:
        """Of that only what elastic gangs have beyond their minimum."""
        return self._surplus.fresh(gangs, inside)

    def behind(self, gangs: Mapping[str, Gang]) -> Mapping[str, Mapping[str, None]]:
        """By gang the gangs that run in a place that was reserved for it."""
        if not self._stale:
            return self._behind
        ours = (name for name in self._stale if name in self._ahead_of or _is_behind(gangs.get(name)))
        for name in sorted(ours):
            for ahead in self._ahead_of.pop(name, ()):
                del self._behind[ahead][name]
                if not self._behind[ahead]:
                    del self._behind[ahead]
            gang = gangs.get(name)
            pods = gang.pods if gang is not None else ()
            aheads = sorted({pod.behind for pod in pods if pod.behind and pod.state is PLACED})
            if aheads:
                self._ahead_of[name] = aheads
                for ahead in aheads:
                    self._behind.setdefault(ahead, {})[name] = None
        self._stale.clear()
        return self._behind

    def of(self, gang: str, gangs: Mapping[str, Gang], inside: Set[str]) -> Evictable:
        """What a gang that borrows may call in: surplus, and what runs in the place that was reserved for it."""
        surplus, behind = self.surplus(gangs, inside), self.behind(gangs).get(gang)
        if not behind:
            return surplus
        found = Evictable(self._pool.key, self._pool.measure)
        for name in sorted({*surplus.gangs(), *behind}):
            known = gangs[name]
            found.put(as_it_counts(known, inside) if name in behind else self._core_fixed(known, inside))
        return found

    def _only_surplus(self, gang: Gang, inside: Set[str]) -> Gang | None:
        return self._core_fixed(gang, inside) if gang.elastic else None

    def _core_fixed(self, gang: Gang, inside: Set[str]) -> Gang:
        gang = as_it_counts(gang, inside)
        key = self._pool.key
        placed = [pod for pod in gang.pods if pod.state is PLACED and pod.pool == key and pod.node]
        core = {pod.uid for pod in core_of(gang, placed)}
        return replace(gang, pods=tuple(replace(pod, borrowed=False) if pod.uid in core else pod for pod in gang.pods))


def _is_behind(gang: Gang | None) -> bool:
    """Whether it runs in a place that was reserved for another gang."""
    for pod in gang.pods if gang is not None else ():  # noqa: SIM110 - a loop is far quicker than `any`
        if pod.behind and pod.state is PLACED:
            return True
    return False


class _Kept:
    """Lots, and the gangs of which they are out of date."""

    def __init__(self, lots: Evictable, shown: Callable[[Gang, Set[str]], Gang | None]) -> None:
        self.stale: set[str] = set()
        self._lots = lots
        self._shown = shown

    def gone(self, gang: str) -> None:
        if gang in self._lots:
            self.stale.add(gang)
        else:
            self.stale.discard(gang)

    def fresh(self, gangs: Mapping[str, Gang], inside: Set[str]) -> Evictable:
        for name in sorted(self.stale):
            gang = gangs.get(name)
            shown = self._shown(gang, inside) if gang is not None else None
            if shown is not None:
                self._lots.put(shown)
            else:
                self._lots.drop(name)
        self.stale.clear()
        return self._lots


def as_it_counts(gang: Gang, inside: Set[str]) -> Gang:
    """The gang with its pods marked as borrowed or not by what holds now."""
    if all(pod.borrowed is (pod.uid not in inside) for pod in gang.pods):
        return gang
    pods = tuple(
        pod if pod.borrowed is (pod.uid not in inside) else replace(pod, borrowed=pod.uid not in inside)
        for pod in gang.pods
    )
    return replace(gang, pods=pods)
