"""Decisions of a round so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from vkgateway.scheduler.core.decisions import Admit, Evict, merge_admits
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.snapshot import PoolKey, PreemptionPlan

_PLAN_INTERVAL = 1e-6
"""Seconds between two plans of one cycle: the resolution of times since the epoch."""


class GangStart(NamedTuple):
    """A gang that starts in this round, and the nodes of its pods by uid."""

    pool_state: PoolState
    nodes: dict[str, str]


class SavedDecisions(NamedTuple):
    """Copies of the decisions at one moment."""

    plans: dict[str, PreemptionPlan]
    started: dict[str, GangStart]
    evicts: list[Evict]
    admits: list[Admit]
    pool_by_pod: dict[str, PoolKey]
    guaranteed_starts: dict[str, dict[str, None]]
    decision_count: int
    has_freed_capacity: bool


class RoundDecisions:
    """Starts, plans and evictions of a round, without their effects on pools."""

    def __init__(self, now: float, last_plan_time: float) -> None:
        self.now = now
        self.plans: dict[str, PreemptionPlan] = {}
        """Plans of gangs that wait for victims to terminate, by gang."""
        self.started: dict[str, GangStart] = {}
        """Gangs that start, by name."""
        self.evicts: list[Evict] = []
        self.guaranteed_starts: dict[str, dict[str, None]] = {}
        """By tenant, the names of gangs that start inside its guarantee, now or by plan."""
        self.decision_count = 0
        """Number of starts and plans: a tenant's share has changed when this has."""
        self.has_freed_capacity = False
        """Whether reserved capacity, or part of a guarantee, is free again, so that another round may use it."""
        self.pool_by_pod: dict[str, PoolKey] = {}
        """Pools of the pods that start, by uid."""
        self._admits: list[Admit] = []
        self._last_plan_time = last_plan_time

    def next_plan_time(self) -> float:
        """Return the time of a plan that is made now. Plans have distinct times, and so an order."""
        self._last_plan_time = max(self.now, self._last_plan_time + _PLAN_INTERVAL)
        return self._last_plan_time

    def is_decided(self, gang: str) -> bool:
        """Return whether a gang, or a part of one, starts or has a plan."""
        return gang in self.started or gang in self.plans

    def merged_admits(self) -> Iterable[Admit]:
        """Return the admissions, those of one gang and kind merged."""
        return merge_admits(self._admits)

    def move_plan(self, gang: str, nodes: Mapping[str, str], *, keeps_leaves: bool) -> None:
        """Move a plan to other nodes of its pool. `keeps_leaves`: see `PreemptionPlan.leaves`."""
        plan = self.plans[gang]
        self.plans[gang] = replace(plan, nodes=dict(nodes), leaves=plan.leaves if keeps_leaves else None)

    def note_freed_capacity(self) -> None:
        """Note that capacity is free that earlier phases of the round could not use."""
        self.has_freed_capacity = True

    def _record_start(self, admit: Admit, pool_state: PoolState, nodes: Mapping[str, str]) -> None:
        self._admits.append(admit)
        self.pool_by_pod.update(dict.fromkeys(admit.nodes, admit.pool))
        before = self.started.get(admit.gang)
        self.started[admit.gang] = GangStart(pool_state, {**(before.nodes if before is not None else {}), **nodes})

    def _save_decisions(self) -> SavedDecisions:
        return SavedDecisions(
            dict(self.plans),
            dict(self.started),
            list(self.evicts),
            list(self._admits),
            dict(self.pool_by_pod),
            {tenant: dict(gangs) for tenant, gangs in self.guaranteed_starts.items()},
            self.decision_count,
            self.has_freed_capacity,
        )

    def _restore_decisions(self, saved: SavedDecisions) -> None:
        """Go back to saved decisions, which are used up by this."""
        self.plans, self.started = saved.plans, saved.started
        self.guaranteed_starts, self.pool_by_pod = saved.guaranteed_starts, saved.pool_by_pod
        self.evicts[:], self._admits[:] = saved.evicts, saved.admits
        self.decision_count, self.has_freed_capacity = saved.decision_count, saved.has_freed_capacity
