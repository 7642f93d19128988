"""Gangs that request only CPU and memory: all or nothing, guarantees as sums, borrowing, fair share, mixed gangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import GPU, KEY, Cluster, gpu_shape, make_gang, make_node
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Band, Node, Quota, Shape

GIB = 1024**3 * 1000
MACHINE = {"cpu": 96_000, "memory": 512 * GIB, "pods": 110_000}


def cpu_shape(count: int, gib: int = 0) -> Shape:
    return Shape.from_requests({"cpu": count * 1000, "memory": gib * GIB, "pods": 1000})


def host_nodes(count: int, *, size: int = 0, used: int = 0) -> tuple[Node, ...]:
    offered = MACHINE | ({GPU: size * 1000} if size else {})
    return tuple(Node(name=f"m{at}", allocatable=offered, used={"cpu": used * 1000}) for at in range(count))


def make_quota(tenant: str, *, cpu: int = 0, limit: int | None = None, gpu: int = 0) -> Quota:
    guarantee = ({"cpu": cpu * 1000} if cpu else {}) | ({GPU: gpu * 1000} if gpu else {})
    return Quota(tenant=tenant, pool=KEY, guarantee=guarantee, limit={} if limit is None else {"cpu": limit * 1000})


def make_cluster(nodes: Sequence[Node], *quotas: Quota) -> Cluster:
    found = Cluster(nodes, quotas)
    if not any(GPU in each.allocatable for each in nodes):
        found.pool = replace(found.pool, governed=())
    return found


DEVICES = pytest.mark.parametrize("devices", [0, 8], ids=["pool without devices", "pool with devices"])


@DEVICES
def test_one_of_two_gangs_starts_all_or_nothing(devices: int) -> None:
    made = make_cluster(host_nodes(3, size=devices), make_quota("a"))
    made.add(make_gang("a/x", "a", [cpu_shape(90)] * 2), make_gang("a/y", "a", [cpu_shape(90)] * 2))

    decisions = made.cycle()

    assert made.running_gangs() == {"a/x"}
    assert len(made.placed_nodes("a/x")) == 2
    assert [(report.gang, report.code) for report in decisions.holds] == [("a/y", PendingReason.ROOM)]


def test_usage_of_unmanaged_pods_counts() -> None:
    made = make_cluster(host_nodes(2, used=10), make_quota("a"))
    made.add(make_gang("a/x", "a", [cpu_shape(90)] * 2))
    assert [report.code for report in made.cycle().holds] == [PendingReason.ROOM]
    made.add(make_gang("a/y", "a", [cpu_shape(43)] * 4))
    made.cycle()
    assert made.running_gangs() == {"a/y"}


def test_memory_must_fit_single_nodes_like_cpu() -> None:
    made = make_cluster(host_nodes(2), make_quota("a"))
    made.add(make_gang("a/x", "a", [cpu_shape(1, 300)] * 3))
    decisions = made.cycle()
    assert [report.code for report in decisions.holds] == [PendingReason.INFEASIBLE]


def test_oversized_pod_reports_largest_node() -> None:
    made = make_cluster(host_nodes(2), make_quota("a"))
    made.add(make_gang("a/x", "a", [cpu_shape(100)]))
    [report] = made.cycle().holds
    assert report.code is PendingReason.INFEASIBLE
    assert "a pod can have cpu 96 at most" in report.message


@DEVICES
def test_limit_applies_to_whole_gang(devices: int) -> None:
    made = make_cluster(host_nodes(3, size=devices), make_quota("a", limit=180))
    made.add(make_gang("a/x", "a", [cpu_shape(90)] * 2), make_gang("a/y", "a", [cpu_shape(1)] * 2))
    decisions = made.cycle()
    assert made.running_gangs() == {"a/x"}
    assert [report.code for report in decisions.holds] == [PendingReason.QUOTA]


@DEVICES
def test_cpu_guarantee_reclaims_borrowed_cpu(devices: int) -> None:
    made = make_cluster(host_nodes(2, size=devices), make_quota("a", cpu=180), make_quota("b"))
    made.add(make_gang("b/x", "b", [cpu_shape(90)] * 2))
    made.cycle()
    assert made.borrowed_marks("b/x") == {True}

    made.add(make_gang("a/x", "a", [cpu_shape(90)] * 2), make_gang("a/y", "a", [cpu_shape(1)]))
    decisions = made.cycle()
    assert [(evict.gang, len(evict.pods)) for evict in decisions.evicts] == [("b/x", 2)]
    made.run_for(30)
    assert {"a/x", "a/y"} <= made.running_gangs()
    assert made.borrowed_marks("a/x") == {False}
    assert made.borrowed_marks("a/y") == {True}, "the guarantee is used up"


def test_no_eviction_without_guarantee() -> None:
    made = make_cluster(host_nodes(2), make_quota("a"), make_quota("b"))
    made.keep_low()
    made.add(make_gang("b/x", "b", [cpu_shape(90)] * 2, band=Band.LOW))
    made.cycle()
    made.add(make_gang("a/x", "a", [cpu_shape(90)] * 2))
    assert not made.cycle().evicts


def test_later_guarantee_covers_running_pods() -> None:
    made = make_cluster(host_nodes(2), make_quota("a"))
    made.add(make_gang("a/x", "a", [cpu_shape(90)] * 2))
    made.cycle()
    assert made.borrowed_marks("a/x") == {True}
    made.quotas = (make_quota("a", cpu=180),)
    made.cycle()
    assert made.borrowed_marks("a/x") == {False}


def test_device_guarantee_reclaims_blocking_cpu() -> None:
    made = make_cluster(host_nodes(2, size=8), make_quota("a", gpu=16), make_quota("b"))
    made.add(make_gang("b/x", "b", [cpu_shape(90)] * 2))
    made.cycle()
    made.add(make_gang("a/small", "a", [gpu_shape(8, 4)]))
    assert not made.cycle().evicts, "there is cpu for it beside"
    made.add(make_gang("a/big", "a", [gpu_shape(8, 40)]))
    assert [evict.gang for evict in made.cycle().evicts] == ["b/x"]
    made.run_for(30)
    assert {"a/small", "a/big"} <= made.running_gangs()


def test_fair_share_counts_cpu_of_host_gangs() -> None:
    made = make_cluster(host_nodes(3), make_quota("a"), make_quota("b"))
    made.add(make_gang("a/x", "a", [cpu_shape(90)]))
    made.cycle()
    made.advance(5)
    made.add(make_gang("a/y", "a", [cpu_shape(90)]))
    made.advance(5)
    made.add(make_gang("b/y", "b", [cpu_shape(90)]), make_gang("b/z", "b", [cpu_shape(90)]))
    made.cycle()
    assert made.running_gangs() == {"a/x", "b/y", "a/y"} or made.running_gangs() == {"a/x", "b/y", "b/z"}
    assert "b/y" in made.running_gangs(), "its tenant holds nothing yet"


def test_fair_share_ignores_cpu_of_pods_with_devices() -> None:
    made = make_cluster(host_nodes(2, size=8), make_quota("a", gpu=8), make_quota("b"))
    made.add(make_gang("a/x", "a", [gpu_shape(8, 90)]))
    made.cycle()
    made.advance(5)
    made.add(make_gang("b/y", "b", [cpu_shape(90)]))
    made.advance(5)
    made.add(make_gang("a/y", "a", [cpu_shape(90)]))
    made.cycle()
    assert "b/y" in made.running_gangs(), "neither holds cpu by itself, and it came first"


@pytest.mark.parametrize("guaranteed", [16, 0])
def test_launcher_without_devices_starts_with_its_workers(guaranteed: int) -> None:
    made = make_cluster([make_node("n0"), make_node("n1")], make_quota("a", gpu=guaranteed))
    shapes = [cpu_shape(4), gpu_shape(8, 62), gpu_shape(8, 62)]
    made.add(make_gang("a/mpi", "a", [Shape.from_requests({"cpu": 4000}), *shapes[1:]]))
    [report] = made.cycle().holds
    assert report.code is PendingReason.INFEASIBLE
    made.add(make_gang("a/mpi", "a", [Shape.from_requests({"cpu": 2000}), *shapes[1:]]))
    made.cycle()
    assert len(made.placed_nodes("a/mpi")) == 3
    assert made.borrowed_marks("a/mpi") == {not guaranteed}


def test_late_launcher_is_protected_like_its_workers() -> None:
    made = make_cluster([make_node("n0"), make_node("n1")], make_quota("a", gpu=16), make_quota("b"))
    launcher = Shape.from_requests({"cpu": 2000})
    made.add(make_gang("a/mpi", "a", [gpu_shape(8, 10), gpu_shape(8, 10)]))
    made.cycle()
    running = made.gangs["a/mpi"]
    late = replace(make_gang("a/late", "a", [launcher]).pods[0], rank=9)
    made.gangs["a/mpi"] = replace(running, pods=(*running.pods, late))
    made.cycle()
    assert len(made.placed_nodes("a/mpi")) == 3
    assert made.borrowed_marks("a/mpi") == {False}
