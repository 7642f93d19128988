"""A pool's facts: the same objects where nothing changed, governed resources, tolerated taints, avoided nodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.unit.sync.admission.samples import GPU, POOL
from vkgateway.arbiter.snapshot import Pool
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.objects import Condition, Meta, NodeSpecView, NodeStatusView, NodeView, Taint
from vkgateway.sync.admission.node_images import NodeImages
from vkgateway.sync.admission.numa import NodeZones
from vkgateway.sync.admission.occupancy import Occupancy
from vkgateway.sync.admission.pool_cache import PoolCache
from vkgateway.translate.pool_nodes import PoolNodes

SPEC = PoolSpec(name="a100", node_selector={"gpu": "a100"})


def node(
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


class Made:
    """One pool's facts, asked for again and again."""

    def __init__(self, *nodes: NodeView, spec: PoolSpec = SPEC) -> None:
        self.spec = spec
        self.members = PoolNodes(nodes)
        self.occupancy = Occupancy()
        self._facts = PoolCache(POOL, NodeImages(), NodeZones(lambda _tenant, _uid: None))

    def facts(self, *, changed: Collection[str] = (), avoided: Collection[str] = ()) -> Pool:
        return self._facts.update_pool(
            self.spec, self.members, self.occupancy, changed=changed, avoided=frozenset(avoided)
        )


def test_a_pool_tells_what_its_nodes_offer_and_what_is_held_there() -> None:
    made = Made(node("host-2"), node("host-1"), spec=PoolSpec(name="a100", levels=("zone", "rack")))
    made.occupancy.count_pod("s", node="host-1", amounts={GPU: 3000})
    pool = made.facts()

    assert pool.key == POOL
    assert [found.name for found in pool.nodes] == ["host-1", "host-2"]
    assert pool.nodes[0].used == {GPU: 3000}
    assert pool.nodes[1].used == {}
    assert pool.nodes[1].allocatable == {GPU: 8000, "cpu": 64_000}
    assert pool.nodes[1].labels == {"rack": "r1"}
    assert pool.governed == (GPU,)
    assert pool.levels == ("zone", "rack")


def test_a_pool_has_the_reserve_that_its_field_says() -> None:
    made = Made(node("host-1"), node("host-2", ready=False), node("host-3"))
    assert made.facts().idle_reserve == 0

    made.spec = PoolSpec(name="a100", reserve=3)
    assert made.facts().idle_reserve == 3000

    made.spec = PoolSpec(name="a100", reserve="20%")
    assert made.facts().idle_reserve == 3000
    assert made.facts(avoided={"host-1"}).idle_reserve == 1000

    made.spec = PoolSpec(name="a100", reserve="some")
    assert made.facts().idle_reserve == 0


def test_what_did_not_change_is_the_very_same_object() -> None:
    made = Made(node("host-1"), node("host-2"))
    first = made.facts()
    assert made.facts() is first
    assert made.facts(changed={"a node of another pool"}) is first

    made.occupancy.count_pod("s", node="host-1", amounts={GPU: 1000})
    second = made.facts(changed={"host-1"})
    assert second is not first
    assert second.nodes[0].used == {GPU: 1000}
    assert second.nodes[1] is first.nodes[1]


def test_nodes_that_changed_leave_the_others_as_they_were() -> None:
    one, two = node("host-1"), node("host-2")
    made = Made(one, two)
    first = made.facts()

    made.members = PoolNodes((one, node("host-2", ready=False)))
    second = made.facts()
    assert second.nodes[0] is first.nodes[0]
    assert [found.usable for found in second.nodes] == [True, False]

    made.members = PoolNodes((one,))
    assert made.facts().nodes == first.nodes[:1]


def test_what_came_to_be_held_while_the_nodes_changed_counts() -> None:
    made = Made(node("host-1"))
    made.facts()
    made.occupancy.count_pod("s", node="host-1", amounts={GPU: 1000})
    made.members = PoolNodes((node("host-1"), node("host-2")))

    assert made.facts(changed={"host-1"}).nodes[0].used == {GPU: 1000}


