"""Tests of facts and quotas of pools."""

from __future__ import annotations

import msgspec

from tests.unit.sync.admission.samples import POOL, TENANT, compute_view
from vkgateway.api.names import BORROWED_ANNOTATION
from vkgateway.api.objects import Meta, NodeView
from vkgateway.api.types import TenantPool
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.clusters.pools import build_quota, guaranteed_pods, pool_facts, shared_nodes
from vkgateway.clusters.unmanaged_pods import UnmanagedPodView
from vkgateway.scheduler.core.snapshot import Quota

GPU, NIC = "nvidia.com/gpu", "example.org/nic"


def node(name: str, allocatable: dict[str, str], *, ready: bool = True) -> NodeView:
    found = {
        "metadata": {"name": name},
        "status": {
            "allocatable": {"cpu": "8", "hugepages-2Mi": "0", **allocatable},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }
    return msgspec.convert(found, NodeView)


def test_most_common_resource_of_usable_nodes_is_governed_first() -> None:
    nodes = [
        node("a", {GPU: "8", NIC: "1"}),
        node("b", {GPU: "8", NIC: "0"}),
        node("c", {"example.org/other": "1"}, ready=False),
    ]
    assert PoolNodes(nodes).governed_resources == (GPU, NIC)
    assert PoolNodes(nodes[2:]).governed_resources == ()


def test_guarantees_are_checked_by_cell_resource() -> None:
    nodes = PoolNodes([node("a", {GPU: "8", NIC: "1"})])

    assert pool_facts(("local", "a100"), nodes).unit_resource == NIC
    assert pool_facts(("local", "a100"), nodes, cell_resource=GPU).unit_resource == GPU


def test_pool_facts_have_extended_resources_of_each_node() -> None:
    nodes = PoolNodes([node("a", {GPU: "8"}), node("b", {GPU: "4"}, ready=False)])
    facts = pool_facts(("local", "a100"), nodes)
    assert (facts.key, facts.governed) == (("local", "a100"), (GPU,))
    assert [(one.name, one.allocatable, one.usable) for one in facts.nodes] == [
        ("a", {GPU: 8000}, True),
        ("b", {GPU: 4000}, False),
    ]


def test_pool_facts_count_unmanaged_pods_as_used() -> None:
    nodes = PoolNodes([node("a", {GPU: "8"}), node("b", {GPU: "8"})])
    strangers = [stranger("one", "a", {GPU: 1000, "cpu": 4000}), stranger("two", "a", {GPU: 2000}), stranger("c", "c")]
    facts = pool_facts(("local", "a100"), nodes, strangers)
    assert [one.used for one in facts.nodes] == [{GPU: 3000}, {}]


def stranger(name: str, on: str, requests: dict[str, int] | None = None) -> UnmanagedPodView:
    return UnmanagedPodView(Meta(name=name, uid=name), on, requests or {GPU: 1000})


def test_guaranteed_pods_are_recognized_by_their_verdict() -> None:
    inside = {BORROWED_ANNOTATION: "false"}
    pods = [
        compute_view("inside", annotations=inside, node="host-1"),
        compute_view("borrows", annotations={BORROWED_ANNOTATION: "true"}, node="host-1"),
        compute_view("says-nothing", node="host-1"),
        compute_view("ended", annotations=inside, node="host-1", phase="Succeeded"),
        compute_view("nobodys", annotations=inside, node="host-1", namespace="default"),
    ]
    assert guaranteed_pods(pods, POOL, GPU) == [(TENANT, "host-1", 1000)]
    assert guaranteed_pods(pods, (POOL[0], "h100"), GPU) == []


def test_quota_is_in_thousandths() -> None:
    wanted = TenantPool(name="a100", guarantee={GPU: 9}, limit={"cpu": "500m"}, weight=2.0, cells=(8, 1))
    assert build_quota("alpha", wanted, granted=5.0) == Quota(
        tenant="alpha",
        pool=("local", "a100"),
        guarantee={GPU: 9000},
        limit={"cpu": 500},
        weight=2.0,
        cells=(8, 1),
        granted=5.0,
    )


def test_shared_nodes_are_named() -> None:
    nodes = [node(name, {GPU: "8"}) for name in "abcde"]
    pools = {"all": PoolNodes(nodes), "a100": PoolNodes(nodes[:4]), "h100": PoolNodes(nodes[4:])}
    assert shared_nodes(pools) == "pools all and a100 share a, b, c and 1 more; pools all and h100 share e"
    assert shared_nodes({name: pools[name] for name in ("a100", "h100")}) == ""


def test_aggregates_are_computed_once() -> None:
    nodes = PoolNodes([node("a", {GPU: "8"}), node("b", {GPU: "8"}, ready=False)])
    assert nodes.label_values("zone") is nodes.label_values("zone")
    assert nodes.pod_ranges is nodes.pod_ranges
    assert not nodes.has_several_usable
