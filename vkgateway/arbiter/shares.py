"""How far tenants are beyond their guarantees, as it counts for each of their gangs that wait for their turn."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Gang, Pod, PoolKey
from vkgateway.arbiter.fitting import FloatArray, IntArray
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import comes_after
from vkgateway.arbiter.standing import Standing


def share(ledger: Ledger, ask: Ask) -> float:
    """The tenant's share in the pool that the gang likes best; the largest of those of its parts."""
    liked = _liked(ledger, ask)
    if len(liked) == 1:
        return liked[0].share(ask.tenant)
    return max([standing.share(ask.tenant) for standing in liked]) if liked else 0.0


class Shares:
    """The shares by which those that wait have their turns.

    Against a gang that has waited for the age cap does not count what its own tenant brought after it: else small work
    that flows past it would put off its turn for ever. The tenant gets no more by it, for against all its other gangs
    it counts. Nor does what leaves: its room is what the gang waits for.
    """

    def __init__(self, ledger: Ledger, started: Iterable[tuple[Gang, Pod]] = ()) -> None:
        """`started`: pods that have just been started, and borrow."""
        self._ledger = ledger
        self._started: dict[str, list[tuple[Gang, Pod]]] = {}
        for gang, pod in started:
            self._started.setdefault(gang.tenant, []).append((gang, pod))

    def of(self, ask: Ask) -> float:
        """The share that counts for a gang."""
        if not self._ledger.has_aged(ask.gang):
            return share(self._ledger, ask)
        return max((self._aged(ask.gang, standing) for standing in _liked(self._ledger, ask)), default=0.0)

    def _aged(self, gang: Gang, standing: Standing) -> float:
        without = standing.held_after_one(gang)
        for other, pod in self._started.get(gang.tenant, ()):
            if comes_after(other, gang):
                for name, amount in standing.pool.shared_by(pod.shape):
                    without[name] += amount
        return standing.shares_without(gang.tenant, without, 1).item(0)

    def of_all(self, at: IntArray) -> FloatArray:
        """The same for several at once, as indices of `Ledger.needy`: of one tenant, and for the same pools."""
        ledger, needy = self._ledger, self._ledger.needy
        first = needy.asks[at.item(0)]
        found: FloatArray = np.full(len(at), share(ledger, first))
        aged = at[ledger.now - needy.created[at] >= ledger.policy.age_cap]
        if not len(aged):
            return found
        shares: FloatArray = np.zeros(len(aged))
        for standing in _liked(ledger, first):
            without = standing.held_after(first.tenant, needy.created[aged], needy.low[aged], needy.priority[aged])
            np.maximum(shares, standing.shares_without(first.tenant, without, len(aged)), out=shares)
        found[np.isin(at, aged)] = shares
        return found


def _liked(ledger: Ledger, ask: Ask) -> list[Standing]:
    """The pool that it likes best of those that its tenant may use; for each part of its gang one."""
    if ask.gang.part is None:
        first = _first_usable(ledger, ask, ask.pools)
        return [first] if first is not None else []
    found = (_first_usable(ledger, ask, pools) for pools in ask.reach)
    return [standing for standing in found if standing is not None]


def _first_usable(ledger: Ledger, ask: Ask, pools: Iterable[PoolKey]) -> Standing | None:
    for key in pools:
        standing = ledger.standings.get(key)
        if standing is not None and standing.usable_by(ask):
            return standing
    return None
