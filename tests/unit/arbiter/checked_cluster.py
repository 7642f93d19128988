"""Clusters that check every cycle of a story."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import GPU, Cluster, reports_by_gang
from tests.unit.arbiter.stories import GRACE, NOTICE, TENANTS, Story
from vkgateway.arbiter.capacity.node_fit import BoolArray
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.placement import place_pods
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions, PendingReason, PendingReport
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement, allocate_placed
from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.preemption.eviction_units import has_min_members
from vkgateway.arbiter.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.arbiter.snapshot import Band, Gang, Pod, PodState, Policy, Pool, PoolKey, PreemptionPlan, Snapshot

_SLOW_SECONDS = 500.0
"""Seconds that a pod inside its guarantee takes to end where its owner gave it so long."""


class CheckedCluster(Cluster):
    """A cluster that looks at each cycle."""

    had_node_loss = False
    """Some node was not usable for a while."""

    @classmethod
    def from_story(cls, story: Story) -> CheckedCluster:
        policy = Policy(age_cap=story.age_cap)
        recreate, more, reserve = story.recreate, story.more, story.reserve
        return cls(story.nodes, story.quotas, policy=policy, recreate=recreate, more=more, reserve=reserve)

    def cycle(self) -> Decisions:
        before = self.snapshot()
        decisions = super().cycle()
        self.check_cycle(before, decisions)
        return decisions

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        self.check_work_conserving(decisions)
        self.check_victims_needed(before, decisions)
        self.check_no_better_pool(decisions)
        self.check_plans_feasible(decisions)
        self.check_reserve_kept(before, decisions)
        self.check_guarantees_bindable(decisions)

    def play_story(self, story: Story) -> None:
        """Tell the story to its end."""
        for step in story.steps:
            for name in step.leaves:
                self.delete_gang(name)
            if step.down is not None:
                self.pool, self.other = _with_nodes_down(self.pool, step.down), _with_nodes_down(self.other, step.down)
                self.had_node_loss = self.had_node_loss or bool(step.down)
            if step.forgets:
                self.gangs = {name: replace(each, plan=None) for name, each in self.gangs.items()}
            for one, run in step.arrives:
                self.add(one)
                if run is not None:
                    self.run_times[one.id] = run
            self.cycle()
            self.advance(step.seconds)

    def delete_gang(self, name: str) -> None:
        """A gang's tenant takes it away."""
        self.gangs.pop(name, None)

    def is_soon_terminated(self, pod: Pod) -> bool:
        """Whether nobody else needs to go where this one does."""
        return pod.state in (PodState.NOTIFIED, PodState.ENDING)

    def pool_of(self, key: PoolKey) -> Pool:
        return next(pool for pool in self.pools if pool.key == key)

    def resources_without(
        self, key: PoolKey, *, without: tuple[str, ...] = (), plans: dict[str, PreemptionPlan]
    ) -> NodeResources:
        room = NodeResources(self.pool_of(key))
        for each in self.gangs.values():
            for pod in each.pods:
                on = pod.node if pod.uid not in without else ""
                if not on and each.id in plans:
                    on = plans[each.id].nodes.get(pod.uid, "")
                if on in room:
                    room.add_pods(on, pod.shape)
        return room

    def check_work_conserving(self, decisions: Decisions) -> None:
        """No gang waits for room that fits into what is free, but for a reservation and for a pool's reserve."""
        holds = reports_by_gang(decisions)
        asks = [
            ask
            for each in self.gangs.values()
            if (ask := self._gang_awaiting_room(each, holds.get(each.id))) is not None
        ]
        plans = dict(decisions.plans)
        rooms = {pool.key: self.resources_without(pool.key, plans=plans) for pool in self.pools} if asks else {}
        for ask in asks:
            for key in ask.allowed_pools:
                if not self._may_use_pool(ask, key, plans):
                    continue
                mark = rooms[key].mark()
                among = _required_nodes(rooms[key], ask)
                found = place_pods(rooms[key], ask.min_members, required_level=ask.gang.required_level, among=among)
                short = self.uses_reserve(rooms[key], ask.min_members)
                rooms[key].undo(mark)
                assert found is None or short, f"{ask.gang.id} would fit into {key[1]}"
                if found is not None and ask.gang.band is Band.GUARANTEED:
                    inside = GuaranteedPlacement(
                        self.derive_cells(self.pool_of(key), plans), ask.tenant, ask.min_members, among=among
                    )
                    assert inside(rooms[key]) is None, f"the reserve of {key[1]} holds {ask.gang.id} up"

    def uses_reserve(self, room: NodeResources, pods: Iterable[Pod]) -> bool:
        """Whether these pods, which the room counts, leave less idle than the pool's reserve."""
        asks = any(pod.shape.amount_of(GPU) for pod in pods)
        return (
            asks
            and sum(max(0, room.free_on_node(each.name)[GPU]) for each in room.nodes if each.usable) < self.pool.reserve
        )

    def check_reserve_kept(self, before: Snapshot, decisions: Decisions) -> None:
        """What borrows leaves each pool's reserve, but for what is inside guarantees since this cycle."""
        pods = {pod.uid: pod for each in self.gangs.values() for pod in each.pods}
        leaving = tuple(uid for uid, pod in pods.items() if pod.state in (PodState.NOTIFIED, PodState.ENDING))
        plans = dict(decisions.plans)
        own = {each.id for each in before.gangs if each.plan is not None and each.plan.leaves is not None}
        for pool in self.pools if self.pool.reserve else ():
            starts = [each for each in decisions.admits if each.pool == pool.key]
            there = [plan for plan in plans.values() if plan.pool == pool.key]
            inside = [uid for each in starts if not each.borrowed for uid in each.nodes]
            inside += [uid for plan in there if not plan.borrowed for uid in plan.nodes]
            borrowed = [pods[uid] for each in starts if each.borrowed and each.gang not in own for uid in each.nodes]
            planned = [pods[uid] for each in there if each.borrowed and each.leaves is None for uid in each.nodes]
            for which, is_later in ((borrowed, False), (planned, True)):
                # What is planned has nothing before it starts.
                room = self.resources_without(
                    pool.key, without=leaving if is_later else (), plans=plans if is_later else {}
                )
                for uid in inside:
                    node = pods[uid].node or next(plan.nodes[uid] for plan in there if uid in plan.nodes)
                    if pods[uid].node or is_later:
                        room.remove_pods(node, pods[uid].shape)
                assert not self.uses_reserve(room, which), (
                    f"{[pod.uid for pod in which]} use the reserve of {pool.key[1]}"
                )

    def check_no_better_pool(self, decisions: Decisions) -> None:
        """Nobody has others go who could start at once inside its guarantee in another of its pools."""
        plans = dict(decisions.plans)
        for name, plan in plans.items():
            ask = read_pending_gang(self.gangs[name])
            assert isinstance(ask, PendingGang)
            for key in ask.allowed_pools if not plan.borrowed and not self._has_cpu(ask) else ():
                if key != plan.pool and self._may_use_pool(ask, key, plans):
                    cells = self.derive_cells(self.pool_of(key), plans)
                    search = GuaranteedPlacement(
                        cells, ask.tenant, ask.min_members, required_level=ask.gang.required_level
                    )
                    assert search(self.resources_without(key, plans=plans)) is None, f"{name} could start in {key[1]}"

    def check_plans_feasible(self, decisions: Decisions) -> None:
        """Once those have gone who leave, all plans can start."""
        pods = [pod for each in self.gangs.values() for pod in each.pods]
        leaving = tuple(pod.uid for pod in pods if pod.state in (PodState.NOTIFIED, PodState.ENDING))
        for pool in self.pools if decisions.plans else ():
            room = self.resources_without(pool.key, without=leaving, plans=dict(decisions.plans))
            assert not (short := _overcommitted_plans(room, decisions.plans, pool.key)), (
                f"nobody makes room for {short}"
            )

    def check_guarantees_bindable(self, decisions: Decisions) -> None:
        """Everybody's unused cells can be bound at once, and whoever is inside has its own; unless nodes were missing,
        and what started meanwhile is in the way."""
        for pool in self.pools if not self.had_node_loss else ():
            cells = self.derive_cells(pool, dict(decisions.plans))
            assert not cells.guarantee_losses(), f"promises of {pool.key[1]} are not kept: {cells.guarantee_losses()}"
            over = {tenant: excess for tenant in TENANTS if (excess := cells.excess_by_node(tenant))}
            assert not over, f"inside without cells: {over}"

    def _has_cpu(self, ask: PendingGang) -> bool:
        return any(pod.shape.amount_of("cpu") for pod in ask.min_members)

    def _may_use_pool(self, ask: PendingGang, key: PoolKey, plans: dict[str, PreemptionPlan]) -> bool:
        mine = any(each.tenant == ask.tenant and each.pool == key for each in self.quotas)
        several = len(ask.allowed_pools) > 1
        there = any(pool.key == key for pool in self.pools)
        return (
            mine and there and not (several and self.is_over_limit(ask.gang, list(ask.min_members), set(), plans, key))
        )

    def _gang_awaiting_room(self, each: Gang, hold: PendingReport | None) -> PendingGang | None:
        """What a gang asks for that waits for room; None where it does not, or where that is not always found."""
        runs = any(pod.state is PodState.PLACED for pod in each.pods)
        if hold is None or runs or hold.code not in (PendingReason.ROOM, PendingReason.INFEASIBLE):
            return None
        ask = read_pending_gang(each)
        # No ask: it is going, and what of it waits, waits for the rest to be made anew. Of two resources, whether
        # they fit is not always found.
        return ask if isinstance(ask, PendingGang) and not self._has_cpu(ask) else None

    def check_victims_needed(self, before: Snapshot, decisions: Decisions) -> None:
        """Whoever is told to go: without that, the gang that it goes for would not fit."""
        gone = {uid for evict in decisions.evicts for uid in evict.pods}
        known = {each.id: each for each in before.gangs}
        pods = [pod for each in self.gangs.values() for pod in each.pods]
        leaving = {pod.uid for pod in pods if self.is_soon_terminated(pod)}
        told = {pod.uid for each in before.gangs for pod in each.pods if pod.state is PodState.NOTIFIED}
        for evict in decisions.evicts:
            if told & set(evict.pods):
                continue  # They go for another gang than before; all plans together need them.
            goes = known[evict.gang]
            stay = [pod for pod in goes.pods if pod.uid in evict.pods or (pod.node and pod.uid not in leaving | gone)]
            if not has_min_members(goes, stay):
                continue  # The rest of their gang goes for others, and they with it.
            asks, plan = known[evict.makes_room_for], decisions.plans[evict.makes_room_for]
            others = {name: other for name, other in decisions.plans.items() if name != asks.id}
            room = self.resources_without(plan.pool, without=tuple((leaving | gone) - set(evict.pods)), plans=others)
            if _overcommitted_plans(room, others, plan.pool):
                continue  # Another plan counts on them.
            core = [pod for pod in asks.pods if pod.uid in plan.nodes]
            if plan.borrowed:
                called = {pod.behind for pod in goes.pods if pod.state is PodState.PLACED}
                surplus = goes.elastic and not evict.whole
                assert surplus or asks.id in called or self.outranks(asks, goes), f"{evict}: who borrows evicts nobody"
                found = place_pods(room, core, required_level=asks.required_level)
            else:
                cells = self.derive_cells(self.pool_of(plan.pool), others)
                found = GuaranteedPlacement(cells, asks.tenant, core, required_level=asks.required_level)(room)
                if found is not None and _has_largest_cell(cells, asks, core, found) < _has_largest_cell(
                    cells, asks, core, plan.nodes
                ):
                    continue  # Without it the gang would take the last cell of its size from larger ones.
            stays = set(evict.pods)
            needed = found is None or (plan.borrowed and self.uses_reserve(room, core))
            assert needed or self.is_over_limit(asks, core, (leaving | gone) - stays, others, plan.pool), (
                f"{evict} for nothing"
            )

    def is_over_limit(
        self, asks: Gang, core: list[Pod], leaving: set[str], plans: dict[str, PreemptionPlan], key: PoolKey
    ) -> bool:
        """Whether the gang would be beyond its tenant's limit in a pool if only those went who leave."""
        limit = next(quota.limit for quota in self.quotas if quota.tenant == asks.tenant and quota.pool == key)
        for name, most in limit.items():
            used = sum(pod.shape.amount_of(name) for pod in core)
            for each in self.gangs.values():
                mine = [pod for pod in each.pods if each.tenant == asks.tenant and pod.uid not in leaving]
                here = [pod for pod in mine if (pod.pool == key if pod.node else _is_planned(each, pod, plans, key))]
                used += sum(pod.shape.amount_of(name) for pod in here)
            if used > most:
                return True
        return False

    def derive_cells(self, pool: Pool | None = None, plans: dict[str, PreemptionPlan] | None = None) -> PoolCells:
        """With the plans of these gangs."""
        pool = pool or self.pool
        names = {each.name for each in pool.nodes}
        placed = [
            (each.tenant, node_name, pod.shape.amount_of(GPU))
            for each in self.gangs.values()
            for pod in each.pods
            for node_name in [self._guaranteed_node_of(each, pod, plans or {})]
            if node_name in names
        ]
        return PoolCells(pool, self.quotas, placed)

    def _guaranteed_node_of(self, each: Gang, pod: Pod, plans: dict[str, PreemptionPlan]) -> str:
        if pod.node:
            return "" if pod.borrowed else pod.node
        plan = plans.get(each.id)
        return plan.nodes.get(pod.uid, "") if plan is not None and not plan.borrowed else ""


