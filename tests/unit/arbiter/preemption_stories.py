"""Stories in which a tenant's work of higher ranks meets its lower work: what must hold whatever else runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from tests.unit.arbiter.simulated_cluster import Cluster
from tests.unit.arbiter.stories import GRACE, NOTICE, Story, StoryMix, random_story
from tests.unit.arbiter.story_invariants import StoryCheck
from vkgateway.arbiter.snapshot import Gang, PodState, Policy

_QUIET_SECONDS = 120
"""Seconds after which nothing happens any more where nothing arrives."""


def higher_work_starts(random: Random, *, more: int = 0) -> StoryCheck:
    """A gang that outranks a running one of its tenant starts in its place within notice, grace and a cycle."""
    mix = StoryMix(more_nodes=more, leaves=False, tail=0, runs=(None,), fields={"required_level": ""})
    priority, chosen = random.choice((3, 1000)), random.random()

    def tell(each: Story) -> None:
        there = _make_cluster(each)
        _play_story(there, each)
        there.run_for(_QUIET_SECONDS, step=4)
        below = _running_gangs(there)
        if not below:
            return
        lower = below[int(chosen * len(below))]
        there.add(_higher_gang(lower, priority))
        there.run_for(NOTICE + GRACE + 1)
        assert "higher" in there.start_times, f"a gang that outranks {lower.id} waits"

    return random_story(random, mix), tell


def preemption_comes_to_an_end(random: Random, *, more: int = 0) -> StoryCheck:
    """Where nothing arrives but replacements of what was evicted, nobody is evicted any more after a while."""
    fields: dict[str, object] = {"priority": 0} if random.random() < 0.1 else {}
    mix = StoryMix(more_nodes=more, leaves=False, tail=0, runs=(None,), fields=fields)

    def tell(each: Story) -> None:
        there = _make_cluster(replace(each, recreate=True))
        _play_story(there, each)
        there.run_for(2 * _QUIET_SECONDS, step=4)
        for _ in range(10):
            assert not (evicts := there.cycle().evicts), f"still goes on: {evicts}"
            there.advance(4)

    return random_story(random, mix), tell


def _make_cluster(each: Story) -> Cluster:
    policy, recreate, more = Policy(age_cap=each.age_cap), each.recreate, each.more
    return Cluster(each.nodes, each.quotas, policy=policy, recreate=recreate, more=more, reserve=each.reserve)


def _play_story(there: Cluster, each: Story) -> None:
    for step in each.steps:
        there.add(*(one for one, _ in step.arrives))
        there.cycle()
        there.advance(step.seconds)


def _running_gangs(there: Cluster) -> list[Gang]:
    """The gangs of which all pods run where one that asks for as much may be put in their place.

    Not those in the reserved place of another gang: that place is lent to them, and not theirs to leave.
    """
    return [
        one
        for _, one in sorted(there.gangs.items())
        if all(pod.state is PodState.PLACED and not pod.behind for pod in one.pods) and not one.required_level
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
