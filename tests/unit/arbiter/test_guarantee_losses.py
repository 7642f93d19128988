"""Reports of guarantees that are reduced because nodes are missing."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    Cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.decisions import GuaranteeLoss
from vkgateway.scheduler.core.reasons.pool_sums import cells_text
from vkgateway.scheduler.core.reasons.report import build_report


def cluster_with_loss() -> Cluster:
    """Return a tenant with a guarantee of two nodes, one of them closed, and a gang that needs both."""
    cluster = Cluster([make_node("n0"), make_node("n1", usable=False)], [make_quota("a", 16), make_quota("b")])
    cluster.add(make_gang("a/ns/gang/wide", "a", [8, 8]), make_gang("a/ns/gang/low", "a", [8, 8], band=LOW))
    return cluster


def test_cycle_reports_loss_until_node_returns() -> None:
    cluster = cluster_with_loss()
    lost = GuaranteeLoss(pool=KEY, tenant="a", units=8, asked={8: 2}, held={8: 1})
    assert cluster.cycle().losses == (lost,)
    assert cluster.cycle().losses == (lost,)
    cluster.pool = replace(cluster.pool, nodes=tuple(replace(each, usable=True) for each in cluster.pool.nodes))
    assert cluster.cycle().losses == ()
    assert cluster.borrowed_marks("a/ns/gang/wide") == {False}


def test_waiting_guaranteed_gang_reports_reduction() -> None:
    reports = reports_by_gang(cluster_with_loss().cycle())
    assert reports["a/ns/gang/wide"].message.endswith("; missing nodes reduce its guarantee in pool.compute: 2x8 -> 8")
    assert "guarantee" not in reports["a/ns/gang/low"].message


def test_reports_show_remaining_guarantee() -> None:
    cluster = cluster_with_loss()
    state = build_report(cluster.snapshot(), cluster.cycle(), cluster.now)
    (pool,), (a, b) = state.pools, state.tenants
    assert (pool.guaranteed, pool.kept) == (16, 8)
    assert (a.resource, a.guarantee, a.kept, a.reduced) == (GPU, 16, 8, "2x8 -> 8")
    assert (b.guarantee, b.kept, b.reduced) == (0, 0, "")


def test_lost_guarantee_is_not_lent() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 16)])
    cluster.add(make_gang("a/ns/gang/x", "a", [8]), make_gang("a/ns/gang/y", "a", [8]))
    cluster.cycle()
    cluster.pool = replace(cluster.pool, nodes=(cluster.pool.nodes[0], replace(cluster.pool.nodes[1], usable=False)))
    (pool,) = build_report(cluster.snapshot(), cluster.cycle(), cluster.now).pools
    assert (pool.kept, pool.lent) == (16, 0)  # the pod on the closed node still holds its cell


def test_cells_text_lists_largest_first() -> None:
    assert cells_text({1: 1, 8: 2}) == "2x8+1"
    assert cells_text({}) == "none"
