"""Clusters that check every cycle of a story."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import GPU, Cluster, reports_by_gang
from tests.unit.arbiter.stories import GRACE, NOTICE, Story
from vkgateway.scheduler.core.capacity.node_fit import BoolArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions, PendingReason, PendingReport
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.scheduler.core.snapshot import (
    Band,
    Gang,
    Pod,
    PodState,
    Policy,
    Pool,
    PoolKey,
    PreemptionPlan,
    Snapshot,
)

_AWAITING_ROOM = (PendingReason.ROOM, PendingReason.INFEASIBLE, PendingReason.BUDGET)
_SLOW_SECONDS = 500.0
"""Seconds that a pod inside its guarantee takes to terminate with a long grace period."""


class CheckedCluster(Cluster):
    """Cluster that checks each cycle."""

    had_node_loss = False
    """Whether a node was unusable for a while."""

    @classmethod
    def from_story(cls, story: Story) -> CheckedCluster:
        policy = Policy(age_cap=story.age_cap, half_life=story.half_life)
        recreate, more, reserve = story.recreate, story.more, story.reserve
        cluster = cls(story.nodes, story.quotas, policy=policy, recreate=recreate, more=more, reserve=reserve)
        if story.limits is not None:
            cluster.enforce_limits(**story.limits)
        return cluster

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
        """Run all steps of the story."""
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
        """Delete a gang."""
        self.gangs.pop(name, None)

    def is_soon_terminated(self, pod: Pod) -> bool:
        """Return whether other gangs can count on the termination of the pod."""
        return pod.state in (PodState.NOTIFIED, PodState.ENDING)

    def pool_of(self, key: PoolKey) -> Pool:
        return next(pool for pool in self.pools if pool.key == key)

    def resources_without(
        self, key: PoolKey, *, without: tuple[str, ...] = (), plans: dict[str, PreemptionPlan]
    ) -> NodeResources:
        resources = NodeResources(self.pool_of(key))
        for each in self.gangs.values():
            for pod in each.pods:
                on = pod.node if pod.uid not in without else ""
                if not on and each.id in plans:
                    on = plans[each.id].nodes.get(pod.uid, "")
                if on in resources.nodes:
                    resources.add_pods(on, pod.shape)
        return resources

    def check_work_conserving(self, decisions: Decisions) -> None:
        """Check that no gang waits for capacity that is free, except for a reservation or a pool's reserve."""
        reports = reports_by_gang(decisions)
        preemptor = [
            pending_gang
            for each in self.gangs.values()
            if (pending_gang := self._gang_awaiting_room(each, reports.get(each.id))) is not None
        ]
        plans = dict(decisions.plans)
        resources_by_pool = (
            {pool.key: self.resources_without(pool.key, plans=plans) for pool in self.pools} if preemptor else {}
        )
        for pending_gang in preemptor:
            for key in pending_gang.allowed_pools:
                if not self._may_use_pool(pending_gang, key, plans):
                    continue
                mark = resources_by_pool[key].journal.mark()
                among = _required_nodes(resources_by_pool[key], pending_gang)
                found = place_pods(
                    resources_by_pool[key],
                    pending_gang.min_members,
                    required_level=pending_gang.gang.required_level,
                    among=among,
                )
                short = self.uses_reserve(resources_by_pool[key], pending_gang.min_members)
                resources_by_pool[key].journal.undo(mark)
                may_borrow = self.may_borrow(pending_gang.gang.id, key, pending_gang.min_members)
                assert found is None or short or not may_borrow, f"{pending_gang.gang.id} would fit into {key[1]}"
                if found is not None and pending_gang.gang.band is Band.GUARANTEED:
                    inside = GuaranteedPlacement(
                        self.count_guarantees(self.pool_of(key), plans),
                        pending_gang.tenant,
                        pending_gang.min_members,
                        among=among,
                    )
                    assert inside(resources_by_pool[key]) is None, (
                        f"the reserve of {key[1]}, or a used-up budget, holds {pending_gang.gang.id} up"
                    )

    def uses_reserve(self, resources: NodeResources, pods: Iterable[Pod]) -> bool:
        """Return whether these pods, counted in the resources, leave less idle than the pool's reserve."""
        preemptor = any(pod.shape.amount_of(GPU) for pod in pods)
        return (
            preemptor
            and sum(
                max(0, resources.free.amounts_on(each.name)[GPU]) for each in resources.nodes.ordered if each.usable
            )
            < self.pool.reserve
        )

    def check_reserve_kept(self, before: Snapshot, decisions: Decisions) -> None:
        """Check that borrowing keeps each pool's reserve, except for what entered guarantees in this cycle."""
        pods = {pod.uid: pod for each in self.gangs.values() for pod in each.pods}
        leaving = tuple(uid for uid, pod in pods.items() if pod.state in (PodState.NOTIFIED, PodState.ENDING))
        plans = dict(decisions.plans)
        own = {each.id for each in before.gangs if each.plan is not None and each.plan.leaves is not None}
        short = {each.id for each in before.gangs if each.short}
        for pool in self.pools if self.pool.reserve else ():
            starts = [each for each in decisions.admits if each.pool == pool.key]
            cluster = [plan for plan in plans.values() if plan.pool == pool.key]
            inside = [uid for each in starts if not each.borrowed or each.gang in short for uid in each.nodes]
            planned_short = {uid for name, plan in plans.items() if name in short for uid in plan.nodes}
            inside += [uid for plan in cluster for uid in plan.nodes if not plan.borrowed or uid in planned_short]
            own |= short
            borrowed = [pods[uid] for each in starts if each.borrowed and each.gang not in own for uid in each.nodes]
            planned = [pods[uid] for each in cluster if each.borrowed and each.leaves is None for uid in each.nodes]
            planned = [pod for pod in planned if pod.uid not in planned_short]
            for which, is_later in ((borrowed, False), (planned, True)):
                # A planned gang holds nothing before it starts.
                resources = self.resources_without(
                    pool.key, without=leaving if is_later else (), plans=plans if is_later else {}
                )
                for uid in inside:
                    node = pods[uid].node or next(plan.nodes[uid] for plan in cluster if uid in plan.nodes)
                    if pods[uid].node or is_later:
                        resources.remove_pods(node, pods[uid].shape)
                assert not self.uses_reserve(resources, which), (
                    f"{[pod.uid for pod in which]} use the reserve of {pool.key[1]}"
                )

    def check_no_better_pool(self, decisions: Decisions) -> None:
        """Check that no plan evicts pods for a gang that could start in its guarantee in another pool."""
        plans = dict(decisions.plans)
        for name, plan in plans.items():
            pending_gang = read_pending_gang(self.gangs[name])
            assert isinstance(pending_gang, PendingGang)
            for key in pending_gang.allowed_pools if not plan.borrowed and not self._has_cpu(pending_gang) else ():
                if key != plan.pool and self._may_use_pool(pending_gang, key, plans):
                    cells = self.count_guarantees(self.pool_of(key), plans)
                    search = GuaranteedPlacement(
                        cells,
                        pending_gang.tenant,
                        pending_gang.min_members,
                        required_level=pending_gang.gang.required_level,
                    )
                    assert search(self.resources_without(key, plans=plans)) is None, f"{name} could start in {key[1]}"

    def check_plans_feasible(self, decisions: Decisions) -> None:
        """Check that all plans can start when the terminating pods have ended."""
        pods = [pod for each in self.gangs.values() for pod in each.pods]
        leaving = tuple(pod.uid for pod in pods if pod.state in (PodState.NOTIFIED, PodState.ENDING))
        for pool in self.pools if decisions.plans else ():
            resources = self.resources_without(pool.key, without=leaving, plans=dict(decisions.plans))
            assert not (short := _overcommitted_plans(resources, decisions.plans, pool.key)), (
                f"no victim frees capacity for {short}"
            )

    def check_guarantees_bindable(self, decisions: Decisions) -> None:
        """Check that every promise can be kept, and that guarantees hold the guaranteed pods.

        After a node loss this may not hold, since other gangs may have started meanwhile.
        """
        for pool in self.pools if not self.had_node_loss else ():
            found = self.count_guarantees(pool, dict(decisions.plans))
            assert not found.losses, f"promises of {pool.key[1]} are not kept: {found.losses}"
            assert not found.broken_promises(), f"{found.broken_promises()} nodes of {pool.key[1]} are out of reach"
            assert not found.overused_tenants(), f"beyond their guarantees: {found.overused_tenants()}"

    def _has_cpu(self, pending_gang: PendingGang) -> bool:
        return any(pod.shape.amount_of("cpu") for pod in pending_gang.min_members)

    def _may_use_pool(self, pending_gang: PendingGang, key: PoolKey, plans: dict[str, PreemptionPlan]) -> bool:
        mine = any(each.tenant == pending_gang.tenant and each.pool == key for each in self.quotas)
        several = len(pending_gang.allowed_pools) > 1
        cluster = any(pool.key == key for pool in self.pools)
        return (
            mine
            and cluster
            and not (
                several and self.is_over_limit(pending_gang.gang, list(pending_gang.min_members), set(), plans, key)
            )
        )

    def _gang_awaiting_room(self, each: Gang, report: PendingReport | None) -> PendingGang | None:
        """Return a gang that waits for capacity; None: it does not, or the search for it is not exhaustive."""
        runs = any(pod.state is PodState.PLACED for pod in each.pods)
        if report is None or runs or report.code not in _AWAITING_ROOM:
            return None
        pending_gang = read_pending_gang(each)
        # Not pending: the gang is evicted, and its waiting pods wait for replacements. With two resources, the search
        # is not exhaustive.
        return pending_gang if isinstance(pending_gang, PendingGang) and not self._has_cpu(pending_gang) else None

    def check_victims_needed(self, before: Snapshot, decisions: Decisions) -> None:
        """Check that each victim is needed: without its eviction the preemptor would not fit."""
        evicted = {uid for evict in decisions.evicts for uid in evict.pods}
        known = {each.id: each for each in before.gangs}
        pods = [pod for each in self.gangs.values() for pod in each.pods]
        leaving = {pod.uid for pod in pods if self.is_soon_terminated(pod)}
        notified = {pod.uid for each in before.gangs for pod in each.pods if pod.state is PodState.NOTIFIED}
        for evict in decisions.evicts:
            if evict.reached_limit or notified & set(evict.pods):
                continue  # The victims have another preemptor than before; all plans together need them.
            victim = known[evict.gang]
            stay = [
                pod for pod in victim.pods if pod.uid in evict.pods or (pod.node and pod.uid not in leaving | evicted)
            ]
            if not has_min_members(victim, stay):
                continue  # The rest of the gang is evicted for another gang, and these pods with it.
            preemptor, plan = known[evict.makes_room_for], decisions.plans[evict.makes_room_for]
            others = {name: other for name, other in decisions.plans.items() if name != preemptor.id}
            resources = self.resources_without(
                plan.pool, without=tuple((leaving | evicted) - set(evict.pods)), plans=others
            )
            if _overcommitted_plans(resources, others, plan.pool):
                continue  # Another plan needs these victims.
            min_members = [pod for pod in preemptor.pods if pod.uid in plan.nodes]
            pending_gang = read_pending_gang(preemptor)
            assert isinstance(pending_gang, PendingGang)
            among = _required_nodes(resources, pending_gang)
            if plan.borrowed:
                called = {pod.behind for pod in victim.pods if pod.state is PodState.PLACED}
                surplus = victim.elastic and not evict.whole
                low = victim.band is Band.LOW and preemptor.band is Band.GUARANTEED
                yields = low and self.pool_of(plan.pool).low_yields
                assert surplus or yields or preemptor.id in called or self.outranks(preemptor, victim), (
                    f"{evict}: a borrowing gang evicts no other"
                )
                found = place_pods(resources, min_members, required_level=preemptor.required_level, among=among)
            else:
                cells = self.count_guarantees(self.pool_of(plan.pool), others)
                found = GuaranteedPlacement(
                    cells, preemptor.tenant, min_members, required_level=preemptor.required_level, among=among
                )(resources)
            stays = set(evict.pods)
            needed = found is None or (plan.borrowed and self.uses_reserve(resources, min_members))
            assert needed or self.is_over_limit(
                preemptor, min_members, (leaving | evicted) - stays, others, plan.pool
            ), f"{evict} for nothing"

    def is_over_limit(
        self, preemptor: Gang, min_members: list[Pod], leaving: set[str], plans: dict[str, PreemptionPlan], key: PoolKey
    ) -> bool:
        """Return whether the gang exceeds its tenant's limit in a pool if only these pods terminate."""
        limit = next(quota.limit for quota in self.quotas if quota.tenant == preemptor.tenant and quota.pool == key)
        for name, most in limit.items():
            used = sum(pod.shape.amount_of(name) for pod in min_members)
            for each in self.gangs.values():
                mine = [pod for pod in each.pods if each.tenant == preemptor.tenant and pod.uid not in leaving]
                here = [pod for pod in mine if (pod.pool == key if pod.node else _is_planned(each, pod, plans, key))]
                used += sum(pod.shape.amount_of(name) for pod in here)
            if used > most:
                return True
        return False

    def count_guarantees(
        self, pool: Pool | None = None, plans: dict[str, PreemptionPlan] | None = None
    ) -> PoolGuarantees:
        """Return the guarantees with the plans of these gangs."""
        pool = pool or self.pool
        names = {each.name for each in pool.nodes}
        placed = [
            (each.tenant, node_name, pod.shape.amount_of(GPU))
            for each in self.gangs.values()
            for pod in each.pods
            for node_name in [self._guaranteed_node_of(each, pod, plans or {})]
            if node_name in names
        ]
        return PoolGuarantees(pool, self.quotas, placed)

    def _guaranteed_node_of(self, each: Gang, pod: Pod, plans: dict[str, PreemptionPlan]) -> str:
        if pod.node:
            return "" if pod.borrowed else pod.node
        plan = plans.get(each.id)
        return plan.nodes.get(pod.uid, "") if plan is not None and not plan.borrowed else ""


