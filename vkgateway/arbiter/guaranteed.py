"""Step 2: gangs of the guaranteed band that fit their tenant's unused cells; who stands in their way is evicted."""

from __future__ import annotations

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import by_priority
from vkgateway.arbiter.plans import inside_of, make_room
from vkgateway.arbiter.standing import Standing


def start_guaranteed(ledger: Ledger) -> None:
    """Start whoever can inside its tenant's cells, or tell who must go for it; tenants do not wait for each other."""
    hopeless: set[tuple[str, int]] = set()
    for ask in sorted(ledger.guaranteed(), key=lambda ask: (ask.tenant, by_priority(ask))):
        if (ask.tenant, ask.kind) in hopeless:
            continue
        pools = [standing for standing in ledger.pools(ask) if standing.allows_inside(ask.tenant, ask.core)]
        if any(_start(ledger, standing, ask) for standing in pools):
            continue
        if any(
            make_room(ledger, standing, ask, standing.evictable, inside=inside_of(standing, ask, ask.core))
            for standing in pools
        ):
            hopeless.clear()
        else:
            hopeless.add((ask.tenant, ask.kind))


def _start(ledger: Ledger, standing: Standing, ask: Ask) -> bool:
    if standing.beyond_limit(ask.tenant, ask.core):
        return False
    inside = inside_of(standing, ask, ask.core)
    nodes = inside(standing.room)
    if nodes is None:
        return False
    inside.commit(nodes)
    standing.take(ask.core, nodes)
    ledger.start(ask, standing, ask.core, nodes, inside=True)
    return True
