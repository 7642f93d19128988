"""Pool state: unchanged objects are reused; governed resources, tolerated taints and avoided nodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.unit.sync.admission.samples import GPU, POOL
from vkgateway.api.objects import Condition, Meta, NodeSpecView, NodeStatusView, NodeView, Taint
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.scheduler.core.snapshot import Pool
from vkgateway.scheduler.service.cluster_cache import PoolCache
from vkgateway.scheduler.service.occupancy import NodeImages, NodeZones, Occupancy

SPEC = PoolSpec(name="a100", node_selector={"gpu": "a100"})


def make_node(
    name: str, offered: dict[str, str] | None = None, *, ready: bool = True, taints: tuple[Taint, ...] = ()
) -> NodeView:
    return NodeView(
        metadata=Meta(name=name, labels={"rack": "r1"}),
        spec=NodeSpecView(taints=taints),
        status=NodeStatusView(
            allocatable={GPU: "8", "cpu": "64", **(offered or {})},
            conditions=(Condition(type="Ready", status=str(ready)),),
        ),
    )


class Harness:
    """State of one pool, built repeatedly."""

    def __init__(self, *nodes: NodeView, spec: PoolSpec = SPEC) -> None:
        self.spec = spec
        self.members = PoolNodes(nodes)
        self.occupancy = Occupancy()
        self._facts = PoolCache(POOL, NodeImages(), NodeZones(lambda _tenant, _uid: None))

    def build_facts(self, *, changed: Collection[str] = (), avoided: Collection[str] = ()) -> Pool:
        return self._facts.update_pool(
            self.spec, self.members, self.occupancy, changed=changed, avoided=frozenset(avoided)
        )


def test_pool_reports_offered_and_used_resources() -> None:
    harness = Harness(make_node("host-2"), make_node("host-1"), spec=PoolSpec(name="a100", levels=("zone", "rack")))
    harness.occupancy.count_pod("s", node="host-1", amounts={GPU: 3000})
    pool = harness.build_facts()

    assert pool.key == POOL
    assert [found.name for found in pool.nodes] == ["host-1", "host-2"]
    assert pool.nodes[0].used == {GPU: 3000}
    assert pool.nodes[1].used == {}
    assert pool.nodes[1].allocatable == {GPU: 8000, "cpu": 64_000}
    assert pool.nodes[1].labels == {"rack": "r1"}
    assert pool.governed == (GPU,)
    assert pool.levels == ("zone", "rack")


def test_pool_has_the_reserve_of_its_field() -> None:
    harness = Harness(make_node("host-1"), make_node("host-2", ready=False), make_node("host-3"))
    assert harness.build_facts().idle_reserve == 0

    harness.spec = PoolSpec(name="a100", reserve=3)
    assert harness.build_facts().idle_reserve == 3000

    harness.spec = PoolSpec(name="a100", reserve="20%")
    assert harness.build_facts().idle_reserve == 3000
    assert harness.build_facts(avoided={"host-1"}).idle_reserve == 1000

    harness.spec = PoolSpec(name="a100", reserve="some")
    assert harness.build_facts().idle_reserve == 0


def test_unchanged_pool_is_the_same_object() -> None:
    harness = Harness(make_node("host-1"), make_node("host-2"))
    first = harness.build_facts()
    assert harness.build_facts() is first
    assert harness.build_facts(changed={"a node of another pool"}) is first

    harness.occupancy.count_pod("s", node="host-1", amounts={GPU: 1000})
    second = harness.build_facts(changed={"host-1"})
    assert second is not first
    assert second.nodes[0].used == {GPU: 1000}
    assert second.nodes[1] is first.nodes[1]


def test_changed_nodes_leave_other_nodes_unchanged() -> None:
    one, two = make_node("host-1"), make_node("host-2")
    harness = Harness(one, two)
    first = harness.build_facts()

    harness.members = PoolNodes((one, make_node("host-2", ready=False)))
    second = harness.build_facts()
    assert second.nodes[0] is first.nodes[0]
    assert [found.usable for found in second.nodes] == [True, False]

    harness.members = PoolNodes((one,))
    assert harness.build_facts().nodes == first.nodes[:1]


def test_usage_added_during_a_node_change_counts() -> None:
    harness = Harness(make_node("host-1"))
    harness.build_facts()
    harness.occupancy.count_pod("s", node="host-1", amounts={GPU: 1000})
    harness.members = PoolNodes((make_node("host-1"), make_node("host-2")))

    assert harness.build_facts(changed={"host-1"}).nodes[0].used == {GPU: 1000}


def test_tolerated_taint_is_removed() -> None:
    pool_taint = Taint(key="gpu", value="a100", effect="NoSchedule")
    other = Taint(key="broken", effect="NoSchedule")
    tolerations: tuple[dict[str, Any], ...] = ({"key": "gpu", "operator": "Exists"},)
    harness = Harness(
        make_node("host-1", taints=(pool_taint, other)), spec=PoolSpec(name="a100", tolerations=tolerations)
    )
    assert harness.build_facts().nodes[0].taints == (other,)

    harness.spec = PoolSpec(name="a100", tolerations=({"key": "gpu", "value": "h100"},))
    assert harness.build_facts().nodes[0].taints == (pool_taint, other)

    harness.spec = PoolSpec(name="a100", tolerations=({"key": "gpu", "value": "a100", "effect": "NoExecute"},))
    assert harness.build_facts().nodes[0].taints == (pool_taint, other)

    harness.spec = PoolSpec(name="a100", tolerations=({"key": "gpu", "value": "a100", "effect": "NoSchedule"},))
    assert harness.build_facts().nodes[0].taints == (other,)


def test_most_common_device_comes_first_and_native_resources_never() -> None:
    nodes = [
        make_node("host-1", {"example.com/nic": "4", "hugepages-2Mi": "1Gi"}),
        make_node("host-2"),
        make_node("host-3", {"example.com/fpga": "1"}, ready=False),
        make_node("host-4", {"example.com/zero": "0"}),
    ]
    assert PoolNodes(nodes).governed_resources == (GPU, "example.com/nic")
    assert PoolNodes([make_node("host-1", {"example.com/nic": "4"})]).governed_resources == ("example.com/nic", GPU)


def test_cell_resource_comes_first_regardless_of_the_nodes() -> None:
    nic = {"example.com/nic": "4"}
    harness = Harness(make_node("host-1", nic), make_node("host-2", nic), spec=PoolSpec(name="a100", cell_resource=GPU))
    assert harness.build_facts().unit_resource == GPU

    # Nodes offer no devices while their driver is being upgraded.
    harness.members = PoolNodes((make_node("host-1", {**nic, GPU: "0"}), make_node("host-2", {**nic, GPU: "0"})))
    assert harness.build_facts().governed == (GPU, "example.com/nic")

    harness.spec = PoolSpec(name="a100", cell_resource="cpu")
    assert harness.build_facts().governed == ("example.com/nic",)


def test_pool_without_nodes_governs_its_former_resources() -> None:
    harness = Harness(make_node("host-1"))
    harness.build_facts()
    harness.members = PoolNodes((make_node("host-1", ready=False),))

    assert harness.build_facts().governed == (GPU,)


def test_avoided_nodes_are_unusable_until_the_end_of_avoidance() -> None:
    harness = Harness(make_node("host-1"), make_node("host-2"), make_node("host-3", ready=False))
    first = harness.build_facts()

    avoiding = harness.build_facts(avoided={"host-1", "host-3", "a node of another pool"})
    assert [found.usable for found in avoiding.nodes] == [False, True, False]
    assert avoiding.nodes[1] is first.nodes[1]
    assert harness.build_facts(avoided={"host-1", "host-3", "a node of another pool"}) is avoiding

    assert [found.usable for found in harness.build_facts().nodes] == [True, True, False]


def test_cordon_and_outage_taints_are_temporary() -> None:
    for name in ("unschedulable", "not-ready", "unreachable", "disk-pressure"):
        passing = Taint(key=f"node.kubernetes.io/{name}", effect="NoSchedule")
        found = Harness(make_node("host-1", taints=(passing,))).build_facts().nodes[0]
        assert (found.taints, found.usable) == ((), False)

    lasting = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")
    found = Harness(make_node("host-1", taints=(lasting,))).build_facts().nodes[0]
    assert (found.taints, found.usable) == ((lasting,), True)
