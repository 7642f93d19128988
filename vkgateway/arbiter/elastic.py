"""Step 5: what is left goes to gangs that run with their minimum and can use more, pod by pod and in turn."""

from __future__ import annotations

from dataclasses import replace

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.borrowed import find_behind
from vkgateway.arbiter.facts import GUARANTEED, NOTIFIED, PLACED, Pod, PoolKey
from vkgateway.arbiter.inside import Inside
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.limitline import crowds_out
from vkgateway.arbiter.line import in_turn
from vkgateway.arbiter.lots import core_of
from vkgateway.arbiter.parts import beside
from vkgateway.arbiter.plans import among, place_beside_reserve
from vkgateway.arbiter.shares import share
from vkgateway.arbiter.standing import Standing


def grow(ledger: Ledger) -> None:
    """Start pods beyond the minimum while there is room, one a turn; nobody is evicted for them."""
    names = [name for name in ledger.beyond if name not in ledger.barred]
    growing = {name: ledger.asks[name] for name in names if _runs(ledger, ledger.asks[name])}
    while growing:
        grown: dict[str, Ask] = {}
        asks = [growing[name] for name in sorted(growing)]
        for ask in in_turn(asks, lambda ask: share(ledger, ask), ledger.policy, ledger.now):
            if _next(ledger, ask) and len(ask.rest) > 1:
                grown[ask.gang.id] = replace(ask, rest=ask.rest[1:])
        growing = grown


def _runs(ledger: Ledger, ask: Ask) -> bool:
    """Whether its minimum runs, and nothing of it has just been called in."""
    parts = ask.gang.kin
    leaving = any(pod.state is NOTIFIED for name in parts for pod in ledger.gangs[name].pods)
    evicted = any(evict.gang in parts for evict in ledger.evicts)
    waits = any(part.gang.id not in ledger.started for part in ledger.needy_parts(ask.gang))
    return not leaving and not evicted and not waits


def _next(ledger: Ledger, ask: Ask) -> bool:
    if ask.gang.part is not None:
        return any(_next_in(ledger, standing, ask) for standing in _pools_beside(ledger, ask))
    started = ledger.started.get(ask.gang.id)
    standing = started.standing if started is not None else next(ledger.pools(ask), None)
    return standing is not None and _next_in(ledger, standing, ask)


def _pools_beside(ledger: Ledger, ask: Ask) -> list[Standing]:
    """Return the pools that are tried for the next pod of a part: as in the next cycle, with what starts now placed."""
    there: dict[str, set[PoolKey]] = {}
    for name in ask.gang.kin:
        for pod in ledger.gangs[name].pods:
            key = ledger.pool_of.get(pod.uid) or (pod.pool if pod.state in (PLACED, NOTIFIED) else None)
            if key is not None:
                there.setdefault(pod.role, set()).add(key)
    keys = beside(ask.pools, ask.rest[0].role, there)
    clusters = {key[0] for found in there.values() for key in found}
    return [each for each in ledger.pools(ask) if each.pool.key in keys and each.pool.key[0] in clusters]


def _next_in(ledger: Ledger, standing: Standing, ask: Ask) -> bool:
    pod, started = ask.rest[0], ledger.started.get(ask.gang.id)
    if standing.beyond_limit(ask.tenant, [pod]) or crowds_out(ledger, standing, ask, [pod]):
        return False
    near = replace(ask, running=_placed(ask, standing, started.nodes if started is not None else {}))
    nodes = _inside(standing, near, pod)
    inside = nodes is not None
    if nodes is None:
        nodes = _borrowed(ledger, standing, near, pod)
    if nodes is None:
        return False
    standing.take([pod], nodes)
    ledger.start(ask, standing, [pod], nodes, inside=inside, lent=ask.gang.elastic and not inside)
    return True


def _borrowed(ledger: Ledger, standing: Standing, ask: Ask, pod: Pod) -> dict[str, str] | None:
    """A place in what is free; what is surplus is called in at any time, and so may be in what is reserved."""
    nodes = find_behind(ledger, standing, ask, [pod])
    if nodes is None and ask.gang.elastic:
        mark = standing.room.mark()
        nodes = place_beside_reserve(standing, ask, [pod])
        standing.room.undo(mark)
    return nodes


def _placed(ask: Ask, standing: Standing, nodes: dict[str, str]) -> tuple[Pod, ...]:
    """What of the gang has nodes by now."""
    pods = {pod.uid: pod for pod in ask.gang.pods}
    started = (
        replace(pods[uid], node=node, pool=standing.pool.key, borrowed=not standing.is_inside(uid))
        for uid, node in nodes.items()
    )
    return (*ask.running, *started)


def _inside(standing: Standing, ask: Ask, pod: Pod) -> dict[str, str] | None:
    """A place inside the tenant's cells, which are held then. Not while the gang's core borrows: that may have to go,
    and takes along whatever runs beyond it, which then would be work inside its guarantee."""
    if ask.gang.band is not GUARANTEED or not standing.allows_inside(ask.gang, [pod]):
        return None
    if not all(standing.is_inside(one.uid) for one in core_of(ask.gang, ask.running)):
        return None
    inside = Inside(standing.cells, ask.tenant, [pod], among=among(standing, ask))
    nodes = inside(standing.room)
    if nodes is not None:
        inside.commit(nodes)
    return nodes
