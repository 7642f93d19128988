"""Who is next: the tenant with the lowest share over its guarantee, and within it band, priority and capped age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Band, Policy

Key = tuple[bool, float, float, str]


def by_priority(ask: Ask) -> tuple[int, float, str]:
    """The order of a tenant's guaranteed gangs: priority, then age."""
    return -ask.gang.priority, ask.gang.created, ask.gang.id


def by_standing(ask: Ask, policy: Policy, now: float) -> Key:
    """The order of a tenant's borrowing gangs: its guaranteed band first, then priority that grows with age."""
    gang = ask.gang
    age = min(max(0.0, now - gang.created), policy.age_cap)
    return gang.band is not Band.GUARANTEED, -(gang.priority + age * policy.age_weight), gang.created, gang.id


def in_turn(asks: Iterable[Ask], share: Callable[[Ask], float], policy: Policy, now: float) -> Iterator[Ask]:
    """All of them, in the order of who is next (dominant resource fairness).

    `share` is asked again for a tenant each time after one of its gangs had its turn: whoever got something is later.
    Between equal shares the gang that was created first has its turn.
    """
    queues: dict[str, list[Ask]] = {}
    for ask in sorted(asks, key=lambda ask: by_standing(ask, policy, now), reverse=True):
        queues.setdefault(ask.tenant, []).append(ask)
    heap: list[tuple[float, float, str]] = []
    for tenant in sorted(queues):
        heappush(heap, _key(queues[tenant][-1], share))
    while heap:
        _, _, tenant = heappop(heap)
        queue = queues[tenant]
        yield queue.pop()
        if queue:
            heappush(heap, _key(queue[-1], share))


def _key(ask: Ask, share: Callable[[Ask], float]) -> tuple[float, float, str]:
    return share(ask), ask.gang.created, ask.tenant
