"""Tests of what is told of guarantees that are reduced because nodes are missing."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.sim import GPU, KEY, LOW, Cluster, gang, held, node, quota
from vkgateway.arbiter.decisions import GuaranteeLoss
from vkgateway.arbiter.reasons.guarantee_losses import cells_text
from vkgateway.arbiter.reasons.report import build_report


def short() -> Cluster:
    """A tenant with a guarantee of two nodes, of which one is closed, and work that needs both."""
    there = Cluster([node("n0"), node("n1", usable=False)], [quota("a", 16), quota("b")])
    there.add(gang("a/ns/gang/wide", "a", [8, 8]), gang("a/ns/gang/low", "a", [8, 8], band=LOW))
    return there


def test_a_cycle_tells_what_is_lost_until_the_node_is_back() -> None:
    there = short()
    lost = GuaranteeLoss(pool=KEY, tenant="a", units=8, asked={8: 2}, held={8: 1})
    assert there.cycle().losses == (lost,)
    assert there.cycle().losses == (lost,)
    there.pool = replace(there.pool, nodes=tuple(replace(each, usable=True) for each in there.pool.nodes))
    assert there.cycle().losses == ()
    assert there.borrowed("a/ns/gang/wide") == {False}


def test_a_gang_of_the_guaranteed_band_hears_why_it_waits_all_the_same() -> None:
    holds = held(short().cycle())
    assert holds["a/ns/gang/wide"].message.endswith("; missing nodes reduce its guarantee in pool.compute: 2x8 -> 8")
    assert "guarantee" not in holds["a/ns/gang/low"].message


def test_pools_and_tenants_show_what_is_kept() -> None:
    there = short()
    state = build_report(there.snapshot(), there.cycle(), there.now)
    (pool,), (a, b) = state.pools, state.tenants
    assert (pool.guaranteed, pool.kept) == (16, 8)
    assert (a.resource, a.guarantee, a.kept, a.reduced) == (GPU, 16, 8, "2x8 -> 8")
    assert (b.guarantee, b.kept, b.reduced) == (0, 0, "")


def test_nothing_is_lent_of_what_is_lost() -> None:
    there = Cluster([node("n0"), node("n1")], [quota("a", 16)])
    there.add(gang("a/ns/gang/x", "a", [8]), gang("a/ns/gang/y", "a", [8]))
    there.cycle()
    there.pool = replace(there.pool, nodes=(there.pool.nodes[0], replace(there.pool.nodes[1], usable=False)))
    (pool,) = build_report(there.snapshot(), there.cycle(), there.now).pools
    assert (pool.kept, pool.lent) == (16, 0)  # what runs on the closed node still holds its cell


def test_cells_are_written_the_largest_first() -> None:
    assert cells_text({1: 1, 8: 2}) == "2x8+1"
    assert cells_text({}) == "none"
