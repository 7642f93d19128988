"""Effect of a pod's virtual nodes on pools and compute nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from vkgateway.api.objects import Meta, NodeView
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pool_nodes import PoolNodes, is_in_pool
from vkgateway.kinds.context import PoolContext
from vkgateway.kinds.tenant_scope import VirtualNodeBinding
from vkgateway.scheduler.service.virtual_nodes import (
    narrowing_selector,
    pools_of,
    virtual_node_terms,
    virtual_nodes_for,
)

ZONE = "topology.kubernetes.io/zone"
A100 = ("local", "a100")
V100 = ("local", "v100")


class FakeNodes:
    """Compute nodes: a100-0 in zone a, a100-1 in zone b, a100-2 without a zone, v100-0 in zone a."""

    def __init__(self) -> None:
        labels: dict[str, dict[str, str]] = {
            "a100-0": {"pool": "a100", ZONE: "a"},
            "a100-1": {"pool": "a100", ZONE: "b"},
            "a100-2": {"pool": "a100"},
            "v100-0": {"pool": "v100", ZONE: "a"},
        }
        self.views = [NodeView(metadata=Meta(name=name, labels=found)) for name, found in labels.items()]

    def nodes_behind(self, pool: PoolContext) -> PoolNodes:
        return PoolNodes(view for view in self.views if is_in_pool(view, pool.node_selector, pool.without_label))


def make_binding(name: str, node: str, selector: dict[str, str], without_label: str = "") -> VirtualNodeBinding:
    link = cast(ComputeLink, SimpleNamespace(name="local", nodes=FakeNodes()))
    context = PoolContext(
        name=name, compute_cluster="local", node_name=node, node_selector=selector, without_label=without_label
    )
    return VirtualNodeBinding(pool=context, link=link, node_ip="10.0.0.1")


BINDINGS = {
    "a100.local": make_binding("a100", "a100.local", {"pool": "a100"}, ZONE),
    "a100.a.local": make_binding("a100", "a100.a.local", {"pool": "a100", ZONE: "a"}),
    "a100.b.local": make_binding("a100", "a100.b.local", {"pool": "a100", ZONE: "b"}),
    "v100.local": make_binding("v100", "v100.local", {"pool": "v100"}),
}


def chosen_nodes(terms: list[dict[str, Any]]) -> set[str]:
    """Return the compute nodes that node selector terms match."""

    def meets(labels: dict[str, str], requirement: dict[str, Any]) -> bool:
        if requirement["operator"] == "DoesNotExist":
            return requirement["key"] not in labels
        return labels.get(requirement["key"]) in requirement["values"]

    return {
        view.metadata.name
        for view in FakeNodes().views
        if any(all(meets(view.metadata.labels, one) for one in term["matchExpressions"]) for term in terms)
    }


def test_virtual_nodes_of_one_pool_count_as_one_pool() -> None:
    assert pools_of(["a100.b.local", "v100.local", "a100.a.local"], BINDINGS) == (A100, V100)
    assert pools_of([], BINDINGS) == ()


def test_compute_nodes_are_unrestricted_if_all_virtual_nodes_are_reachable() -> None:
    assert virtual_node_terms(["v100.local"], BINDINGS) == []
    assert virtual_node_terms(list(BINDINGS), BINDINGS) == []
    assert virtual_node_terms([], BINDINGS) == []


def test_pod_that_reaches_part_of_a_pool_is_restricted_to_its_nodes() -> None:
    assert chosen_nodes(virtual_node_terms(["a100.a.local"], BINDINGS)) == {"a100-0"}
    assert chosen_nodes(virtual_node_terms(["a100.local", "a100.b.local"], BINDINGS)) == {"a100-1", "a100-2"}
    assert chosen_nodes(virtual_node_terms(["a100.a.local", "v100.local"], BINDINGS)) == {"a100-0", "v100-0"}


def test_admitted_pod_is_directed_to_the_virtual_node_of_its_compute_node() -> None:
    assert narrowing_selector(A100, "a100-1", BINDINGS, any_part=False) == {"kubernetes.io/hostname": "a100.b.local"}
    assert narrowing_selector(A100, "a100-2", BINDINGS, any_part=False) == {"kubernetes.io/hostname": "a100.local"}
    assert narrowing_selector(V100, "not known yet", BINDINGS, any_part=False) == {
        "kubernetes.io/hostname": "v100.local"
    }


def test_tenant_scheduler_chooses_the_virtual_node_for_spread_pods() -> None:
    pool = {"vkgateway.io/compute-cluster": "local", "vkgateway.io/pool": "a100"}
    assert narrowing_selector(A100, "a100-1", BINDINGS, any_part=True) == pool
    assert narrowing_selector(A100, "gone", BINDINGS, any_part=False) == pool
    assert narrowing_selector(V100, "v100-0", BINDINGS, any_part=True) == {"kubernetes.io/hostname": "v100.local"}


def test_pod_bound_to_another_virtual_node_does_not_match_its_compute_node() -> None:
    assert virtual_nodes_for(A100, "a100-0", BINDINGS) == ["a100.a.local"]
    assert virtual_nodes_for(A100, "", BINDINGS) == ["a100.local", "a100.a.local", "a100.b.local"]
