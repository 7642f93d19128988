"""Index of the gangs that have pods in a pool."""

from __future__ import annotations

from collections.abc import Sequence

from vkgateway.scheduler.core.preemption.ranks import RankIndex
from vkgateway.scheduler.core.snapshot import GUARANTEED, NOTIFIED, PLACED, WAITING, Gang, Pod, PoolKey


class GangIndex:
    """Gangs with pods in one pool, by what they have there when a cycle begins."""

    def __init__(self, key: PoolKey) -> None:
        self._key = key
        self.gangs: dict[str, Gang] = {}
        """All of them. During a cycle, their pods have the states that the cycle decides."""
        self.notified: dict[str, Gang] = {}
        """Gangs with notified pods."""
        self.guaranteed: dict[str, set[str]] = {}
        """By tenant, the names of its gangs with pods inside its guarantee."""
        self.borrowing: set[str] = set()
        """Names of the gangs of the guaranteed band with borrowing pods."""
        self.ranks = RankIndex()

    def has_pod(self, pod: Pod) -> bool:
        """Return whether a pod is placed in the pool."""
        return pod.state is not WAITING and pod.pool == self._key and bool(pod.node)

    def placed_pods(self, gang: Gang) -> tuple[Pod, ...]:
        """Return the pods of a gang that are placed in the pool."""
        key = self._key
        # As `has_pod`, which is too slow here: this runs for each changed gang.
        return tuple([pod for pod in gang.pods if pod.state is not WAITING and pod.pool == key and pod.node])

    def replace_gang(self, old: Gang | None, new: Gang | None, placed: Sequence[Pod]) -> None:
        """Replace a gang. `placed`: the new gang's pods in the pool."""
        if old is not None:
            if (known := self.gangs.pop(old.id, None)) is not None:
                self.ranks.remove_gang(known)
            self.notified.pop(old.id, None)
            self.borrowing.discard(old.id)
            if (names := self.guaranteed.get(old.tenant)) is not None:
                names.discard(old.id)
        if new is None or not placed:
            return
        self.gangs[new.id] = new
        self.ranks.add_gang(new)
        is_guaranteed = new.band is GUARANTEED
        # One plain loop: it runs for each changed gang.
        for pod in placed:
            if pod.state is NOTIFIED:
                self.notified[new.id] = new
            if not pod.borrowed:
                self.guaranteed.setdefault(new.tenant, set()).add(new.id)
            elif is_guaranteed and pod.state is PLACED:
                self.borrowing.add(new.id)