def _overcommitted_plans(resources: NodeResources, plans: Mapping[str, PreemptionPlan], key: PoolKey) -> list[str]:
    """Return the gangs whose plans overcommit nodes of a pool."""
    cluster = ((name, on) for name, plan in plans.items() if plan.pool == key for on in plan.nodes.values())
    return sorted({name for name, on in cluster if min(resources.free.amounts_on(on).values()) < 0})


def _required_nodes(resources: NodeResources, pending_gang: PendingGang) -> BoolArray | None:
    """Return the mask of nodes on which the gang's pods must run because of its placed pods; None: any."""
    cluster = (
        [pod.node for pod in pending_gang.placed_pods if pod.node in resources.nodes]
        if pending_gang.gang.required_level
        else []
    )
    return resources.nodes.domain_mask(cluster[0], pending_gang.gang.required_level) if cluster else None


def _with_nodes_down(pool: Pool, down: frozenset[str]) -> Pool:
    return replace(pool, nodes=tuple(replace(each, usable=each.name not in down) for each in pool.nodes))


def _is_planned(each: Gang, pod: Pod, plans: dict[str, PreemptionPlan], key: PoolKey) -> bool:
    return each.id in plans and plans[each.id].pool == key and pod.uid in plans[each.id].nodes


class RepeatedCycles(CheckedCluster):
    """Cluster that decides again after each cycle: without news, and in any order of gangs, nothing may change."""

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
    """Cluster in which deleted gangs use their long grace period where they are inside their guarantees."""

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
            cluster = [name for name, plan in plans.items() if plan.borrowed and plan.pool == pool.key]
            short = (
                _overcommitted_plans(self.resources_without(pool.key, without=soon, plans=plans), plans, pool.key)
                if cluster
                else []
            )
            late = {name for name in cluster if name in short} - self._sharing_guaranteed_nodes(plans, short)
            assert not late, f"room is kept idle for {late}"

    def _sharing_guaranteed_nodes(self, plans: Mapping[str, PreemptionPlan], short: list[str]) -> set[str]:
        """Return the gangs that share nodes with guaranteed plans, which wait without a bound."""
        inside = {on for name in short if not plans[name].borrowed for on in plans[name].nodes.values()}
        return {name for name in short if not inside.isdisjoint(plans[name].nodes.values())}