def _has_largest_cell(cells: PoolCells, asks: Gang, core: list[Pod], nodes: Mapping[str, str]) -> int:
    """Cells of the largest size that its tenant could still bind with the gang on these nodes: 0, or 1 for any."""
    mark = cells.mark()
    allocate_placed(cells, asks.tenant, GPU, [(pod, nodes[pod.uid]) for pod in core])
    left = cells.unused_cells(asks.tenant).get(max(cells.levels), 0)
    cells.undo(mark)
    return min(1, left)


def _overcommitted_plans(room: NodeResources, plans: Mapping[str, PreemptionPlan], key: PoolKey) -> list[str]:
    """The gangs that are planned for nodes of a pool on which more is taken than there is."""
    there = ((name, on) for name, plan in plans.items() if plan.pool == key for on in plan.nodes.values())
    return sorted({name for name, on in there if min(room.free_on_node(on).values()) < 0})


def _required_nodes(room: NodeResources, ask: PendingGang) -> BoolArray | None:
    """Where the gang's pods may go for what of it is there, and may stay."""
    there = [pod.node for pod in ask.placed_pods if pod.node in room] if ask.gang.required_level else []
    return room.nodes_in_domain(there[0], ask.gang.required_level) if there else None


def _with_nodes_down(pool: Pool, down: frozenset[str]) -> Pool:
    return replace(pool, nodes=tuple(replace(each, usable=each.name not in down) for each in pool.nodes))


