"""Reports of pools, tenants and gangs."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tests.unit.arbiter.simulated_cluster import GPU, KEY, LOW, Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions, PendingReason, PendingReport
from vkgateway.scheduler.core.reasons.report import build_report, build_summary
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, GangReport, gangs_waiting_in
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState, Quota


def report_of(cluster: Cluster) -> ArbiterReport:
    """Return the report of a cluster after all decisions are made."""
    snapshot = cluster.snapshot()
    decisions = decide(snapshot, cluster.now)
    found = build_report(snapshot, decisions, cluster.now)
    assert build_summary(snapshot, decisions, cluster.now) == msgspec.structs.replace(found, gangs=())
    return found


def gang_report_of(state: ArbiterReport, name: str) -> GangReport:
    return next(found for found in state.gangs if found.id == name)


def test_units_add_up_by_owner() -> None:
    nodes = [
        make_node("n0"),
        replace(make_node("n1"), used={GPU: 3000}),
        make_node("n2"),
        make_node("gone", usable=False),
    ]
    cluster = Cluster(nodes, [make_quota("a", 8, limit=24, weight=2.0), make_quota("b", 8), make_quota("c", 4)])
    cluster.add(make_gang("a/ns/gang/in", "a", [4, 4]), make_gang("b/ns/gang/low", "b", [2, 2, 2], band=LOW))
    cluster.run_for(5)
    cluster.add(make_gang("a/ns/gang/wide", "a", [8, 8]))

    (pool,) = report_of(cluster).pools

    assert (pool.pool, pool.compute_cluster, pool.node, pool.resource) == ("pool", "compute", "pool.compute", GPU)
    assert (pool.nodes, pool.usable_nodes, pool.allocatable, pool.others) == (4, 3, 24, 3)
    assert (pool.guaranteed, pool.used, pool.borrowed, pool.waiting) == (20, 8, 6, 16)
    assert pool.free == 24 - 3 - 8 - 6 == 7
    # 20 of 21 are guaranteed, so of 6 borrowed all but one are guaranteed to a tenant.
    assert pool.lent == 5
    assert (pool.gangs_running, pool.gangs_waiting) == (2, 1)

    a, b, c = report_of(cluster).tenants
    assert (a.guarantee, a.limit, a.weight, a.used, a.borrowed, a.waiting) == (8, 24, 2.0, 8, 0, 16)
    assert (b.guarantee, b.limit, b.used, b.borrowed, b.waiting) == (8, None, 0, 6, 0)
    assert (c.tenant, c.used, c.borrowed, c.gangs_running) == ("c", 0, 0, 0)
    assert (a.gangs_waiting, a.gangs_running, b.gangs_running) == (1, 1, 1)


def test_nothing_is_lent_while_unguaranteed_units_are_free() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")])
    cluster.add(make_gang("b/ns/gang/x", "b", [8]))
    cluster.run_for(2)
    assert report_of(cluster).pools[0].lent == 0
    cluster.add(make_gang("b/ns/gang/y", "b", [4]))
    cluster.run_for(2)
    assert (report_of(cluster).pools[0].borrowed, report_of(cluster).pools[0].lent) == (12, 4)


def test_nodes_that_tenants_share_inside_guarantees_use_spare_nodes() -> None:
    nodes = [make_node(f"n{at}") for at in range(4)]
    cluster = Cluster(nodes, [make_quota("a", 8), make_quota("b", 8)])
    (pool,) = report_of(cluster).pools
    assert (pool.spare_nodes, pool.spare_nodes_in_use) == (2, 0)
    cluster.add(make_gang("a/ns/gang/x", "a", [4]), make_gang("b/ns/gang/x", "b", [2]))
    cluster.run_for(2)
    assert list(cluster.placed_nodes("a/ns/gang/x").values()) == list(cluster.placed_nodes("b/ns/gang/x").values())
    (pool,) = report_of(cluster).pools
    assert (pool.spare_nodes, pool.spare_nodes_in_use) == (2, 1)


def test_fragmentation_is_free_fraction_on_partly_used_nodes() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1"), make_node("n2")], [make_quota("a")])
    assert (report_of(cluster).pools[0].fragmentation, report_of(cluster).pools[0].whole_nodes) == (0.0, 3)
    cluster.add(make_gang("a/ns/gang/x", "a", [6]), make_gang("a/ns/gang/y", "a", [6]))
    cluster.run_for(2)
    (pool,) = report_of(cluster).pools
    assert (pool.free, pool.largest, pool.whole_nodes) == (12, 8, 1)
    assert pool.fragmentation == round(4 / 12, 4)
    cluster.add(
        make_gang("a/ns/gang/z", "a", [8]), make_gang("a/ns/gang/v", "a", [2]), make_gang("a/ns/gang/w", "a", [2])
    )
    cluster.run_for(2)
    assert (report_of(cluster).pools[0].free, report_of(cluster).pools[0].fragmentation) == (0, 0.0)


def test_waiting_gang_reports_reason_and_place() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b", weight=1e6)])
    cluster.add(make_gang("a/ns/gang/runs", "a", [8], run_limit=600.0, priority=7))
    cluster.run_for(2)
    cluster.add(make_gang("a/ns/gang/wide", "a", [8, 8], priority=7, created=900.0))
    cluster.cycle()
    cluster.add(
        make_gang("a/ns/gang/late", "a", [8, 8], created=950.0), make_gang("a/ns/gang/never", "a", [9], created=990.0)
    )

    state = report_of(cluster)
    wide, late = gang_report_of(state, "a/ns/gang/wide"), gang_report_of(state, "a/ns/gang/late")

    assert (wide.state, wide.code, wide.place, wide.since) == ("waiting", "WaitingForRoom", 1, 900.0)
    assert (wide.namespace, wide.way, wide.name) == ("ns", "gang", "wide")
    assert (wide.pools, wide.pool, wide.units, wide.pods, wide.placed) == (("pool.compute",), "pool.compute", 16, 2, 0)
    assert (wide.band, wide.priority, wide.earliest) == ("guaranteed", 7, 1600.0)
    assert late.place == 2
    assert gang_report_of(state, "a/ns/gang/never").code == "Infeasible"
    assert [found.name for found in gangs_waiting_in(state)] == ["wide", "late", "never"]
    assert list(gangs_waiting_in(state, tenant="b")) == list(gangs_waiting_in(state, pool="other")) == []
    assert (
        len(list(gangs_waiting_in(state, "a", "pool"))) == len(list(gangs_waiting_in(state, "a", "pool.compute"))) == 3
    )


def test_report_includes_decisions_of_cycle() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 16), make_quota("b")])
    cluster.add(make_gang("b/ns/gang/low", "b", [8, 8], band=LOW))
    starting = report_of(cluster)
    cluster.run_for(2)
    cluster.add(make_gang("a/ns/gang/in", "a", [8, 8]))

    assert gang_report_of(starting, "b/ns/gang/low").state == "starting"
    assert (starting.pools[0].borrowed, starting.pools[0].free) == (16, 0)
    state = report_of(cluster)
    low, mine = gang_report_of(state, "b/ns/gang/low"), gang_report_of(state, "a/ns/gang/in")
    assert (low.state, low.deadline, low.borrowed, low.since) == ("leaving", cluster.now + 10.0, True, 1000.0)
    assert (mine.state, mine.code, mine.pool) == ("waiting", "WaitingForEviction", "pool.compute")
    cluster.run_for(30)
    assert gang_report_of(report_of(cluster), "a/ns/gang/in").state == "running"


def test_shrinking_gang_keeps_running_state() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", 4), make_quota("b")])
    cluster.add(make_gang("b/ns/gang/grows", "b", [2, 2, 2, 2], minimum=2, elastic=True))
    cluster.run_for(3)
    cluster.add(make_gang("a/ns/gang/in", "a", [4]))
    cluster.cycle()
    found = gang_report_of(report_of(cluster), "b/ns/gang/grows")
    assert (found.state, found.placed, found.minimum, found.deadline) == ("running", 4, 2, None)


def test_running_gangs_with_waiting_pods_are_listed_last() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a"), make_quota("b")])
    cluster.add(make_gang("a/ns/gang/grows", "a", [2, 2, 4, 4], minimum=2, elastic=True))
    cluster.run_for(3)
    cluster.add(
        make_gang("b/ns/gang/wide", "b", [8], created=2000.0), make_gang("b/ns/gang/never", "b", [9], created=2000.0)
    )
    state = report_of(cluster)
    grows = gang_report_of(state, "a/ns/gang/grows")
    assert (grows.state, grows.pods, grows.placed, grows.waiting_units) == ("running", 4, 3, 4)
    assert (grows.code, grows.message) == ("WaitingForRoom", "runs with 3 of 4 pods; no capacity is free for more")
    assert [found.name for found in gangs_waiting_in(state)] == ["wide", "never", "grows"]
    assert gang_report_of(state, "b/ns/gang/wide").waiting_units == 8


def test_running_gang_is_listed_only_in_its_pool() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a")], [make_gang("a/ns/gang/x", "a", [2, 2])])
    waits = gang_report_of(report_of(cluster), "a/ns/gang/x")
    found = msgspec.structs.replace(
        waits, pools=("small.local", "big.local"), pool="big.local", state="running", placed=1
    )
    state = ArbiterReport(gangs=(found, msgspec.structs.replace(found, placed=2)))
    assert [len(list(gangs_waiting_in(state, pool=pool))) for pool in ("big", "big.local", "small")] == [1, 1, 0]


def test_promoted_gang_does_not_borrow() -> None:
    placed = Pod(uid="u", shape=make_gang("x", "a", [4]).pods[0].shape, state=PodState.PLACED, pool=KEY, node="n0")
    borrowing = Gang(id="a/ns/gang/x", tenant="a", pods=(replace(placed, borrowed=True, since=5.0),), pools=(KEY,))
    cluster = Cluster([make_node("n0")], [make_quota("a", 4)], [borrowing])
    before = build_report(cluster.snapshot(), Decisions(), cluster.now)
    assert (before.tenants[0].borrowed, before.gangs[0].borrowed) == (4, True)
    after = report_of(cluster)
    assert (after.tenants[0].borrowed, after.tenants[0].used, after.gangs[0].borrowed) == (0, 4, False)


def test_single_pod_is_reported_by_name() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a")], [make_gang("a/ns/pod/1234", "a", [1])])
    decisions = decide(cluster.snapshot(), cluster.now)
    (found,) = build_report(
        cluster.snapshot(), decisions, cluster.now, names={"1234": ("ns", "web-0", "Job/web")}
    ).gangs
    assert found.controller == "Job/web"
    assert (found.namespace, found.way, found.name) == ("ns", "", "web-0")
    (found,) = build_report(cluster.snapshot(), decisions, cluster.now).gangs
    assert found.name == "1234"


def test_undecided_gangs_are_reported_with_reason() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a")], [make_gang("a/ns/gang/x", "a", [1])])
    unread = PendingReport(gang="a/ns/pod/1234", code=PendingReason.INVALID, message="gang-min is 'many'")
    state = build_report(cluster.snapshot(), Decisions(holds=(unread,)), cluster.now, names={"1234": ("ns", "p")})
    found = gang_report_of(state, "a/ns/pod/1234")
    assert (found.tenant, found.namespace, found.name, found.pods) == ("a", "ns", "p", 0)
    assert (found.state, found.code, found.since) == ("waiting", "Invalid", None)
    assert [one.id for one in gangs_waiting_in(state)] == ["a/ns/pod/1234", "a/ns/gang/x"]


def test_fractions_of_units_and_removed_pools_are_reported() -> None:
    half = make_gang("a/ns/gang/half", "a", [1])
    pod = replace(half.pods[0], shape=replace(half.pods[0].shape, requests=((GPU, 500),)))
    lost = Gang(id="a/ns/gang/lost", tenant="a", pods=make_gang("l", "a", [1]).pods, pools=(("compute", "gone"),))
    quotas = [make_quota("a"), Quota(tenant="a", pool=("compute", "gone"))]
    cluster = Cluster([make_node("n0")], quotas, [replace(half, pods=(pod,)), lost])
    state = report_of(cluster)
    assert state.pools[0].free == 7.5
    assert gang_report_of(state, "a/ns/gang/lost").pool == ""
    assert len(state.tenants) == 1


def test_report_round_trips_through_json() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", 4)], [make_gang("a/ns/gang/x", "a", [4, 8])])
    state = report_of(cluster)
    text = msgspec.json.encode(state)
    assert msgspec.json.decode(text, type=ArbiterReport) == state
    assert b'"usableNodes":1' in text
