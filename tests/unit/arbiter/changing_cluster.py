"""Stories in which nodes, pools and quotas change: the state that lasts across cycles must follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from tests.unit.arbiter.checked_cluster import CheckedCluster
from tests.unit.arbiter.simulated_cluster import GPU, KEY, OTHER, make_quota
from tests.unit.arbiter.stories import TENANTS, Story, StoryMix, random_story
from tests.unit.arbiter.story_invariants import StoryCheck
from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.guarantees.refusals import displaces_pods, find_refusals
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.preemption.notice import notice_seconds
from vkgateway.scheduler.core.share_history import ShareHistory
from vkgateway.scheduler.core.snapshot import Gang, Node, Pod, PodState, Pool, PoolKey, PreemptionPlan, Snapshot


class ChangingCluster(CheckedCluster):
    """Cluster in which something changes before most cycles, drawn from a seed."""

    def seed_changes(self, number: int) -> None:
        self._random = Random(number)
        self._missing_pools: frozenset[PoolKey] = frozenset()
        self._pool_by_node = {each.name: pool.key for pool in (self.pool, self.other) for each in pool.nodes}
        self._nodes = {each.name: each for pool in (self.pool, self.other) for each in pool.nodes}
        self._missing_nodes: set[str] = set()
        self._unmanaged_units: dict[str, int] = {}

    @property
    def pools(self) -> tuple[Pool, ...]:
        return tuple(pool for pool in (self.pool, self.other) if pool.nodes and pool.key not in self._missing_pools)

    def cycle(self) -> Decisions:
        if self._random.random() < 0.7:
            for _ in range(self._random.randint(1, 3)):
                self._change_something()
            self._rebuild_pools()
        return super().cycle()

    def play_story(self, story: Story) -> None:
        for step in story.steps:
            for one, run in step.arrives:
                self.add(self._with_roles(one) if self._random.random() < 0.3 else one)
                if run is not None:
                    self.run_times[one.id] = run
            for name in step.leaves:
                self.gangs.pop(name, None)
            self.cycle()
            self.advance(step.seconds)

    def _with_roles(self, one: Gang) -> Gang:
        """Return the gang with a launcher, perhaps some servers, and workers."""
        roles = ["launcher", *(self._random.choice(("server", "worker")) for _ in one.pods[1:])]
        pods = tuple(replace(pod, role=role) for pod, role in zip(one.pods, roles, strict=True))
        number = self._random.randint(1, len(pods))
        least = {role: self._random.randint(0, roles[:number].count(role)) for role in sorted(set(roles))}
        return replace(one, pods=pods, role_minimum={role: count for role, count in least.items() if count})

    # Changes

    def _change_something(self) -> None:
        changes = (
            self._change_quota,
            self._change_quota,
            self._remove_node,
            self._restore_node,
            self._move_node,
            self._change_unmanaged,
            self._toggle_pool,
            self._toggle_usable,
            self._toggle_avoided,
            self._restart_gateway,
        )
        self._random.choice(changes)()

    def _change_quota(self) -> None:
        random, tenant = self._random, self._random.choice(TENANTS)
        pool = random.choice((self.pool, self.other))
        others = tuple(each for each in self.quotas if (each.tenant, each.pool) != (tenant, pool.key))
        if random.random() < 0.1 or not pool.nodes:
            self.quotas = others
            return
        guarantee, limit = random.choice((0, 0, 1, 2, 4, 6, 8, 12, 16)), random.choice((None, None, 0, 2, 4, 8, 16))
        limit = None if limit is None else max(limit, guarantee)
        one = replace(
            make_quota(tenant, guarantee, limit=limit, weight=random.choice((1.0, 2.0)), pool=pool.key),
            granted=self.now,
        )
        if not find_refusals(pool, [*others, one]) and not displaces_pods(
            pool, others, one, self._guaranteed_amounts(pool)
        ):
            self.quotas = (*others, one)

    def _guaranteed_amounts(self, pool: Pool) -> list[tuple[str, str, int]]:
        return [
            (each.tenant, pod.node, pod.shape.amount_of(GPU))
            for each in self.gangs.values()
            for pod in each.pods
            if pod.pool == pool.key and not pod.borrowed
        ]

    def _remove_node(self) -> None:
        """Remove a node with its pods, or before the deletion of its pods is known."""
        name = self._random.choice(sorted(self._nodes))
        self._missing_nodes.add(name)
        self._unmanaged_units.pop(name, None)
        if self._random.random() < 0.5:
            self._lose_pods(name)

    def _lose_pods(self, name: str) -> None:
        for each in list(self.gangs.values()):
            pods = tuple(pod for pod in each.pods if pod.node != name)
            if not pods:
                del self.gangs[each.id]
            elif len(pods) < len(each.pods):
                self.gangs[each.id] = replace(each, pods=pods)

    def _restore_node(self) -> None:
        if self._missing_nodes:
            self._missing_nodes.discard(self._random.choice(sorted(self._missing_nodes)))

    def _move_node(self) -> None:
        name = self._random.choice(sorted(self._nodes))
        if self.other.nodes or self._random.random() < 0.3:
            self._pool_by_node[name] = OTHER if self._pool_by_node[name] == KEY else KEY

    def _change_unmanaged(self) -> None:
        name = self._random.choice(sorted(self._nodes))
        held = sum(pod.shape.amount_of(GPU) for each in self.gangs.values() for pod in each.pods if pod.node == name)
        free = self._nodes[name].allocatable[GPU] - held
        self._unmanaged_units[name] = self._random.choice((0, max(0, free), max(0, min(free, 1000))))

    def _toggle_pool(self) -> None:
        self._missing_pools = frozenset() if self._missing_pools else frozenset({self._random.choice((KEY, OTHER))})

    def _toggle_usable(self) -> None:
        name = self._random.choice(sorted(self._nodes))
        self._nodes[name] = replace(self._nodes[name], usable=not self._nodes[name].usable)

    def _toggle_avoided(self) -> None:
        name = self._random.choice(sorted(self._nodes))
        self._nodes[name] = replace(self._nodes[name], failed_gangs=0 if self._nodes[name].failed_gangs else 2)

    def _restart_gateway(self) -> None:
        """Restart the gateway: past shares are stored, plans are not."""
        self.gangs = {name: replace(each, plan=None) for name, each in self.gangs.items()}
        self.cache = Cache()
        stored = self.share_history.shares
        self.share_history = ShareHistory(self.policy.half_life)
        self.share_history.load(stored)

    def _rebuild_pools(self) -> None:
        self.pool, self.other = (
            replace(
                pool,
                nodes=tuple(
                    self._node_in_pool(name, pool.key) for name in sorted(self._nodes) if self._is_in_pool(name, pool)
                ),
            )
            for pool in (self.pool, self.other)
        )

    def _is_in_pool(self, name: str, pool: Pool) -> bool:
        return self._pool_by_node[name] == pool.key and name not in self._missing_nodes

    def _node_in_pool(self, name: str, key: PoolKey) -> Node:
        """Return the node; pods of the other pool count as its usage."""
        used = {GPU: self._unmanaged_units.get(name, 0)}
        for each in self.gangs.values():
            for pod in each.pods:
                if pod.node == name and pod.pool != key:
                    for resource, amount in pod.shape.requests:
                        used[resource] = used.get(resource, 0) + amount
        return replace(self._nodes[name], used={resource: amount for resource, amount in used.items() if amount})

    # Checks

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        assert decisions == decide(before, self.now), "what was kept from before is not what is"
        again = decide(self.snapshot(), self.now)
        nothing = (again.admits, again.evicts, again.reprieves, again.promotes) == ((), (), (), ())
        assert nothing, f"first {decisions}\nthen {again}"
        # With missing nodes, plans do not take precedence: a plan may be made again in the same way.
        plans, recreated = (
            _without_creation_times(each.plans) if decisions.losses else each.plans for each in (decisions, again)
        )
        assert recreated == plans, f"plans {plans}\nthen {recreated}"
        self._check_admissions_fit(decisions)

    def _check_admissions_fit(self, decisions: Decisions) -> None:
        quotas = {(each.tenant, each.pool): each for each in self.quotas}
        for admit in decisions.admits:
            one = self.gangs[admit.gang]
            assert has_min_members(one, [pod for pod in one.pods if pod.state is PodState.PLACED]), (
                f"{one.id} is half started"
            )
            [pool] = [pool for pool in self.pools if pool.key == admit.pool]
            cluster = {each.name: each for each in pool.nodes}
            tenant = self.gangs[admit.gang].tenant
            for node in set(admit.nodes.values()):
                assert cluster[node].usable, f"{admit.gang} starts on {node}, which takes no pods"
                for resource, amount in cluster[node].allocatable.items():
                    left = (
                        amount
                        - cluster[node].used.get(resource, 0)
                        - self._used_amount(resource, node=node, pool=pool.key)
                    )
                    assert left >= 0, f"over {node}"
            for resource, most in quotas[tenant, admit.pool].limit.items():
                assert self._used_amount(resource, tenant=tenant, pool=pool.key) <= most, f"{tenant} is over its limit"

    def _used_amount(self, resource: str, *, pool: PoolKey, node: str = "", tenant: str = "") -> int:
        return sum(
            pod.shape.amount_of(resource)
            for each in self.gangs.values()
            for pod in each.pods
            if pod.node and pod.pool == pool and node in ("", pod.node) and tenant in ("", each.tenant)
        )

    def _check_decisions(self, decisions: Decisions) -> None:
        known = {pod.uid: (each, pod) for each in self.gangs.values() for pod in each.pods}
        for evict in decisions.evicts:
            going = [known[uid] for uid in evict.pods]
            notice = notice_seconds(self.gangs[evict.gang], [pod for _, pod in going], self.now)
            for each, pod in going:
                notified_deadline = pod.deadline if pod.state is PodState.NOTIFIED else self.now + notice
                assert evict.deadline >= notified_deadline, f"{pod.uid} has less notice than it was promised"
                outranked = self.outranks(self.gangs[evict.makes_room_for], each)
                no_cells = decisions.losses or self._has_no_cells(each.tenant, pod)
                assert pod.borrowed or outranked or no_cells, "evicted inside"
            assert evict.makes_room_for in decisions.plans

    def _has_no_cells(self, tenant: str, pod: Pod) -> bool:
        """Return whether the tenant lost cells because its guarantee was reduced."""
        pool = next(pool for pool in self.pools if pool.key == pod.pool)
        return tenant in self.count_guarantees(pool).overused_tenants()

    def _check_state(self) -> None:
        for each in self.gangs.values():
            placed = [pod for pod in each.pods if pod.state is PodState.PLACED]
            assert len({pod.pool for pod in placed}) <= 1, f"{each.id} is in two pools"


def _without_creation_times(plans: Mapping[str, PreemptionPlan]) -> dict[str, PreemptionPlan]:
    return {name: replace(plan, created=0.0) for name, plan in plans.items()}


def whatever_changes(random: Random) -> StoryCheck:
    number, mix = random.getrandbits(32), StoryMix(more_nodes=random.choice((0, 3)), tail=6, most_gangs=12)

    def check(each: Story) -> None:
        cluster = ChangingCluster.from_story(each)
        assert isinstance(cluster, ChangingCluster)
        cluster.seed_changes(number)
        cluster.play_story(each)

    return random_story(random, mix), check
