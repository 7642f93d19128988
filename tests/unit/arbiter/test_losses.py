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
from vkgateway.arbiter.decisions import GuaranteeLoss
from vkgateway.arbiter.reasons.guarantee_losses import cells_text
from vkgateway.arbiter.reasons.report import build_report


def short() -> Cluster:
    """Return a tenant with a guarantee of two nodes, one of them closed, and a gang that needs both."""
    there = Cluster([make_node("n0"), make_node("n1", usable=False)], [make_quota("a", 16), make_quota("b")])
    there.add(make_gang("a/ns/gang/wide", "a", [8, 8]), make_gang("a/ns/gang/low", "a", [8, 8], band=LOW))
    return there


def test_cycle_reports_loss_until_node_returns() -> None:
    there = short()
    lost = GuaranteeLoss(pool=KEY, tenant="a", units=8, asked={8: 2}, held={8: 1})
    assert there.cycle().losses == (lost,)
    assert there.cycle().losses == (lost,)
    there.pool = replace(there.pool, nodes=tuple(replace(each, usable=True) for each in there.pool.nodes))
    assert there.cycle().losses == ()
    assert there.borrowed_marks("a/ns/gang/wide") == {False}


def test_waiting_guaranteed_gang_reports_reduction() -> None:
    holds = reports_by_gang(short().cycle())
    assert holds["a/ns/gang/wide"].message.endswith("; missing nodes reduce its guarantee in pool.compute: 2x8 -> 8")
    assert "guarantee" not in holds["a/ns/gang/low"].message


def test_reports_show_remaining_guarantee() -> None:
    there = short()
    state = build_report(there.snapshot(), there.cycle(), there.now)
    (pool,), (a, b) = state.pools, state.tenants
    assert (pool.guaranteed, pool.kept) == (16, 8)
    assert (a.resource, a.guarantee, a.kept, a.reduced) == (GPU, 16, 8, "2x8 -> 8")
    assert (b.guarantee, b.kept, b.reduced) == (0, 0, "")


def test_lost_guarantee_is_not_lent() -> None:
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 16)])
    there.add(make_gang("a/ns/gang/x", "a", [8]), make_gang("a/ns/gang/y", "a", [8]))
    there.cycle()
    there.pool = replace(there.pool, nodes=(there.pool.nodes[0], replace(there.pool.nodes[1], usable=False)))
    (pool,) = build_report(there.snapshot(), there.cycle(), there.now).pools
    assert (pool.kept, pool.lent) == (16, 0)  # the pod on the closed node still holds its cell


def test_cells_text_lists_largest_first() -> None:
    assert cells_text({1: 1, 8: 2}) == "2x8+1"
    assert cells_text({}) == "none"
