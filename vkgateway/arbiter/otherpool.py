"""Whoever has a plan inside its guarantee starts at once in another pool if it can: nobody goes for it then."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.bestpool import places_inside, start_at_best
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import let_go
from vkgateway.arbiter.standing import Standing


def start_in_another_pool(ledger: Ledger) -> bool:
    """Whether anybody does. Whoever borrows does so in its turn (`start_borrowed`): others may be ahead of it there."""
    before = len(ledger.plans)
    for gang, plan in sorted(ledger.plans.items()):
        ask = ledger.asks[gang]
        if plan.borrowed or len(ask.pools) == 1 or ask.gang.part is not None:
            continue
        places = list(places_inside(_others(ledger, ask), ask))
        if places:
            let_go(ledger.standings[plan.pool], ask, plan)
            ledger.unplan(ask)
            start_at_best(ledger, ask, places)
    return len(ledger.plans) < before


def _others(ledger: Ledger, ask: Ask) -> Iterator[Standing]:
    """The other pools in which its tenant's guarantee may hold it."""
    for standing in ledger.pools(ask):
        if standing.pool.key != ledger.plans[ask.gang.id].pool and standing.allows_inside(ask.gang, ask.core):
            yield standing
