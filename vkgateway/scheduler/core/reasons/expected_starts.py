"""Expected starts of the gangs that wait for one pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vkgateway.scheduler.core.capacity.expected_ends import PodEnd
from vkgateway.scheduler.core.capacity.forecast import PoolForecast
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.phases.idle_reserve import reserve_for
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Pod


class StartForecast:
    """Forecast of starts in queue order, without future arrivals."""

    def __init__(self, state: CycleState, pool_state: PoolState) -> None:
        self._cycle_state = state
        self._pool_state = pool_state
        self._future_resources: NodeResources | None = None
        """Node resources after the starts of all gangs queried before."""
        self._added_ends: list[PodEnd] = []
        """Expected ends of these gangs."""
        self._last_start: tuple[PendingGang, float] | None = None
        """Last queried gang, which the node resources do not include yet."""
        self._times_alone: dict[int, float | None] = {}

    def forecast_next(self, pending_gang: PendingGang) -> tuple[float | None, float | None]:
        """Return the earliest start (as if alone in the queue) and the likely one (behind all queried before)."""
        alone = self._time_alone(pending_gang)
        if alone is None:
            return None, None
        if self._last_start is not None:
            self._apply_start(*self._last_start)
        time = (
            alone
            if self._future_resources is None
            else self._earliest_time(self._future_resources, pending_gang, alone)
        )
        self._last_start = (pending_gang, time) if time is not None else None
        return alone, time

    def _time_alone(self, pending_gang: PendingGang) -> float | None:
        if (
            pending_gang.equivalence_class not in self._times_alone
            or pending_gang.gang.whole_id in self._pool_state.victims.backfilled_gangs
        ):
            self._times_alone[pending_gang.equivalence_class] = self._earliest_time(
                self._pool_state.node_resources, pending_gang, None
            )
        return self._times_alone[pending_gang.equivalence_class]

    def _apply_start(self, pending_gang: PendingGang, time: float) -> None:
        nodes = self._place_at(pending_gang, time)
        if self._future_resources is None:
            self._future_resources = self._pool_state.node_resources.copy()
        run_time = self._pool_state.expected_ends.expected_run_time(pending_gang.gang)
        for pod in pending_gang.min_members:
            self._future_resources.add_pods(nodes[pod.uid], pod.shape)
            if run_time is not None:
                self._added_ends.append(PodEnd(time + run_time, nodes[pod.uid], pod.shape))

    def _place_at(self, pending_gang: PendingGang, time: float) -> Mapping[str, str]:
        resources = self._future_resources if self._future_resources is not None else self._pool_state.node_resources
        with self._without_backfill(resources, pending_gang):
            nodes = self._future_of(resources, pending_gang).place_at(
                pending_gang.min_members,
                time,
                required_level=pending_gang.gang.required_level,
                among=allowed_nodes(self._pool_state, pending_gang),
            )
        assert nodes is not None
        return nodes

    def _earliest_time(self, resources: NodeResources, pending_gang: PendingGang, after: float | None) -> float | None:
        with self._without_backfill(resources, pending_gang):
            return self._future_of(resources, pending_gang).earliest_start(
                pending_gang.min_members,
                required_level=pending_gang.gang.required_level,
                among=allowed_nodes(self._pool_state, pending_gang),
                after=after,
            )

    def _future_of(self, resources: NodeResources, pending_gang: PendingGang) -> PoolForecast:
        pool_state, extra_ends = self._pool_state, self._added_ends if resources is self._future_resources else ()
        idle_reserve = reserve_for(pool_state, pending_gang, pending_gang.min_members)
        if idle_reserve and pool_state.guarantee.has_guarantee_left(pending_gang.gang, pending_gang.min_members):
            idle_reserve = 0
        return PoolForecast(
            resources, pool_state.expected_ends, self._cycle_state.now, extra_ends, idle_reserve=idle_reserve
        )

    @contextmanager
    def _without_backfill(self, resources: NodeResources, pending_gang: PendingGang) -> Iterator[None]:
        """Remove the pods that backfill the gang's reservation, for the duration of the context."""
        with resources.trial():
            for pod in self._backfilled_pods(pending_gang):
                resources.remove_pods(pod.node, pod.shape)
            yield

    def _backfilled_pods(self, pending_gang: PendingGang) -> list[Pod]:
        """Return the pods that backfill the gang's reservation, except those with a known end."""
        pool_state = self._pool_state
        if pending_gang.gang.whole_id not in pool_state.victims.backfilled_gangs:
            return []
        backfilled = pool_state.victims.reclaimable_for(pending_gang.gang).all_pods()
        return [
            pod
            for pod in backfilled
            if pod.node in pool_state.node_resources.nodes and pool_state.expected_ends.end_of(pod.uid) is None
        ]
