"""Reports of pools, tenants and gangs at one moment, in the form for display. Plain data."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

WAITING, STARTING, RUNNING, LEAVING = "waiting", "starting", "running", "leaving"


class _ReportStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of reports. Amounts are in whole units of a resource (GPUs), times in seconds since the epoch."""


class PoolReport(_ReportStruct, frozen=True, gc=False):
    """Pool, for one of its schedulable resources."""

    pool: str
    compute_cluster: str
    node: str
    """Name of the pool's virtual node."""
    resource: str
    nodes: int
    usable_nodes: int
    allocatable: float
    """On usable nodes, like `others` and `free`."""
    others: float
    """Usage of unmanaged pods."""
    guaranteed: float
    """Sum of the tenants' guarantees."""
    kept: float
    """Part of the guarantees that the nodes hold: less while nodes are missing."""
    used: float
    """Inside guarantees."""
    borrowed: float
    """Outside guarantees."""
    lent: float
    """Part of the borrowed amount that is guaranteed to tenants who do not use it now."""
    free: float
    waiting: float
    largest: float
    """Largest free amount on one node."""
    whole_nodes: int
    """Number of unused nodes."""
    fragmentation: float
    """Fraction of the free amount on partly used nodes, 0 to 1."""
    gangs_waiting: int
    gangs_running: int
    spare_nodes: int = 0
    """Nodes beyond all guarantees of the pool's first resource."""
    spare_nodes_in_use: int = 0
    """Those that make up for nodes that tenants share inside their guarantees, or have beyond them."""
    gangs_below_minimum: int = 0
    """Number of running gangs that lost pods, so that fewer than their minimum run and replacements wait."""
    avoided_nodes: int = 0
    """Nodes that are chosen last, because pods of several gangs failed there."""


class TenantReport(_ReportStruct, frozen=True, gc=False):
    """Tenant in a pool, for one of the pool's schedulable resources."""

    tenant: str
    pool: str
    compute_cluster: str
    resource: str
    guarantee: float
    kept: float
    """Part of the guarantee that the nodes hold: less while nodes are missing."""
    reduced: str
    """Reduction of its cells, like `2x8 -> 8`; empty: none."""
    limit: float | None
    """None: only the pool limits it."""
    weight: float
    used: float
    """Inside the guarantee."""
    borrowed: float
    waiting: float
    gangs_waiting: int
    gangs_running: int


class ShareReport(_ReportStruct, frozen=True, gc=False):
    """Fair share of a tenant in a pool, which orders borrowing: the sum of both parts, divided by the weight."""

    tenant: str
    pool: str
    """Name of the pool's virtual node."""
    weight: float
    now: float
    """Dominant share beyond the guarantee, 0 to 1."""
    past: float
    """Decayed average of this share in the past, 0 to 1."""
    at: float
    """Time of both parts, in seconds since the epoch."""

    @property
    def key(self) -> float:
        """The fair share: tenants with less borrow first."""
        return (self.now + self.past) / max(self.weight, 1e-6)


class GangReport(_ReportStruct, frozen=True, gc=False):
    """Gang; a single pod is a gang of one."""

    id: str
    tenant: str
    namespace: str
    name: str
    way: str
    """How the gang is defined; empty for a single pod."""
    band: str
    priority: int
    pools: tuple[str, ...]
    """Virtual nodes of its allowed pools, the preferred one first."""
    pool: str
    """Pool where it runs or will start. While it waits: the first of `pools`, or the pool of its place in the queue."""
    state: str
    """waiting, starting, running or leaving. Some pods of a running gang may wait or terminate."""
    pods: int
    placed: int
    minimum: int
    units: float
    """Requests of all its pods for the pool's first resource."""
    waiting_units: float
    """Part of `units` that its waiting pods request."""
    borrowed: bool
    """Some of its pods run outside the guarantee."""
    since: float | None
    """Time of its creation, or of its placement if it runs; None: unknown."""
    deadline: float | None = None
    """Leaving: time of the deletion."""
    code: str = ""
    message: str = ""
    place: int = 0
    earliest: float | None = None
    likely: float | None = None
    behind: str = ""
    """Gang ahead that has a reservation."""
    ends: str = ""
    """Gang of the same tenant whose end would let it start."""
    help: str = ""
    """What its owner can do; empty: it does not wait."""
    spread: tuple[str, ...] = ()
    """Virtual nodes of a gang in several pools: where it runs, will start, or may run."""
    controller: str = ""
    """Kind and name of a single pod's controller, such as `Job/train`; empty for other gangs."""

    @property
    def is_waiting(self) -> bool:
        """Whether the gang waits, or some of its pods wait while others run."""
        return self.state == WAITING or self.placed < self.pods

    def may_run_in(self, pool: str) -> bool:
        """Return whether the gang concerns a pool, given by its name or virtual node.

        The pools of a gang with placed pods are those where it runs.
        """
        nodes = (self.spread or (self.pool,)) if self.placed else self.pools
        return any(pool in (node, node.partition(".")[0]) for node in nodes)


class ArbiterReport(_ReportStruct, frozen=True, gc=False):
    """State of the arbiter's pools, tenants and gangs."""

    time: float = 0.0
    pools: tuple[PoolReport, ...] = ()
    tenants: tuple[TenantReport, ...] = ()
    gangs: tuple[GangReport, ...] = ()
    half_life: float = 0.0
    """Seconds after which half of a past share is forgiven; 0: the past does not count."""
    shares: tuple[ShareReport, ...] = ()
    """By pool and tenant; empty without a half-life."""

    def share_of(self, gang: GangReport) -> ShareReport | None:
        """Return the fair share by which a pending gang is ordered; None: unknown, or the past does not count."""
        pool = next(iter(gang.pools), gang.pool)
        return next((each for each in self.shares if (each.tenant, each.pool) == (gang.tenant, pool)), None)


def gangs_waiting_in(state: ArbiterReport, tenant: str = "", pool: str = "") -> Iterable[GangReport]:
    """Return the gangs with waiting pods, of a tenant and in a pool (its name or its virtual node's).

    The order is that of each pool's queue; running gangs that wait for more capacity come last.
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
