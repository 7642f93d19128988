"""Split of a snapshot between the arbiter and other schedulers."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import GPU, KEY, OTHER, make_gang, make_nodes, make_quota, with_pod_pools
from vkgateway.scheduler.backends.split import native_decisions, split_snapshot
from vkgateway.scheduler.core.decisions import Admit, Decisions, Evict
from vkgateway.scheduler.core.snapshot import Gang, PodState, Pool, PoolKey, Snapshot

POOLS = tuple(Pool(key=key, nodes=tuple(make_nodes(1)), governed=(GPU,)) for key in (KEY, OTHER))


def snapshot(*gangs: Gang) -> Snapshot:
    return Snapshot(pools=POOLS, quotas=(make_quota("a", 8), make_quota("a", pool=OTHER)), gangs=gangs)


def placed(gang: Gang, key: PoolKey) -> Gang:
    return replace(gang, pods=tuple(replace(pod, state=PodState.PLACED, pool=key, node="n0") for pod in gang.pods))


def test_gang_belongs_to_the_scheduler_of_its_preferred_pool() -> None:
    foreign, native = make_gang("f", "a", [1], pools=(OTHER, KEY)), make_gang("n", "a", [1], pools=(KEY, OTHER))
    parts = split_snapshot(snapshot(foreign, native), {OTHER})
    assert [(gang.id, gang.pools) for gang in parts.foreign.gangs] == [("f", (OTHER,))]
    assert [(gang.id, gang.pools) for gang in parts.native.gangs] == [("n", (KEY,))]
    assert [pool.key for pool in parts.native.pools] == [KEY]
    assert [quota.pool for quota in parts.native.quotas] == [KEY]
    assert [quota.pool for quota in parts.foreign.quotas] == [OTHER]


def test_running_gang_belongs_to_the_scheduler_of_its_pool() -> None:
    gang = make_gang("g", "a", [1, 1], pools=(KEY, OTHER))
    assert split_snapshot(snapshot(placed(gang, OTHER)), {OTHER}).foreign.gangs[0].pools == (OTHER,)
    assert split_snapshot(snapshot(placed(gang, KEY)), {OTHER}).native.gangs[0].pools == (KEY,)


def test_pods_that_name_other_pools_are_left_out() -> None:
    gang = with_pod_pools(make_gang("g", "a", [1, 1]), (OTHER,), (KEY,))
    parts = split_snapshot(snapshot(gang), {OTHER})
    (found,) = parts.foreign.gangs
    assert [pod.uid for pod in found.pods] == ["g-0"]
    assert not parts.native.gangs


def test_gang_of_the_arbiter_stays_the_same_object() -> None:
    gang = make_gang("g", "a", [1])
    assert split_snapshot(snapshot(gang), {OTHER}).native.gangs[0] is gang


def test_native_decisions_leave_out_gangs_of_other_schedulers() -> None:
    foreign, native = make_gang("f", "a", [1], pools=(OTHER,)), make_gang("n", "a", [1])
    admits = tuple(
        Admit(gang=gang.id, pool=gang.pools[0], nodes={gang.pods[0].uid: "n0"}, borrowed=False)
        for gang in (foreign, native)
    )
    evict = Evict(gang="f", pods=("f-0",), whole=True, makes_room_for="", deadline=0.0, lost=0.0)
    found = native_decisions(Decisions(admits=admits, evicts=(evict,)), snapshot(foreign, native), {OTHER})
    assert found == Decisions(admits=admits[1:])