def _is_planned(each: Gang, pod: Pod, plans: dict[str, PreemptionPlan], key: PoolKey) -> bool:
    return each.id in plans and plans[each.id].pool == key and pod.uid in plans[each.id].nodes


class RepeatedCycles(CheckedCluster):
    """Decides once more with its decisions carried out: that must decide nothing. The order of telling is nothing."""

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        assert decisions == decide(replace(before, gangs=before.gangs[::-1]), self.now), (
            "another order, other decisions"
        )
        again = decide(self.snapshot(), self.now)
        nothing = (again.admits, again.evicts, again.reprieves, again.promotes) == ((), (), (), ())
        assert nothing, f"first {decisions}\nthen {again}"
        assert again.plans == decisions.plans, f"plans {decisions.plans}\nthen {again.plans}"
        self.check_guarantees_bindable(decisions)


class SlowTerminations(CheckedCluster):
    """Gangs that are taken away have all the time that their owners want where they are inside their guarantees."""

    def delete_gang(self, name: str) -> None:
        if name in self.gangs:
            _end_slowly(self, name)

    def is_soon_terminated(self, pod: Pod) -> bool:
        slow = pod.state is PodState.ENDING and pod.deadline > self.now + NOTICE + GRACE + 30
        return super().is_soon_terminated(pod) and not slow

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        super().check_cycle(before, decisions)
        pods = [pod for each in self.gangs.values() for pod in each.pods]
        soon = tuple(pod.uid for pod in pods if self.is_soon_terminated(pod))
        plans = dict(decisions.plans)
        for pool in self.pools:
            there = [name for name, plan in plans.items() if plan.borrowed and plan.pool == pool.key]
            short = (
                _overcommitted_plans(self.resources_without(pool.key, without=soon, plans=plans), plans, pool.key)
                if there
                else []
            )
            late = {name for name in there if name in short} - self._sharing_guaranteed_nodes(plans, short)
            assert not late, f"room is kept idle for {late}"

    def _sharing_guaranteed_nodes(self, plans: Mapping[str, PreemptionPlan], short: list[str]) -> set[str]:
        """Those that share nodes with plans inside guarantees, which wait for however long it takes."""
        inside = {on for name in short if not plans[name].borrowed for on in plans[name].nodes.values()}
        return {name for name in short if not inside.isdisjoint(plans[name].nodes.values())}


