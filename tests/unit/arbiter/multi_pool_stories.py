"""Stories with gangs whose pods name different pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

from tests.unit.arbiter.checked_cluster import CheckedCluster, count_places
from tests.unit.arbiter.simulated_cluster import GPU, KEY, OTHER, reports_by_gang, with_pod_pools
from tests.unit.arbiter.stories import GRACE, NOTICE, Story, StoryMix, StoryStep, random_story
from tests.unit.arbiter.story_invariants import StoryCheck
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions, PendingReason
from vkgateway.scheduler.core.gang_parts import has_pod_pools, split_gang
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.scheduler.core.snapshot import Band, Gang, Pod, PodState, PoolKey, PreemptionPlan, Snapshot

_CHOICES: tuple[tuple[PoolKey, ...], ...] = ((KEY,), (KEY,), (OTHER,), (OTHER,), (KEY, OTHER), (OTHER, KEY))


class MultiPoolCluster(CheckedCluster):
    """Cluster that checks gangs in several pools, pool by pool."""

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        self._check_all_or_nothing()
        self._check_no_gang_fits(decisions)
        self._check_victims_needed(before, decisions)
        self._check_deterministic(before, decisions)
        self.check_plans_feasible(self._with_plan_per_pool(decisions))
        self.check_reserve_kept(before, self._with_plan_per_pool(decisions))
        self.check_guarantees_bindable(self._with_plan_per_pool(decisions))

    def _with_plan_per_pool(self, decisions: Decisions) -> Decisions:
        """Return the decisions with one plan for each pool of a gang."""
        plans = {f"{name} {number}": each for name, number, each in _each_plan(decisions)}
        return replace(decisions, plans=plans)

    def resources_without(
        self, key: PoolKey, *, without: tuple[str, ...] = (), plans: dict[str, PreemptionPlan]
    ) -> NodeResources:
        resources = NodeResources(self.pool_of(key))
        pods = {pod.uid: pod for each in self.gangs.values() for pod in each.pods}
        for pod in pods.values():
            if pod.node in resources.nodes and pod.uid not in without:
                resources.add_pods(pod.node, pod.shape)
        for plan in plans.values():
            for uid, node in plan.nodes.items():
                if node in resources.nodes and (not pods[uid].node or uid in without):
                    resources.add_pods(node, pods[uid].shape)
        return resources

    def _guaranteed_node_of(self, each: Gang, pod: Pod, plans: dict[str, PreemptionPlan]) -> str:
        if pod.node:
            return "" if pod.borrowed else pod.node
        return next((plan.nodes[pod.uid] for plan in plans.values() if pod.uid in plan.nodes and not plan.borrowed), "")

    def _check_all_or_nothing(self) -> None:
        """Check that a gang runs with its minimum or not at all."""
        for each in self.gangs.values():
            states = [pod.state for pod in each.pods]
            if has_pod_pools(each) and PodState.NOTIFIED in states and PodState.PLACED in states:
                placed = states.count(PodState.PLACED)
                assert placed >= min(each.minimum, len(each.pods)), f"{each.id} is to go in part"

    def _check_no_gang_fits(self, decisions: Decisions) -> None:
        """Check that no gang waits for capacity that is free in all its pools."""
        reports = reports_by_gang(decisions)
        waiting = [each for each in self.gangs.values() if has_pod_pools(each) and not self.placed_nodes(each.id)]
        for each in waiting:
            report = reports.get(each.id)
            if report is None or report.code is not PendingReason.ROOM or self._may_have_reservation(decisions):
                continue
            found = split_gang(each)
            parts = [
                pending_gang
                for gang in found.gangs
                if (pending_gang := _read_gang(gang)) is not None and pending_gang.min_members
            ]
            for keys in (
                product(*(pending_gang.allowed_pools for pending_gang in parts)) if parts and not found.report else ()
            ):
                assert not self._all_fit(parts, keys, decisions), f"{each.id} would fit into {keys}"

    def _may_have_reservation(self, decisions: Decisions) -> bool:
        """Return whether a gang may have a reservation: then a fitting gang may have to wait."""
        waits = (PendingReason.RESERVATION, PendingReason.ROOM)
        return any(report.code in waits and self._may_be_reserved_for(report.gang) for report in decisions.holds)

    def _may_be_reserved_for(self, name: str) -> bool:
        """Return whether a gang may get a reservation: its start is known, or it is aged."""
        aged = self.now - self.gangs[name].created >= self.policy.age_cap
        return aged or self._has_ends() or any(one.run_limit or one.expected_run for one in self.gangs.values())

    def _has_ends(self) -> bool:
        leaving = (PodState.NOTIFIED, PodState.ENDING)
        return any(pod.state in leaving for each in self.gangs.values() for pod in each.pods)

    def _all_fit(self, parts: list[PendingGang], keys: tuple[PoolKey, ...], decisions: Decisions) -> bool:
        plans = {f"{name} {number}": plan for name, number, plan in _each_plan(decisions)}
        resources_by_pool = {pool.key: self.resources_without(pool.key, plans=plans) for pool in self.pools}
        asked: dict[PoolKey, list[Pod]] = {}
        for pending_gang, key in zip(parts, keys, strict=True):
            if key not in resources_by_pool or any(pod.shape.amount_of("cpu") for pod in pending_gang.min_members):
                return False
            asked.setdefault(key, []).extend(pending_gang.min_members)
            nodes = place_pods(
                resources_by_pool[key], pending_gang.min_members, required_level=pending_gang.gang.required_level
            )
            if nodes is None or self.uses_reserve(resources_by_pool[key], pending_gang.min_members):
                return False
        tenant = parts[0].tenant
        return all(self._is_within_limit(tenant, pods, key, plans) for key, pods in asked.items())

    def _is_within_limit(self, tenant: str, pods: list[Pod], key: PoolKey, plans: dict[str, PreemptionPlan]) -> bool:
        quota = next((each for each in self.quotas if each.tenant == tenant and each.pool == key), None)
        if quota is None:
            return False
        planned = {uid for plan in plans.values() if plan.pool == key for uid in plan.nodes}
        mine = [pod for each in self.gangs.values() if each.tenant == tenant for pod in each.pods]
        used = sum(pod.shape.amount_of(GPU) for pod in mine if pod.pool == key or pod.uid in planned)
        more = sum(pod.shape.amount_of(GPU) for pod in pods)
        return used + more <= quota.limit.get(GPU, 1 << 60) and quota.may_borrow(pods)

    def _check_victims_needed(self, before: Snapshot, decisions: Decisions) -> None:
        """Check that plans need each victim among gangs in several pools."""
        known = {each.id: each for each in before.gangs}
        plans = {f"{name} {number}": plan for name, number, plan in _each_plan(decisions)}
        leaving = {pod.uid for each in self.gangs.values() for pod in each.pods if self.is_soon_terminated(pod)}
        for evict in decisions.evicts:
            is_notified = any(pod.state is PodState.NOTIFIED for pod in known[evict.gang].pods)
            if evict.reached_limit or is_notified or not has_pod_pools(known[evict.gang]):
                continue
            left = tuple(leaving - set(evict.pods))
            short = [
                pool.key
                for pool in self.pools
                if any(
                    min(resources.free.amounts_on(on).values()) < 0
                    for resources in [self.resources_without(pool.key, without=left, plans=plans)]
                    for plan in plans.values()
                    if plan.pool == pool.key
                    for on in plan.nodes.values()
                )
            ]
            tenants = {self.gangs[name].tenant for name, _, _ in _each_plan(decisions)}
            at_limit = known[evict.gang].tenant in tenants and any(quota.limit for quota in self.quotas)
            reserved = self.pool.reserve > 0 and any(
                self.uses_reserve(self.resources_without(plan.pool, without=left, plans=plans), self._pods_of(plan))
                for plan in plans.values()
                if plan.borrowed
            )
            assert short or at_limit or reserved, f"{evict} for nothing"

    def _pods_of(self, plan: PreemptionPlan) -> list[Pod]:
        return [pod for each in self.gangs.values() for pod in each.pods if pod.uid in plan.nodes]

    def _check_deterministic(self, before: Snapshot, decisions: Decisions) -> None:
        again = decide(replace(before, gangs=before.gangs[::-1]), self.now)
        assert decisions == again, f"another order, other decisions\n{decisions}\nthen {again}"
        then = decide(self.snapshot(), self.now)
        nothing = (then.admits, then.evicts, then.reprieves, then.promotes) == ((), (), (), ())
        assert nothing, f"first {decisions}\nthen {then}"
        assert then.plans == decisions.plans, f"plans {decisions.plans}\nthen {then.plans}"


def _each_plan(decisions: Decisions) -> Iterator[tuple[str, int, PreemptionPlan]]:
    for name, plan in decisions.plans.items():
        for number, each in enumerate((plan, *plan.also)):
            yield name, number, each


def _read_gang(gang: Gang) -> PendingGang | None:
    found = read_pending_gang(gang)
    return found if isinstance(found, PendingGang) else None


class MultiPoolStartsInTime(CheckedCluster):
    """Cluster that checks that gangs in several pools which fit the unused guarantees start in time."""

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        pass

    def play_story(self, story: Story) -> None:
        due: dict[str, float] = {}
        for step in story.steps:
            for one, run in step.arrives:
                self.cycle()
                if one.band is Band.GUARANTEED and has_pod_pools(one) and self._fits_cells(one):
                    due[one.id] = self.now + NOTICE + GRACE
                self.add(replace(one, run_limit=None))
                if run is not None:
                    self.run_times[one.id] = run
            self.cycle()
            for _ in range(int(step.seconds)):
                for name, time in due.items():
                    assert name in self.start_times or self.now < time, f"{name} has not started by {time}"
                self.advance(1)
                self.cycle()

    def _fits_cells(self, one: Gang) -> bool:
        mine = [other for other in self.gangs.values() if other.tenant == one.tenant]
        if any(other.plan or True in self.borrowed_marks(other.id) for other in mine if other.band is Band.GUARANTEED):
            return False
        size = one.pods[0].shape.amount_of(GPU) // 1000
        for pool in self.pools:
            number = sum(pod.pools == (pool.key,) for pod in one.pods)
            if count_places(self.count_guarantees(pool), one.tenant, size) < number:
                return False
        return one.minimum == len(one.pods)


def _with_multi_pool_gangs(random: Random, found: Story, *, single: bool = False) -> Story:
    """Return the story with some gangs whose pods name different pools."""
    return replace(found, steps=tuple(_multi_pool_step(random, step, single=single) for step in found.steps))


def _multi_pool_step(random: Random, step: StoryStep, *, single: bool) -> StoryStep:
    return replace(
        step, arrives=tuple((_multi_pool_gang(random, one, single=single), run) for one, run in step.arrives)
    )


def _multi_pool_gang(random: Random, one: Gang, *, single: bool) -> Gang:
    if len(one.pods) < 2 or random.random() < 0.2:
        return one
    pools = [random.choice(_CHOICES[:4] if single else _CHOICES) for _ in one.pods]
    if all(set(pools[0]) & set(keys) for keys in pools):
        pools[:2] = [(KEY,), (OTHER,)]
    return with_pod_pools(one, *pools)


def gangs_in_two_pools(random: Random) -> StoryCheck:
    mix = StoryMix(more_nodes=3, forgets=random.random() < 0.2)
    return _with_multi_pool_gangs(random, random_story(random, mix)), lambda each: MultiPoolCluster.from_story(
        each
    ).play_story(each)


def gangs_in_two_pools_in_time(random: Random) -> StoryCheck:
    mix = StoryMix(more_nodes=3, equal=True, limits=False, leaves=False)
    return _with_multi_pool_gangs(
        random, random_story(random, mix), single=True
    ), lambda each: MultiPoolStartsInTime.from_story(each).play_story(each)


INVARIANTS = {
    "gangs_in_two_pools": gangs_in_two_pools,
    "gangs_in_two_pools_in_time": gangs_in_two_pools_in_time,
}
