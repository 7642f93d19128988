"""Stories with preemption within a tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from tests.unit.arbiter.simulated_cluster import Cluster
from tests.unit.arbiter.stories import GRACE, NOTICE, Story, StoryMix, random_story
from tests.unit.arbiter.story_invariants import StoryCheck
from vkgateway.scheduler.core.snapshot import Band, Gang, PodState, Policy

_QUIET_SECONDS = 120
"""Seconds after which a cluster without arrivals is quiet."""


def higher_work_starts(random: Random, *, more: int = 0) -> StoryCheck:
    """A gang that outranks a running gang of its tenant replaces it within notice, grace period and one cycle."""
    mix = StoryMix(more_nodes=more, leaves=False, tail=0, runs=(None,), fields={"required_level": ""})
    priority, chosen = random.choice((3, 1000)), random.random()

    def check(each: Story) -> None:
        cluster = _make_cluster(each)
        _play_story(cluster, each)
        cluster.run_for(_QUIET_SECONDS, step=4)
        below = _running_gangs(cluster)
        if not below:
            return
        lower = below[int(chosen * len(below))]
        cluster.add(_higher_gang(lower, priority))
        cluster.run_for(NOTICE + GRACE + 1)
        assert "higher" in cluster.start_times, f"a gang that outranks {lower.id} waits"

    return random_story(random, mix), check


def preemption_comes_to_an_end(random: Random, *, more: int = 0) -> StoryCheck:
    """Preemption ends if only replacements of victims arrive."""
    fields: dict[str, object] = {"priority": 0} if random.random() < 0.1 else {}
    mix = StoryMix(more_nodes=more, leaves=False, tail=0, runs=(None,), fields=fields)

    def check(each: Story) -> None:
        cluster = _make_cluster(replace(each, recreate=True))
        _play_story(cluster, each)
        cluster.run_for(2 * _QUIET_SECONDS, step=4)
        for _ in range(10):
            assert not (evicts := cluster.cycle().evicts), f"evictions continue: {evicts}"
            cluster.advance(4)

    return random_story(random, mix), check


def _make_cluster(each: Story) -> Cluster:
    policy, recreate, more = Policy(age_cap=each.age_cap), each.recreate, each.more
    return Cluster(each.nodes, each.quotas, policy=policy, recreate=recreate, more=more, reserve=each.reserve)


def _play_story(cluster: Cluster, each: Story) -> None:
    for step in each.steps:
        cluster.add(*(one for one, _ in step.arrives))
        cluster.cycle()
        cluster.advance(step.seconds)


def _running_gangs(cluster: Cluster) -> list[Gang]:
    """Return the running gangs that a gang with the same requests may replace.

    Gangs that backfill a reservation are excluded: their capacity belongs to the reservation. So does that of low gangs
    that yield to a waiting gang of the guaranteed band.
    """
    waits = any(
        one.band is Band.GUARANTEED and any(pod.state is PodState.WAITING for pod in one.pods)
        for one in cluster.gangs.values()
    )
    return [
        one
        for _, one in sorted(cluster.gangs.items())
        if all(pod.state is PodState.PLACED and not pod.behind for pod in one.pods)
        and not one.required_level
        and not (waits and one.band is Band.LOW and cluster.pool.low_yields)
    ]


def _higher_gang(lower: Gang, priority: int) -> Gang:
    waits = {"state": PodState.WAITING, "pool": None, "node": "", "borrowed": False, "since": 0.0, "behind": ""}
    pods = tuple(
        replace(pod, uid=f"higher-{number}", **waits)  # type: ignore[arg-type]
        for number, pod in enumerate(lower.pods)
    )
    return replace(lower, id="higher", pods=pods, priority=priority, created=0.0, plan=None)


INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    "higher_work_starts": higher_work_starts,
    "higher_work_starts_in_two_pools": partial(higher_work_starts, more=3),
    "preemption_comes_to_an_end": preemption_comes_to_an_end,
}
