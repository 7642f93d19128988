"""How pools, tenants and gangs stand at one moment, in the form in which it is shown. Plain data."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

WAITING, STARTING, RUNNING, LEAVING = "waiting", "starting", "running", "leaving"


class _ReportStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Amounts are in whole units of a resource (GPUs), times in seconds since the epoch."""


class PoolReport(_ReportStruct, frozen=True, gc=False):
    """A pool, by one of the resources that are handed out there."""

    pool: str
    compute_cluster: str
    node: str
    """Name of the virtual node that stands for it."""
    resource: str
    nodes: int
    usable_nodes: int
    allocatable: float
    """On usable nodes, as are `others` and `free`."""
    others: float
    """Held by pods that are not the gateway's."""
    guaranteed: float
    """Sum of the tenants' guarantees."""
    kept: float
    """How much of that the nodes hold: less while nodes are missing."""
    used: float
    """Inside guarantees."""
    borrowed: float
    """Outside of them."""
    lent: float
    """How much of what is borrowed is guaranteed to tenants who do not use it now."""
    free: float
    waiting: float
    largest: float
    """The most that is free on one node."""
    whole_nodes: int
    """Nodes of which nothing is used."""
    fragmentation: float
    """Share of what is free that lies on nodes in part use, 0 to 1."""
    gangs_waiting: int
    gangs_running: int


class TenantReport(_ReportStruct, frozen=True, gc=False):
    """A tenant in a pool, by one of the resources that are handed out there."""

    tenant: str
    pool: str
    compute_cluster: str
    resource: str
    guarantee: float
    kept: float
    """How much of that the nodes hold: less while nodes are missing."""
    reduced: str
    """How its cells were reduced by that, like `2x8 -> 8`; empty: they are all there."""
    limit: float | None
    """None: the pool alone is the limit."""
    weight: float
    used: float
    """Inside the guarantee."""
    borrowed: float
    waiting: float
    gangs_waiting: int
    gangs_running: int


class GangReport(_ReportStruct, frozen=True, gc=False):
    """A gang; a lone pod is a gang of one."""

    id: str
    tenant: str
    namespace: str
    name: str
    way: str
    """How it was said, empty for a lone pod."""
    band: str
    priority: int
    pools: tuple[str, ...]
    """Virtual nodes where it may run, best liked first."""
    pool: str
    """Where it runs or is about to start; while it waits, the first of `pools`, or where its place in line counts."""
    state: str
    """waiting, starting, running or leaving. Of one that is running some pods may wait or leave."""
    pods: int
    placed: int
    minimum: int
    units: float
    """Of the pool's first resource, all its pods together."""
    waiting_units: float
    """Of these, what those of its pods ask for that wait."""
    borrowed: bool
    """Something of it runs outside the guarantee."""
    since: float | None
    """When it was created, or since it runs when it was placed; None: not known."""
    deadline: float | None = None
    """Leaving: when it is deleted."""
    code: str = ""
    message: str = ""
    place: int = 0
    earliest: float | None = None
    likely: float | None = None
    behind: str = ""
    """The gang for which room is kept ahead of it."""
    spread: tuple[str, ...] = ()
    """Of a gang in several pools the virtual nodes of all of them: where it runs, is about to start, or may run."""

    @property
    def is_waiting(self) -> bool:
        """Something of it waits: all of it, or pods beside those that run."""
        return self.state == WAITING or self.placed < self.pods

    def may_run_in(self, pool: str) -> bool:
        """Whether it is in question for a pool, by its name or its virtual node's; where some of it runs, all will."""
        nodes = (self.spread or (self.pool,)) if self.placed else self.pools
        return any(pool in (node, node.partition(".")[0]) for node in nodes)


class ArbiterReport(_ReportStruct, frozen=True, gc=False):
    """All of it."""

    time: float = 0.0
    pools: tuple[PoolReport, ...] = ()
    tenants: tuple[TenantReport, ...] = ()
    gangs: tuple[GangReport, ...] = ()


def gangs_waiting_in(state: ArbiterReport, tenant: str = "", pool: str = "") -> Iterable[GangReport]:
    """The gangs of which something waits, of a tenant and in a pool (its name or its virtual node's).

    In their order in each pool; at the end those that run and wait for no turn, but for more room.
    """
    chosen = (
        gang
        for gang in state.gangs
        if gang.is_waiting and tenant in ("", gang.tenant) and (not pool or gang.may_run_in(pool))
    )
    last = len(state.gangs) + 1
    return sorted(
        chosen,
        key=lambda gang: (
            gang.placed > 0 and not gang.place,
            gang.pool,
            gang.place or last,
            gang.since or 0.0,
            gang.id,
        ),
    )
