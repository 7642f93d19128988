"""The arbiter leaves pools of other schedulers alone: no decision names a gang, a pod or a node there."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from tests.unit.arbiter.simulated_cluster import KEY, OTHER
from tests.unit.arbiter.stories import StoryMix, random_story
from vkgateway.scheduler.backends.split import split_snapshot
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Gang, PodState, Pool, PoolKey, Snapshot

CASES = int(os.environ.get("VKGATEWAY_CASES", "60"))
MIX = StoryMix(more_nodes=3, downs=True, often_leaves=True, without_devices=0.2)


def random_snapshot(random: Random) -> Snapshot:
    """Return two pools with gangs, some of which run in either pool."""
    story = random_story(random, MIX)
    pools = (
        Pool(key=KEY, nodes=story.nodes, governed=("nvidia.com/gpu",), levels=("rack",)),
        Pool(key=OTHER, nodes=story.more, governed=("nvidia.com/gpu",), levels=("rack",)),
    )
    gangs = [gang for step in story.steps for gang, _ in step.arrives]
    placed = tuple(_placed(random, gang, pools) for gang in gangs)
    return Snapshot(pools=pools, quotas=story.quotas, gangs=tuple(sorted(placed, key=lambda gang: gang.id)))


def _placed(random: Random, gang: Gang, pools: tuple[Pool, ...]) -> Gang:
    """Return a gang that runs on random nodes of one of its pools, or waits."""
    key = random.choice(gang.pools)
    nodes = next(pool.nodes for pool in pools if pool.key == key)
    if not nodes or random.random() < 0.6:
        return gang
    state = random.choice((PodState.PLACED, PodState.PLACED, PodState.NOTIFIED, PodState.ENDING))
    pods = (
        replace(pod, state=state, pool=key, node=random.choice(nodes).name, borrowed=True, deadline=2000.0)
        for pod in gang.pods
    )
    return replace(gang, pods=tuple(pods))


def named(decisions: Decisions) -> tuple[set[str], set[str], set[PoolKey], set[str]]:
    """Return gangs, pods, pools and nodes that decisions name."""
    plans = [each for plan in decisions.plans.values() for each in (plan, *plan.also)]
    placements = [
        *((admit.pool, admit.nodes) for admit in decisions.admits),
        *((each.pool, each.nodes) for each in plans),
    ]
    lists = (decisions.evicts, decisions.reprieves, decisions.promotes)
    return (
        {each.gang for part in (decisions.admits, *lists, decisions.holds) for each in part}
        | set(decisions.plans)
        | {evict.makes_room_for for evict in decisions.evicts},
        {uid for _, nodes in placements for uid in nodes}
        | {uid for part in lists for each in part for uid in each.pods},
        {pool for pool, _ in placements}
        | {hold.pool for hold in decisions.holds if hold.pool is not None}
        | {loss.pool for loss in decisions.losses},
        {node for _, nodes in placements for node in nodes.values()},
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_no_decision_names_another_scheduler(seed: int) -> None:
    random = Random(seed)
    snapshot = random_snapshot(random)
    foreign = frozenset({random.choice((KEY, OTHER))})
    parts = split_snapshot(snapshot, foreign)
    gangs, pods, pools, nodes = named(decide(parts.native, 1000.0))
    others = {gang.id for gang in parts.foreign.gangs}
    assert not gangs & others
    assert not pods & {pod.uid for gang in parts.foreign.gangs for pod in gang.pods}
    assert not pods & {pod.uid for gang in snapshot.gangs for pod in gang.pods if pod.pool in foreign}
    assert not pools & foreign
    assert not nodes & {node.name for pool in snapshot.pools if pool.key in foreign for node in pool.nodes}


@pytest.mark.parametrize("seed", range(CASES))
def test_every_gang_belongs_to_one_scheduler(seed: int) -> None:
    random = Random(seed)
    snapshot = random_snapshot(random)
    parts = split_snapshot(snapshot, frozenset({KEY}))
    ids = [gang.id for part in (parts.native, parts.foreign) for gang in part.gangs]
    assert sorted(ids) == sorted(gang.id for gang in snapshot.gangs)
    assert all(gang.pools == (KEY,) for gang in parts.foreign.gangs)
    assert all(KEY not in gang.pools for gang in parts.native.gangs)


@pytest.mark.parametrize("seed", range(5))
def test_arbiter_decides_as_if_other_pools_did_not_exist(seed: int) -> None:
    random = Random(seed)
    snapshot = random_snapshot(random)
    only = replace(
        snapshot,
        pools=snapshot.pools[1:],
        quotas=tuple(quota for quota in snapshot.quotas if quota.pool == OTHER),
        gangs=tuple(gang for gang in snapshot.gangs if gang.pools == (OTHER,)),
    )
    mixed = replace(snapshot, gangs=(*only.gangs, *(gang for gang in snapshot.gangs if gang.pools == (KEY,))))
    assert decide(split_snapshot(mixed, {KEY}).native, 1000.0) == decide(only, 1000.0)
