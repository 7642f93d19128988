"""When those who wait for one pool may start, as far as that can be foreseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vkgateway.arbiter.capacity.expected_ends import PodEnd
from vkgateway.arbiter.capacity.forecast import PoolForecast
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.idle_reserve import reserve_for
from vkgateway.arbiter.phases.preemption_plans import allowed_nodes
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Pod


class StartForecast:
    """When the gangs of one pool start, if they start in their turn and nobody else comes."""

    def __init__(self, ledger: CycleState, standing: PoolState) -> None:
        self._cycle_state = ledger
        self._pool_state = standing
        self._future_resources: NodeResources | None = None
        """With all those that were asked for before, where they will start."""
        self._added_ends: list[PodEnd] = []
        """Their ends."""
        self._last_start: tuple[PendingGang, float] | None = None
        """The last of them, which is not there yet."""
        self._times_alone: dict[int, float | None] = {}

    def forecast_next(self, ask: PendingGang) -> tuple[float | None, float | None]:
        """Earliest (as if it were alone in line) and likely (behind all those that were asked for before)."""
        alone = self._time_alone(ask)
        if alone is None:
            return None, None
        if self._last_start is not None:
            self._apply_start(*self._last_start)
        time = alone if self._future_resources is None else self._earliest_time(self._future_resources, ask, alone)
        self._last_start = (ask, time) if time is not None else None
        return alone, time

    def _time_alone(self, ask: PendingGang) -> float | None:
        if ask.equivalence_class not in self._times_alone or ask.gang.whole_id in self._pool_state.backfilled_gangs:
            self._times_alone[ask.equivalence_class] = self._earliest_time(self._pool_state.node_resources, ask, None)
        return self._times_alone[ask.equivalence_class]

    def _apply_start(self, ask: PendingGang, time: float) -> None:
        nodes = self._place_at(ask, time)
        if self._future_resources is None:
            self._future_resources = self._pool_state.node_resources.copy()
        run = self._pool_state.expected_ends.expected_run_time(ask.gang)
        for pod in ask.min_members:
            self._future_resources.add_pods(nodes[pod.uid], pod.shape)
            if run is not None:
                self._added_ends.append(PodEnd(time + run, nodes[pod.uid], pod.shape))

    def _place_at(self, ask: PendingGang, time: float) -> Mapping[str, str]:
        room = self._future_resources if self._future_resources is not None else self._pool_state.node_resources
        with self._without_backfill(room, ask):
            nodes = self._future_of(room, ask).place_at(
                ask.min_members,
                time,
                required_level=ask.gang.required_level,
                among=allowed_nodes(self._pool_state, ask),
            )
        assert nodes is not None
        return nodes

    def _earliest_time(self, room: NodeResources, ask: PendingGang, after: float | None) -> float | None:
        with self._without_backfill(room, ask):
            return self._future_of(room, ask).earliest_start(
                ask.min_members,
                required_level=ask.gang.required_level,
                among=allowed_nodes(self._pool_state, ask),
                after=after,
            )

    def _future_of(self, room: NodeResources, ask: PendingGang) -> PoolForecast:
        standing, also = self._pool_state, self._added_ends if room is self._future_resources else ()
        leaves = reserve_for(standing, ask.min_members)
        if leaves and standing.has_guarantee_left(ask.gang, ask.min_members):
            leaves = 0
        return PoolForecast(room, standing.expected_ends, self._cycle_state.now, also, idle_reserve=leaves)

    @contextmanager
    def _without_backfill(self, room: NodeResources, ask: PendingGang) -> Iterator[None]:
        """As if those were gone that were started in its kept place and go for it."""
        mark = room.mark()
        for pod in self._backfilled_pods(ask):
            room.remove_pods(pod.node, pod.shape)
        yield
        room.undo(mark)

    def _backfilled_pods(self, ask: PendingGang) -> list[Pod]:
        """Those pods, but for those that will have gone by themselves."""
        standing = self._pool_state
        if ask.gang.whole_id not in standing.backfilled_gangs:
            return []
        called = standing.reclaimable_for(ask.gang.whole_id).all_pods()
        return [
            pod
            for pod in called
            if pod.node in standing.node_resources and standing.expected_ends.end_of(pod.uid) is None
        ]
