"""Prometheus metrics of the arbiter: cycles, decisions, pools, and the phases of starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

from prometheus_client import Counter, Gauge, Histogram

from vkgateway.api.names import virtual_node_name
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, PoolReport

Term = Literal["watch", "cycle", "notice", "grace", "bind"]
"""A phase of a guaranteed start: until the pod is known, until the decision, until the notice of the victims expires,
until they have terminated, until the pods are bound.
"""

CYCLE_SECONDS: Final = Histogram(
    "vkgateway_arbiter_cycle_seconds",
    "Duration of a scheduling cycle, from the snapshot to the decisions.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
DECISIONS: Final = Counter(
    "vkgateway_arbiter_decisions",
    "Decisions about gangs, by kind: admit, evict, reprieve, promote. Pending reasons are not counted.",
    ["kind"],
)
for _kind in ("admit", "evict", "reprieve", "promote"):
    DECISIONS.labels(_kind)  # exported from the start: `increase` of a series that starts with 1 is 0
EVICTED: Final = Counter("vkgateway_arbiter_evicted_pods", "Pods that the arbiter evicted, by tenant.", ["tenant"])
LOST: Final = Counter(
    "vkgateway_arbiter_lost_gpu_seconds",
    "Work lost by evictions, in GPU-seconds since the start or the last checkpoint, by tenant.",
    ["tenant"],
)
WAITING_GANGS: Final = Gauge("vkgateway_arbiter_waiting_gangs", "Gangs that wait, by pool.", ["pool"])
BELOW_MINIMUM: Final = Gauge(
    "vkgateway_arbiter_gangs_below_minimum",
    "Running gangs that lost pods: fewer than their minimum run, and replacements wait, by pool.",
    ["pool"],
)
AVOIDED_NODES: Final = Gauge(
    "vkgateway_arbiter_avoided_nodes",
    "Nodes that are chosen last, because pods of several gangs failed there within an hour, by pool.",
    ["pool"],
)
TENANT_WAITING_GANGS: Final = Gauge(
    "vkgateway_arbiter_tenant_waiting_gangs", "Pending gangs of a tenant, by pool.", ["tenant", "pool"]
)
TENANT_WAITING_UNITS: Final = Gauge(
    "vkgateway_arbiter_tenant_waiting_units",
    "Units of a resource that a tenant's pending gangs request.",
    ["tenant", "pool", "resource"],
)
TENANT_SHARE: Final = Gauge(
    "vkgateway_arbiter_tenant_share",
    "Dominant share of a pool that a tenant uses beyond its guarantee: now, and past (a decayed average). "
    "Only with arbiter.halfLife.",
    ["tenant", "pool", "what"],
)
START_SECONDS: Final = Histogram(
    "vkgateway_guaranteed_start_seconds",
    "Parts of the time to the start of a gang inside its guarantee: watch, cycle, notice, grace, bind.",
    ["term"],
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
)
TERMS: Final = get_args(Term)
OVERDUE_SECONDS: Final = Gauge(
    "vkgateway_guaranteed_overdue_seconds",
    "Longest time that a gang inside its guarantee has waited since the notice of its victims expired; 0: none waits.",
)

_by_term: Final = {term: START_SECONDS.labels(term) for term in TERMS}
_POOL_METRICS: Final[tuple[tuple[str, str, Callable[[PoolReport], float]], ...]] = (
    ("allocatable_units", "Units of a resource that the usable nodes have.", lambda pool: pool.allocatable),
    ("guaranteed_units", "Units of a resource that are guaranteed to tenants.", lambda pool: pool.guaranteed),
    (
        "kept_units",
        "Units of a resource that guarantees keep: fewer than guaranteed while nodes are missing.",
        lambda pool: pool.kept,
    ),
    ("used_units", "Units of a resource that are used inside guarantees.", lambda pool: pool.used),
    ("borrowed_units", "Units of a resource that are used outside guarantees.", lambda pool: pool.borrowed),
    (
        "lent_units",
        "Units of a resource that other tenants borrow from unused guarantees.",
        lambda pool: pool.lent,
    ),
    (
        "others_units",
        "Units of a resource on usable nodes that unmanaged pods use.",
        lambda pool: pool.others,
    ),
    ("free_units", "Units of a resource that are free on usable nodes.", lambda pool: pool.free),
    (
        "fragmentation_ratio",
        "Share of the free units of a resource that lies on nodes in part use.",
        lambda pool: pool.fragmentation,
    ),
    ("spare_nodes", "Nodes beyond all guarantees of the pool's first resource.", lambda pool: pool.spare_nodes),
    (
        "spare_nodes_in_use",
        "Spare nodes that make up for nodes that tenants share inside their guarantees, or have beyond them.",
        lambda pool: pool.spare_nodes_in_use,
    ),
)
"""Gauges by pool and resource: suffix of the name, description, and field."""
_RESOURCE_GAUGES: Final = tuple(
    (Gauge(f"vkgateway_arbiter_{name}", says, ["pool", "resource"]), value) for name, says, value in _POOL_METRICS
)
_GAUGES: Final = (
    WAITING_GANGS,
    BELOW_MINIMUM,
    AVOIDED_NODES,
    TENANT_WAITING_GANGS,
    TENANT_WAITING_UNITS,
    TENANT_SHARE,
    *(gauge for gauge, _ in _RESOURCE_GAUGES),
)


def observe_cycle(seconds: float) -> None:
    """Count a cycle and its duration in seconds."""
    CYCLE_SECONDS.observe(max(0.0, seconds))


def observe_start(term: Term, seconds: float) -> None:
    """Count how long one part of a guaranteed start took; clocks of two machines may make it seem negative."""
    _by_term[term].observe(max(0.0, seconds))


def count_decisions(decisions: Decisions) -> None:
    """Count the decisions of a cycle, except pending reasons."""
    kinds = {
        "admit": decisions.admits,
        "evict": decisions.evicts,
        "reprieve": decisions.reprieves,
        "promote": decisions.promotes,
    }
    for kind, made in kinds.items():
        if made:
            DECISIONS.labels(kind).inc(len(made))
    for evict in decisions.evicts:
        tenant = evict.gang.partition("/")[0]
        EVICTED.labels(tenant).inc(len(evict.pods))
        LOST.labels(tenant).inc(max(0.0, evict.lost))


def observe_state(state: ArbiterReport) -> None:
    """Set the gauges of pools and of tenants in them, and delete the series of those that do not exist any more."""
    for gauge in _GAUGES:
        gauge.clear()
    for pool in state.pools:
        WAITING_GANGS.labels(pool.node).set(pool.gangs_waiting)
        BELOW_MINIMUM.labels(pool.node).set(pool.gangs_below_minimum)
        AVOIDED_NODES.labels(pool.node).set(pool.avoided_nodes)
        for gauge, value in _RESOURCE_GAUGES:
            gauge.labels(pool.node, pool.resource).set(value(pool))
    for part in state.tenants:
        node = virtual_node_name(part.pool, part.compute_cluster)
        TENANT_WAITING_GANGS.labels(part.tenant, node).set(part.gangs_waiting)
        TENANT_WAITING_UNITS.labels(part.tenant, node, part.resource).set(part.waiting)
    for share in state.shares:
        TENANT_SHARE.labels(share.tenant, share.pool, "now").set(share.now)
        TENANT_SHARE.labels(share.tenant, share.pool, "past").set(share.past)


def forget_tenant(tenant: str) -> None:
    """Delete the series of a removed tenant."""
    for metric in (EVICTED, LOST):
        if (tenant,) in {tuple(sample.labels.values()) for found in metric.collect() for sample in found.samples}:
            metric.remove(tenant)
