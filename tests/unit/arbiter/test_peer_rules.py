"""Hard constraints about other pods: spread, affinity and anti-affinity hold in starts, plans and evictions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.unit.arbiter.borrowed_pool import (
    choose_for,
    evicted_pods,
    resources_and_candidates,
    running_gang,
    waiting_gang,
)
from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    Cluster,
    gpu_shape,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.decisions import Evict, PendingReason
from vkgateway.scheduler.core.peer_rules import NO_MINIMUM, VIRTUAL_NODE, PeerRules, PeerTerm, SpreadRule
from vkgateway.scheduler.core.snapshot import Gang, Node, Pool, Shape

HOST = "kubernetes.io/hostname"
WEB = "a/web"
SPREAD = PeerRules(selected_by=frozenset((WEB,)), spread=(SpreadRule(peers=WEB, topology_key=HOST, max_skew=1),))
APART = PeerRules(selected_by=frozenset((WEB,)), anti_affinity=(PeerTerm(WEB, VIRTUAL_NODE),))
TOGETHER = PeerRules(selected_by=frozenset((WEB,)), affinity=WEB, affinity_keys=(HOST,))


def hosts(*sizes: int) -> list[Node]:
    nodes = [make_node(f"n{index}", size) for index, size in enumerate(sizes)]
    return [replace(node, labels={**node.labels, HOST: node.name}) for node in nodes]


def shape(gpus: int, rules: PeerRules | None) -> Shape:
    return replace(gpu_shape(gpus), peers=rules)


def pods_by_node(cluster: Cluster, *names: str) -> dict[str, int]:
    return dict(Counter(node for name in names for node in cluster.placed_nodes(name).values()))


def single_pods(number: int, rules: PeerRules | None, **fields: object) -> list[Gang]:
    return [make_gang(f"w{index}", "a", [shape(1, rules)], **fields) for index in range(number)]


@pytest.mark.parametrize("guarantee", [0, 8])
def test_single_pods_are_spread(guarantee: int) -> None:
    cluster = Cluster(hosts(8, 8), [make_quota("a", guarantee)])
    names = [f"w{index}" for index in range(4)]
    cluster.add(*single_pods(4, None))
    cluster.cycle()
    assert pods_by_node(cluster, *names) == {"n0": 4}, "without the constraint, the fullest node"

    cluster = Cluster(hosts(8, 8), [make_quota("a", guarantee)])
    cluster.add(*single_pods(4, SPREAD))
    cluster.cycle()
    assert pods_by_node(cluster, *names) == {"n0": 2, "n1": 2}


@pytest.mark.parametrize("guarantee", [0, 16])
def test_gang_is_spread(guarantee: int) -> None:
    cluster = Cluster(hosts(8, 8, 8), [make_quota("a", guarantee)])
    cluster.add(make_gang("g", "a", [shape(2, SPREAD)] * 6))
    cluster.cycle()
    assert pods_by_node(cluster, "g") == {"n0": 2, "n1": 2, "n2": 2}


@pytest.mark.parametrize("guarantee", [0, 9])
def test_pods_that_would_be_uneven_wait_with_the_way_out(guarantee: int) -> None:
    cluster = Cluster(hosts(8, 1), [make_quota("a", guarantee)])
    cluster.add(make_gang("g", "a", [shape(1, SPREAD)] * 4))
    report = reports_by_gang(cluster.cycle())["g"]
    assert report.code is PendingReason.ROOM
    assert report.message.startswith(
        "needs 4 pods of nvidia.com/gpu 1; 3 of 4 would fit now; topologySpreadConstraints (maxSkew 1 over"
        " kubernetes.io/hostname) exclude other free nodes: free the domain with the fewest pods, raise maxSkew, or set"
        " ScheduleAnyway"
    )


def test_message_names_no_constraint_where_capacity_lacks() -> None:
    cluster = Cluster(hosts(1, 1), [make_quota("a")])
    cluster.add(make_gang("g", "a", [shape(1, SPREAD)] * 2), make_gang("x", "a", [1]))
    cluster.cycle()
    report = reports_by_gang(cluster.cycle())
    assert all("topologySpread" not in each.message for each in report.values())


def test_pods_of_others_count() -> None:
    nodes = hosts(8, 8)
    nodes[0] = replace(nodes[0], peers={WEB: 2})
    cluster = Cluster(nodes, [make_quota("a")])
    cluster.add(*single_pods(3, SPREAD))
    cluster.cycle()
    assert pods_by_node(cluster, "w0", "w1", "w2") == {"n1": 3}


def test_needed_domains_that_do_not_exist_count_as_empty() -> None:
    rules = replace(SPREAD, spread=(replace(SPREAD.spread[0], min_domains=NO_MINIMUM),))
    cluster = Cluster(hosts(8, 8), [make_quota("a")])
    cluster.add(*single_pods(3, rules))
    cluster.cycle()
    assert sorted(pods_by_node(cluster, "w0", "w1", "w2").items()) == [("n0", 1), ("n1", 1)]


def test_gang_with_affinity_to_itself_takes_a_node_that_fits_all() -> None:
    cluster = Cluster(hosts(8, 8), [make_quota("a"), make_quota("b")])
    cluster.add(make_gang("x", "b", [6]))
    cluster.cycle()
    cluster.add(make_gang("g", "a", [shape(1, TOGETHER)] * 4))
    cluster.cycle()
    assert pods_by_node(cluster, "g") == {"n1": 4}


def test_gang_that_excludes_itself_is_infeasible() -> None:
    cluster = Cluster(hosts(8, 8), [make_quota("a")])
    cluster.add(make_gang("g", "a", [shape(1, APART)] * 2))
    report = reports_by_gang(cluster.cycle())["g"]
    assert report.code is PendingReason.INFEASIBLE
    assert report.message == (
        "needs 2 pods of nvidia.com/gpu 1; even on empty nodes, only 1 of 2 would fit; required podAntiAffinity lets"
        " one matching pod run on each virtual node, which is one host for the tenant's scheduler: use"
        " topologySpreadConstraints to separate pods on compute nodes"
    )


def test_gang_with_anti_affinity_over_hosts_gets_distinct_nodes() -> None:
    rules = replace(APART, anti_affinity=(PeerTerm(WEB, HOST),))
    cluster = Cluster(hosts(8, 8, 8), [make_quota("a")])
    cluster.add(make_gang("g", "a", [shape(1, rules)] * 3), make_gang("h", "a", [shape(1, rules)]))
    cluster.cycle()
    assert pods_by_node(cluster, "g") == {"n0": 1, "n1": 1, "n2": 1}
    assert pods_by_node(cluster, "h") == {}


def test_virtual_nodes_of_one_pool_are_separate_hosts() -> None:
    pool = Pool(key=KEY, nodes=tuple(hosts(8, 8, 8)), governed=(GPU,), virtual_nodes_by="rack")
    racks = [replace(node, labels={**node.labels, "rack": f"r{index // 2}"}) for index, node in enumerate(pool.nodes)]
    resources = NodeResources(replace(pool, nodes=tuple(racks)))
    gang = make_gang("g", "a", [shape(1, APART)] * 3)
    assert place_pods(resources, gang.pods) is None
    assert place_pods(resources, gang.pods[:2]) == {"g-0": "n0", "g-1": "n2"}


def full_of_borrowers(rules: PeerRules, gpus: int = 1, pods: int = 2) -> Cluster:
    """Return two nodes full of another tenant's low pods, and a guaranteed gang that needs some of their GPUs."""
    cluster = Cluster(hosts(4, 4), [make_quota("a", 8), make_quota("b")], recreate=False)
    cluster.add(*(make_gang(f"low{index}", "b", [1], band=LOW) for index in range(8)))
    cluster.cycle()
    cluster.add(make_gang("g", "a", [shape(gpus, rules)] * pods))
    return cluster


