"""Gangs in several pools: all parts of a gang start in the same cycle, or none does.

A part that could start while another cannot keeps its place as a plan: other parts may wait for victims to terminate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import PLACED, Plan
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.lots import suffices
from vkgateway.arbiter.plans import elsewhere, is_free, let_go
from vkgateway.arbiter.standing import Standing

_MANY = 16
"""Choices of one pool for each part of a gang that are tried: more would take too long."""

Attempt = Callable[[Sequence[Standing], Ask], bool]
"""Starts or plans a part in one of these pools; False: it fits in none, and nothing was done."""


def undecided_parts(ledger: Ledger, ask: Ask) -> list[Ask]:
    """Return the parts of a gang for which nothing has been decided in this cycle."""
    return [part for part in ledger.needy_parts(ask.gang) if not ledger.is_decided(part)]


def try_together(ledger: Ledger, parts: Sequence[Ask], attempt: Attempt) -> Ask | None:
    """Have all parts of a gang start or planned; return the first part for which that fails: then nothing is done."""
    # What may go to one pool only comes first: what may go to several takes what is left.
    order = sorted(parts, key=lambda part: (len(part.pools), part.gang.id))
    failed: Ask | None = order[0]
    for pools in _ways(ledger, order) if _others_stay(ledger, order[0]) else ():
        before = ledger.checkpoint()
        with ledger.only_plans():
            failed = next((part for part in order if not attempt(pools[part.gang.id], part)), None)
        if failed is None:
            start_if_ready(ledger, order[0])
            return None
        ledger.go_back(before)
    return failed


def _ways(ledger: Ledger, parts: Sequence[Ask]) -> Iterator[Mapping[str, Sequence[Standing]]]:
    """Yield by part the pools to try: all of one compute cluster, then each choice of one pool for each part."""
    for cluster in _clusters(ledger, parts):
        each = [[one for one in ledger.pools(part) if one.pool.key[0] == cluster] for part in parts]
        yield {part.gang.id: pools for part, pools in zip(parts, each, strict=True)}
        if sum(len(pools) > 1 for pools in each) > 1:
            for chosen in islice(product(*each), _MANY):
                yield {part.gang.id: [one] for part, one in zip(parts, chosen, strict=True)}


def _clusters(ledger: Ledger, parts: Sequence[Ask]) -> Iterator[str]:
    """Yield the compute clusters in which all the parts may run, the one that the first likes best first."""
    decided = {plan.pool[0] for name in parts[0].gang.kin if (plan := ledger.plans.get(name)) is not None}
    each = [dict.fromkeys(standing.pool.key[0] for standing in ledger.pools(part)) for part in parts]
    for cluster in each[0]:
        if all(cluster in others for others in each) and decided <= {cluster}:
            yield cluster


def _others_stay(ledger: Ledger, ask: Ask) -> bool:
    """Return whether what runs of the gang goes on running, as far as is decided."""
    kin = set(ask.gang.kin)
    if any(evict.whole and evict.gang in kin for evict in ledger.evicts):
        return False
    for name in ask.gang.kin:
        part, needs = ledger.gangs.get(name), ledger.asks.get(name)
        if part is None:
            return False
        stays = [pod for pod in part.pods if pod.state is PLACED]
        if not suffices(part, [*stays, *(needs.core if needs is not None else ())]):
            return False
    return True


def start_if_ready(ledger: Ledger, ask: Ask) -> bool:
    """Start the gang whose parts all have plans, if their room is free by now."""
    parts = [part for part in ledger.needy_parts(ask.gang) if part.gang.id not in ledger.started]
    if not parts or not all(_is_ready(ledger, part) for part in parts):
        return False
    for part in parts:
        plan = ledger.plans[part.gang.id]
        ledger.start_planned(part, ledger.standings[plan.pool], plan.nodes)
    # Its surplus, and gangs that wait behind it, may take more than was known while its parts were planned.
    ledger.freed = True
    return True


def _is_ready(ledger: Ledger, part: Ask) -> bool:
    plan = ledger.plans.get(part.gang.id)
    if plan is None:
        return False
    standing = ledger.standings[plan.pool]
    return is_free(standing, part, plan) and standing.within_limit(part.tenant, part.core)


def start_ready_together(ledger: Ledger) -> bool:
    """Start the gangs whose parts' plans can all start, on their nodes or on others; return whether any does."""
    started = False
    for ask in _planned(ledger):
        started = start_if_ready(ledger, ask) or _start_elsewhere(ledger, ask) or started
    return started


def _planned(ledger: Ledger) -> list[Ask]:
    """Return one part of each gang that has plans for its parts."""
    first: dict[str, Ask] = {}
    for name in sorted(ledger.plans) if ledger.parts else ():
        ask = ledger.asks[name]
        if ask.gang.part is not None:
            first.setdefault(ask.gang.whole, ask)
    return list(first.values())


def _start_elsewhere(ledger: Ledger, ask: Ask) -> bool:
    parts = ledger.needy_parts(ask.gang)
    if not all(part.gang.id in ledger.plans for part in parts):
        return False
    before = ledger.checkpoint()
    if all(_is_ready(ledger, part) or _move(ledger, part) for part in parts) and start_if_ready(ledger, ask):
        return True
    ledger.go_back(before)
    return False


def _move(ledger: Ledger, part: Ask) -> bool:
    """Plan a part for what is free now; False: it does not fit, and its plan is lost."""
    plan = ledger.plans[part.gang.id]
    standing = ledger.standings[plan.pool]
    let_go(standing, part, plan)
    nodes = elsewhere(standing, part, plan) if standing.within_limit(part.tenant, part.core) else None
    if nodes is None:
        return False
    ledger.plans[part.gang.id] = replace(plan, nodes=dict(nodes))
    return True


def drop_incomplete(ledger: Ledger) -> bool:
    """Drop the plans of gangs of which another part has none any more; return whether there were any."""
    dropped = False
    for ask in _planned(ledger):
        parts = ledger.needy_parts(ask.gang)
        if all(ledger.is_decided(part) for part in parts):
            continue
        for part in parts:
            plan: Plan | None = ledger.plans.get(part.gang.id)
            if plan is not None:
                let_go(ledger.standings[plan.pool], part, plan)
                ledger.unplan(part)
                ledger.freed = dropped = True
    return dropped