def _end_slowly(there: Cluster, name: str) -> None:
    one = there.gangs.pop(name)
    placed = [pod for pod in one.pods if pod.state is not PodState.WAITING]
    pods = tuple(
        pod
        if pod.state is PodState.ENDING
        else replace(pod, state=PodState.ENDING, deadline=there.now + (GRACE if pod.borrowed else _SLOW_SECONDS))
        for pod in placed
    )
    if pods:
        there.gangs[name] = replace(one, pods=pods, plan=None)


class StartsInTime(Cluster):
    """What comes and fits its tenant's cells starts within notice, grace and a cycle."""

    def play_story(self, story: Story) -> None:
        due: dict[str, float] = {}
        for step in story.steps:
            for name in step.leaves:
                due.pop(name, None)
                if name in self.gangs:
                    _end_slowly(self, name)
            for one, run in step.arrives:
                self.cycle()
                if one.band is Band.GUARANTEED and self._fits_cells(one):
                    due[one.id] = self.now + NOTICE + GRACE
                self.add(replace(one, run_limit=None))
                if run is not None:
                    self.run_times[one.id] = run
            self.cycle()
            for _ in range(int(step.seconds)):
                self._check_due(due)
                self.advance(1)
                self.cycle()

    def _check_due(self, due: dict[str, float]) -> None:
        for name, time in due.items():
            assert name in self.start_times or self.now < time, f"{name} has not started by {time}"

    def _fits_cells(self, one: Gang) -> bool:
        """By counting: whether the tenant's cells that nobody uses, and what is spare in others, hold equal pods."""
        mine = [other for other in self.gangs.values() if other.tenant == one.tenant]
        if any(other.plan or True in self.borrowed_marks(other.id) for other in mine if other.band is Band.GUARANTEED):
            return False
        return any(self._count_places(one, pool) >= one.minimum for pool in self.pools if pool.key in one.pools)

    def _count_places(self, one: Gang, pool: Pool) -> int:
        cells, size = self.derive_cells(pool), one.pods[0].shape.amount_of(GPU) // 1000
        places = sum(cell // size * number for cell, number in cells.unused_cells(one.tenant).items())
        return places + sum(
            cells.spare_amount(one.tenant, name) // 1000 // size for name in cells.bound_cells(one.tenant)
        )