def test_a_taint_that_the_pool_tolerates_is_taken_off() -> None:
    pool_taint = Taint(key="gpu", value="a100", effect="NoSchedule")
    other = Taint(key="broken", effect="NoSchedule")
    tolerations: tuple[dict[str, Any], ...] = ({"key": "gpu", "operator": "Exists"},)
    made = Made(node("host-1", taints=(pool_taint, other)), spec=PoolSpec(name="a100", tolerations=tolerations))
    assert made.facts().nodes[0].taints == (other,)

    made.spec = PoolSpec(name="a100", tolerations=({"key": "gpu", "value": "h100"},))
    assert made.facts().nodes[0].taints == (pool_taint, other)

    made.spec = PoolSpec(name="a100", tolerations=({"key": "gpu", "value": "a100", "effect": "NoExecute"},))
    assert made.facts().nodes[0].taints == (pool_taint, other)

    made.spec = PoolSpec(name="a100", tolerations=({"key": "gpu", "value": "a100", "effect": "NoSchedule"},))
    assert made.facts().nodes[0].taints == (other,)


def test_the_resource_of_most_usable_nodes_comes_first_and_native_ones_never() -> None:
    nodes = [
        node("host-1", {"example.com/nic": "4", "hugepages-2Mi": "1Gi"}),
        node("host-2"),
        node("host-3", {"example.com/fpga": "1"}, ready=False),
        node("host-4", {"example.com/zero": "0"}),
    ]
    assert PoolNodes(nodes).governed_resources == (GPU, "example.com/nic")
    assert PoolNodes([node("host-1", {"example.com/nic": "4"})]).governed_resources == ("example.com/nic", GPU)


def test_what_cells_are_pieces_of_comes_first_where_it_is_said_whatever_nodes_offer_now() -> None:
    nic = {"example.com/nic": "4"}
    made = Made(node("host-1", nic), node("host-2", nic), spec=PoolSpec(name="a100", cell_resource=GPU))
    assert made.facts().unit_resource == GPU

    # While their driver is renewed there are no devices.
    made.members = PoolNodes((node("host-1", {**nic, GPU: "0"}), node("host-2", {**nic, GPU: "0"})))
    assert made.facts().governed == (GPU, "example.com/nic")

    made.spec = PoolSpec(name="a100", cell_resource="cpu")
    assert made.facts().governed == ("example.com/nic",)


def test_a_pool_whose_nodes_are_all_away_governs_what_it_did() -> None:
    made = Made(node("host-1"))
    made.facts()
    made.members = PoolNodes((node("host-1", ready=False),))

    assert made.facts().governed == (GPU,)


def test_avoided_nodes_are_not_usable_until_they_are_avoided_no_longer() -> None:
    made = Made(node("host-1"), node("host-2"), node("host-3", ready=False))
    first = made.facts()

    avoiding = made.facts(avoided={"host-1", "host-3", "a node of another pool"})
    assert [found.usable for found in avoiding.nodes] == [False, True, False]
    assert avoiding.nodes[1] is first.nodes[1]
    assert made.facts(avoided={"host-1", "host-3", "a node of another pool"}) is avoiding

    assert [found.usable for found in made.facts().nodes] == [True, True, False]


def test_taints_of_nodes_that_are_cordoned_or_down_close_them_only_for_now() -> None:
    for name in ("unschedulable", "not-ready", "unreachable", "disk-pressure"):
        passing = Taint(key=f"node.kubernetes.io/{name}", effect="NoSchedule")
        found = Made(node("host-1", taints=(passing,))).facts().nodes[0]
        assert (found.taints, found.usable) == ((), False)

    lasting = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")
    found = Made(node("host-1", taints=(lasting,))).facts().nodes[0]
    assert (found.taints, found.usable) == ((lasting,), True)
