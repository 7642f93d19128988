"""Quick check before a victim search."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import KEY, make_gang, make_node
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.phases.tenant_preemption import could_fit_without
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.pools.pool_updates import PoolUpdates
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.scheduler.core.snapshot import PLACED, Gang, Pod, Policy, Pool


def pending_gang_of(gang: Gang) -> PendingGang:
    found = read_pending_gang(gang)
    assert isinstance(found, PendingGang)
    return found


def full_pool(nodes: int) -> tuple[PoolState, list[Pod]]:
    """Return a pool of nodes with 8 devices, each with two pods of 4."""
    pool = Pool(key=KEY, nodes=tuple(make_node(f"n{at}") for at in range(nodes)), governed=("nvidia.com/gpu",))
    pool_state = PoolState(pool, [], Policy(), Journal())
    gangs = [make_gang(f"old{at}", "a", [4, 4]) for at in range(nodes)]
    running = [
        replace(each, pods=tuple(replace(pod, state=PLACED, pool=KEY, node=f"n{at}") for pod in each.pods))
        for at, each in enumerate(gangs)
    ]
    PoolUpdates(pool_state).apply_changes([(None, each) for each in running])
    return pool_state, [pod for each in running for pod in each.pods]


def test_quick_check_counts_capacity_without_victims() -> None:
    pool_state, pods = full_pool(2)
    for sizes, without, could in [
        ([8, 8], pods, True),
        ([8, 8], pods[:3], False),
        ([8], pods[:2], True),
        ([8], pods[1:3], False),
        ([4, 4], pods[1:3], True),
        ([8, 8, 8], pods, False),
    ]:
        assert could_fit_without(pool_state, pending_gang_of(make_gang("new", "a", sizes)), without) is could, (
            sizes,
            could,
        )


def test_quick_check_counts_each_size_separately() -> None:
    pool_state, pods = full_pool(2)
    before = pool_state.node_resources.free.amounts_of("nvidia.com/gpu").tolist()
    assert could_fit_without(pool_state, pending_gang_of(make_gang("new", "a", [8, 8, 4, 4], minimum=4)), pods)
    assert not could_fit_without(pool_state, pending_gang_of(make_gang("new", "a", [8, 8, 8, 4], minimum=4)), pods)
    assert pool_state.node_resources.free.amounts_of("nvidia.com/gpu").tolist() == before
