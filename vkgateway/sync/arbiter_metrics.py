"""What is counted of the arbiter, for Prometheus: cycles, decisions, pools, and each part of the way to a start."""

from __future__ import annotations

from typing import Final, Literal, get_args

from prometheus_client import Counter, Gauge, Histogram

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.state import State

Term = Literal["watch", "cycle", "notice", "grace", "bind"]
"""A part of the time to a guaranteed start: until the arbiter hears of the gang, until it has decided, until the notice
of those who must go has run out, until they have gone, until the pods are bound to their nodes."""

CYCLE_SECONDS: Final = Histogram(
    "vkgateway_arbiter_cycle_seconds",
    "How long the arbiter takes to decide, from its facts to its decisions.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
DECISIONS: Final = Counter(
    "vkgateway_arbiter_decisions",
    "Decisions about gangs, by kind: admit, evict, reprieve, promote. Holds are not counted.",
    ["kind"],
)
EVICTED: Final = Counter(
    "vkgateway_arbiter_evicted_pods", "Pods that were told to go, by the tenant whose they are.", ["tenant"]
)
LOST: Final = Counter(
    "vkgateway_arbiter_lost_gpu_seconds",
    "Work lost by evictions, in seconds of one GPU since start or last checkpoint, by the tenant whose it was.",
    ["tenant"],
)
WAITING_GANGS: Final = Gauge("vkgateway_arbiter_waiting_gangs", "Gangs that wait, by pool.", ["pool"])
FREE: Final = Gauge(
    "vkgateway_arbiter_free_units", "Units of a resource that are free on usable nodes.", ["pool", "resource"]
)
USED: Final = Gauge(
    "vkgateway_arbiter_used_units", "Units of a resource that are used inside guarantees.", ["pool", "resource"]
)
BORROWED: Final = Gauge(
    "vkgateway_arbiter_borrowed_units", "Units of a resource that are used outside guarantees.", ["pool", "resource"]
)
FRAGMENTATION: Final = Gauge(
    "vkgateway_arbiter_fragmentation_ratio",
    "Share of the free units of a resource that lies on nodes in part use.",
    ["pool", "resource"],
)
START_SECONDS: Final = Histogram(
    "vkgateway_guaranteed_start_seconds",
    "Parts of the time to the start of a gang inside its guarantee: watch, cycle, notice, grace, bind.",
    ["term"],
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
)
TERMS: Final = get_args(Term)

_by_term: Final = {term: START_SECONDS.labels(term) for term in TERMS}
_GAUGES: Final = (WAITING_GANGS, FREE, USED, BORROWED, FRAGMENTATION)


def observe_cycle(seconds: float) -> None:
    """Count a cycle that took so long."""
    CYCLE_SECONDS.observe(max(0.0, seconds))


def observe_start(term: Term, seconds: float) -> None:
    """Count how long one part of a guaranteed start took; clocks of two machines may make it seem negative."""
    _by_term[term].observe(max(0.0, seconds))


def count_decisions(decisions: Decisions) -> None:
    """Count what was decided in a cycle, holds left out."""
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


def observe_state(state: State) -> None:
    """Set what is told of pools; those that are gone are not told of any more."""
    for gauge in _GAUGES:
        gauge.clear()
    for pool in state.pools:
        WAITING_GANGS.labels(pool.node).set(pool.gangs_waiting)
        FREE.labels(pool.node, pool.resource).set(pool.free)
        USED.labels(pool.node, pool.resource).set(pool.used)
        BORROWED.labels(pool.node, pool.resource).set(pool.borrowed)
        FRAGMENTATION.labels(pool.node, pool.resource).set(pool.fragmentation)


def forget(tenant: str) -> None:
    """Drop the series of a tenant that is gone."""
    for metric in (EVICTED, LOST):
        if (tenant,) in {tuple(sample.labels.values()) for found in metric.collect() for sample in found.samples}:
            metric.remove(tenant)