def test_victims_are_those_of_a_placement_that_keeps_the_spread() -> None:
    cluster = full_of_borrowers(SPREAD)
    evicts = [each.gang for each in cluster.cycle().evicts]
    nodes = {node for name in evicts for node in (pod.node for pod in cluster.gangs[name].pods)}
    assert (len(evicts), nodes) == (2, {"n0", "n1"})
    again: list[Evict] = []
    for _ in range(30):
        cluster.advance(1)
        again += cluster.cycle().evicts
    assert again == []
    assert pods_by_node(cluster, "g") == {"n0": 1, "n1": 1}


def test_no_more_victims_than_the_spread_needs_of_a_borrower() -> None:
    young = [running_gang(f"young{index}", ["n0"], age=1) for index in range(4)]
    old = [running_gang(f"old{index}", ["n1"], age=1000 + index) for index in range(4)]
    choice = choose_for(resources_and_candidates(hosts(4, 4), [*young, *old]), waiting_gang(2, shape(1, SPREAD)))
    assert choice is not None
    assert sorted(choice.nodes.values()) == ["n0", "n1"]
    assert [len([each for each in evicted_pods(choice) if each.startswith(kind)]) for kind in ("young", "old")] == [
        1,
        1,
    ]


def test_victims_elsewhere_that_the_gang_excludes_are_not_spared() -> None:
    selected = running_gang("web", ["n1"], shape(1, PeerRules(selected_by=frozenset((WEB,)))))
    spared = running_gang("other", ["n1"])
    cluster = resources_and_candidates(hosts(4, 4), [running_gang("full", ["n0"], 4), selected, spared])
    rules = PeerRules(anti_affinity=APART.anti_affinity)
    choice = choose_for(cluster, waiting_gang(1, shape(4, rules)), among=["n0"])
    assert evicted_pods(choice).keys() == {"full", "web"}


