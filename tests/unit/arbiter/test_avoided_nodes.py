"""Nodes on which several gangs failed are chosen last, and still used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.reasons.node_report import build_node_reports
from vkgateway.scheduler.core.reasons.report import build_report


def avoid(found: Cluster, *names: str, failed: int = 2) -> None:
    """Let gangs fail on these nodes."""
    nodes = (replace(each, failed_gangs=failed if each.name in names else 0) for each in found.pool.nodes)
    found.pool = replace(found.pool, nodes=tuple(nodes))


@pytest.mark.parametrize("guarantee", [0, 8], ids=["borrowing", "guaranteed"])
def test_avoided_node_is_used_last(guarantee: int) -> None:
    found = Cluster([make_node("n0", 2), make_node("n1", 8)], [make_quota("a", guarantee)])
    avoid(found, "n0")
    found.add(make_gang("one", "a", [1]))
    found.cycle()
    assert found.placed_nodes("one") == {"one-0": "n1"}, "the fuller node would come first"
    found.add(make_gang("rest", "a", [1] * 9))
    found.cycle()
    assert sorted(found.placed_nodes("rest").values()).count("n0") == 2, "the gang does not wait for another node"


def test_guaranteed_pod_leaves_the_avoided_node_of_its_tenant() -> None:
    found = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8)])
    found.add(make_gang("one", "a", [1]))
    found.cycle()
    avoid(found, *found.placed_nodes("one").values())
    found.add(make_gang("two", "a", [1]))
    found.cycle()
    assert found.placed_nodes("two").values() != found.placed_nodes("one").values()


def test_required_domain_without_avoided_nodes_comes_first() -> None:
    nodes = [make_node("n0", 2, rack="r0"), make_node("n1", 2, rack="r0")]
    nodes += [make_node("n2", 8, rack="r1"), make_node("n3", 8, rack="r1")]
    found = Cluster(nodes, [make_quota("a")])
    avoid(found, "n1")
    found.add(make_gang("one", "a", [2, 2], required_level="rack"))
    found.cycle()
    assert set(found.placed_nodes("one").values()) <= {"n2", "n3"}


def test_cached_cycles_follow_the_record() -> None:
    found = Cluster([make_node("n0", 2), make_node("n1", 8)], [make_quota("a")])
    found.add(make_gang("one", "a", [1]))
    cache = Cache()
    for names in (("n0",), (), ("n0", "n1"), ("n1",)):
        avoid(found, *names)
        assert decide(found.snapshot(), found.now, cache) == decide(found.snapshot(), found.now)


def test_reports_name_avoided_nodes() -> None:
    found = Cluster([make_node("n0", 2), make_node("n1", 8)], [make_quota("a")])
    avoid(found, "n1", failed=3)
    assert [node.failed_gangs for node in build_node_reports(found.snapshot(), Decisions())] == [0, 3]
    assert build_report(found.snapshot(), Decisions(), found.now).pools[0].avoided_nodes == 1
