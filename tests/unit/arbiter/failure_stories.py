"""Stories in which members of running gangs fail, and their controllers replace them, at once or later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from random import Random

from tests.unit.arbiter.checked_cluster import CheckedCluster
from tests.unit.arbiter.simulated_cluster import GPU
from tests.unit.arbiter.stories import Story, StoryMix, random_story
from tests.unit.arbiter.story_invariants import StoryCheck
from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.snapshot import Band, Gang, Pod, PodState, PoolKey, Snapshot

_HOLD_SECONDS = 20.0


class FailingCluster(CheckedCluster):
    """Cluster in which members of running gangs fail before cycles, drawn from a seed."""

    def seed_failures(self, number: int) -> None:
        self._random = Random(number)
        self._fresh = 0

    def cycle(self) -> Decisions:
        for name in sorted(self.gangs):
            self._replace_members(name)
            if self._random.random() < 0.3:
                self._fail_members(name)
        before = self.snapshot()
        decisions = super().cycle()
        again = decide(before, self.now, Cache())
        assert again == decisions, "the cache changes decisions"
        self._check_places(before, decisions)
        later = decide(self.snapshot(), self.now, Cache())
        nothing = (later.admits, later.evicts, later.reprieves, later.promotes) == ((), (), (), ())
        assert nothing, f"first {decisions}\nthen {later}"
        for name, each in self.gangs.items():
            if each.short and not each.lost and has_min_members(each, _placed(each)):
                self.gangs[name] = replace(each, short=False)
        return decisions

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        if any(pod.deadline > self.now for each in before.gangs for pod in each.lost):
            # Capacity that is held is no capacity for these checks.
            self.check_plans_feasible(decisions)
            self.check_reserve_kept(before, decisions)
            self.check_guarantees_bindable(decisions)
        else:
            super().check_cycle(before, decisions)

    def _fail_members(self, name: str) -> None:
        each, random = self.gangs[name], self._random
        running = _placed(each)
        leaves = any(pod.state in (PodState.NOTIFIED, PodState.ENDING) for pod in each.pods)
        if not has_min_members(each, running) or leaves:
            return
        number = random.choice((1, 1, len(running)))
        failed = {pod.uid for pod in random.sample(running, number)}
        pods = tuple(pod for pod in each.pods if pod.uid not in failed)
        lost = tuple(replace(pod, deadline=self.now + _HOLD_SECONDS) for pod in running if pod.uid in failed)
        short = not has_min_members(each, _placed(replace(each, pods=pods)))
        # Waiting surplus takes the place of a failed member.
        self.gangs[name] = replace(each, pods=pods, short=short, lost=() if has_min_members(each, pods) else lost)
        if random.random() < 0.4:
            self._replace_members(name, certain=True)

    def _replace_members(self, name: str, *, certain: bool = False) -> None:
        each = self.gangs[name]
        if not each.lost or not (certain or self._random.random() < 0.4):
            return
        self._fresh += 1
        fresh = tuple(
            Pod(uid=f"{pod.uid}~{self._fresh}", shape=pod.shape, rank=pod.rank, role=pod.role, pools=pod.pools)
            for pod in each.lost
        )
        self.gangs[name] = replace(each, pods=(*each.pods, *fresh), lost=())

    def _check_places(self, before: Snapshot, decisions: Decisions) -> None:
        """Check that no other gang of a tenant starts in the place of its short gangs, while the guarantee has it."""
        started = {admit.gang for admit in decisions.admits} | decisions.plans.keys()
        for pool in self.pools:
            found = self.count_guarantees(pool, dict(decisions.plans))
            for tenant in sorted({each.tenant for each in before.gangs}):
                short = [each for each in before.gangs if each.tenant == tenant and each.short]
                waiting = [each for each in short if each.id not in started and each.band is Band.GUARANTEED]
                needed = sum(_lost_units(each, pool.key, self.now) for each in waiting)
                others = [
                    each.gang for each in decisions.admits if each.pool == pool.key and not each.borrowed
                ]  # Of those, only gangs that are complete.
                intruders = [
                    name
                    for name in others
                    if self.gangs[name].tenant == tenant and not any(name == each.id for each in short)
                ]
                left = found.units_left(tenant)
                assert not intruders or left >= needed, f"{intruders} took the place of {[each.id for each in waiting]}"


def _placed(each: Gang) -> list[Pod]:
    return [pod for pod in each.pods if pod.state is PodState.PLACED]


def _lost_units(each: Gang, key: PoolKey, now: float) -> int:
    """Return the thousandths of GPUs in the place of a gang that its lost members leave."""
    lost: Iterable[Pod] = (pod for pod in each.lost if pod.pool == key and not pod.borrowed and pod.deadline > now)
    return sum(pod.shape.amount_of(GPU) for pod in lost)


def members_fail(random: Random, *, more: int = 0, reserve: int = 0) -> StoryCheck:
    number = random.getrandbits(32)
    mix = StoryMix(more_nodes=more, tail=8, runs=(None, None, 12.0, 40.0), leaves=False)

    def check(each: Story) -> None:
        cluster = FailingCluster.from_story(replace(each, reserve=reserve))
        assert isinstance(cluster, FailingCluster)
        cluster.seed_failures(number)
        cluster.play_story(each)

    return random_story(random, mix), check


INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    "members_fail": members_fail,
    "members_fail_in_two_pools": partial(members_fail, more=3),
    "members_fail_beside_a_reserve": partial(members_fail, reserve=2),
}