def test_no_more_victims_than_the_spread_needs() -> None:
    cluster = Cluster(hosts(4, 4), [make_quota("a", 8), make_quota("b")], recreate=False)
    for first in (0, 4):
        cluster.add(*(make_gang(f"low{index}", "b", [1], band=LOW) for index in range(first, first + 4)))
        cluster.cycle()
        cluster.advance(1000)
    assert cluster.placed_nodes("low0") != cluster.placed_nodes("low4"), "the young, cheap ones are on one node"
    cluster.add(make_gang("g", "a", [shape(1, SPREAD)] * 2))
    nodes = [pod.node for each in cluster.cycle().evicts for pod in cluster.gangs[each.gang].pods]
    assert sorted(nodes) == ["n0", "n1"]


@pytest.mark.parametrize("rules", [APART, replace(TOGETHER, selected_by=frozenset())])
def test_nothing_is_evicted_for_a_placement_that_breaks_a_constraint(rules: PeerRules) -> None:
    cluster = full_of_borrowers(rules)
    for _ in range(5):
        assert cluster.cycle().evicts == ()
        cluster.advance(30)
    assert pods_by_node(cluster, "g") == {}


def test_second_pod_of_a_virtual_node_waits_and_evicts_nothing() -> None:
    cluster = full_of_borrowers(APART, pods=1)
    cluster.run_for(30)
    assert pods_by_node(cluster, "g") == {"n0": 1}
    cluster.add(make_gang("h", "a", [shape(1, APART)]))
    decisions = cluster.cycle()
    assert decisions.evicts == ()
    assert "required podAntiAffinity lets one matching pod run on each virtual node" in decisions.holds[0].message
    del cluster.gangs["g"]
    cluster.run_for(30)
    assert sum(pods_by_node(cluster, "h").values()) == 1


def test_plan_is_dropped_when_its_nodes_would_break_a_constraint() -> None:
    cluster = full_of_borrowers(SPREAD, pods=1)
    cluster.cycle()
    (node,) = cluster.gangs["g"].plan.nodes.values()  # type: ignore[union-attr]
    # Meanwhile a pod of another kind that the constraint counts appears there.
    pool = cluster.pool
    cluster.pool = replace(
        pool, nodes=tuple(replace(each, peers={WEB: 1} if each.name == node else {}) for each in pool.nodes)
    )
    cluster.run_for(40)
    assert node not in cluster.placed_nodes("g").values()
    assert len(cluster.placed_nodes("g")) == 1