def _end_slowly(cluster: Cluster, name: str) -> None:
    one = cluster.gangs.pop(name)
    placed = [pod for pod in one.pods if pod.state is not PodState.WAITING]
    pods = tuple(
        pod
        if pod.state is PodState.ENDING
        else replace(pod, state=PodState.ENDING, deadline=cluster.now + (GRACE if pod.borrowed else _SLOW_SECONDS))
        for pod in placed
    )
    if pods:
        cluster.gangs[name] = replace(one, pods=pods, plan=None)


class StartsInTime(Cluster):
    """Cluster that checks that gangs which fit their tenant's cells start within notice, grace period and one cycle."""

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
        """Return whether the tenant's unused cells and the spare units of others hold equal pods, by counting."""
        mine = [other for other in self.gangs.values() if other.tenant == one.tenant]
        if any(other.plan or True in self.borrowed_marks(other.id) for other in mine if other.band is Band.GUARANTEED):
            return False
        return any(self._count_places(one, pool) >= one.minimum for pool in self.pools if pool.key in one.pools)

    def _count_places(self, one: Gang, pool: Pool) -> int:
        return count_places(self.count_guarantees(pool), one.tenant, one.pods[0].shape.amount_of(GPU) // 1000)


def count_places(guarantees: PoolGuarantees, tenant: str, size: int) -> int:
    """Return how many pods of a size the tenant's cells hold, beside those in use."""
    places = sum(cell // size * number for cell, number in guarantees.unused_cells(tenant).items())
    in_use = guarantees.cells_in_use(tenant)
    rests = (sum(cells) - -(-guarantees.used_on(tenant, node) // 1000) for node, cells in in_use.items())
    return places + sum(max(0, rest) // size for rest in rests)
