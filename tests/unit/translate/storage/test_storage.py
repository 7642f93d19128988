"""Translation of storage: names of classes, topology of volumes, and status of claims."""

from __future__ import annotations

from typing import Any

import pytest

from vkgateway.api.names import virtual_node_name
from vkgateway.api.objects import Meta, NodeView
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.volumes.translation.claims import claim_status_patch, is_same_quantity, unsupported_reason
from vkgateway.kinds.volumes.translation.storage_classes import (
    ClassOffer,
    allowed_names,
    compute_class_name,
    tenant_class,
    tenant_class_names,
)
from vkgateway.kinds.volumes.translation.views import (
    ClaimSpec,
    ClaimStatus,
    ClaimView,
    StorageClassView,
    VolumeSpec,
    VolumeView,
    decode_claim,
)
from vkgateway.kinds.volumes.translation.volumes import volume_node_affinity, volume_patch


def tenant(**policy: Any) -> TenantContext:
    return TenantContext(name="alpha", api_host="10.0.0.1", api_port=6443, **policy)


def storage_class(name: str = "local", **fields: Any) -> StorageClassView:
    return StorageClassView(metadata=Meta(name=name), **fields)


@pytest.mark.parametrize(
    ("policy", "name", "compute_affinity"),
    [
        ({}, "local", None),
        ({"storage_classes": ("local",)}, "local", "local"),
        ({"storage_classes": ("local",)}, "gold", None),
        ({"storage_classes": ("*",)}, "gold", "gold"),
        ({"storage_class_names": {"local": "gold"}}, "local", "gold"),
        ({"storage_class_names": {"local": "gold"}}, "gold", None),
        ({"storage_classes": ("*",), "storage_class_names": {"local": "gold"}}, "local", "gold"),
    ],
)
def test_compute_class_of_a_tenant_class(policy: dict[str, Any], name: str, compute_affinity: str | None) -> None:
    assert compute_class_name(tenant(**policy), name) == compute_affinity


def test_class_may_have_several_names() -> None:
    both = tenant(storage_classes=("*",), storage_class_names={"local": "gold", "best": "gold"})
    assert tenant_class_names(both, "gold") == ["local", "best", "gold"]
    assert tenant_class_names(both, "local") == []
    assert allowed_names(both, ["gold", "local", "slow"]) == ["best", "gold", "local", "slow"]


def virtual(name: str, value: str = "") -> PoolContext:
    return PoolContext(name=name, compute_cluster="east", node_name=virtual_node_name(name, "east", value))


def nodes(**labels: str) -> list[dict[str, str]]:
    return [labels]


def topologies(*offers: ClassOffer, clusters: int) -> list[list[list[str]]] | None:
    terms = tenant_class("local", offers, clusters=clusters, default=False).get("allowedTopologies")
    if terms is None:
        return None
    return [[entry["values"] for entry in term["matchLabelExpressions"]] for term in terms]


def test_topology_uses_labels_of_virtual_nodes() -> None:
    zone_a = ({"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]},)
    behind = [(virtual("cpu"), nodes(zone="a")), (virtual("gpu"), nodes(zone="b"))]
    anywhere = ClassOffer(compute_cluster="east", storage_class=storage_class(), node_labels_by_pool=behind)
    there = ClassOffer(
        compute_cluster="west", storage_class=storage_class(allowed_topologies=zone_a), node_labels_by_pool=behind
    )

    assert topologies(anywhere, clusters=1) is None
    assert topologies(there, clusters=1) == [[["west"], ["cpu"]]]
    assert topologies(anywhere, clusters=2) == [[["east"]]]
    assert topologies(anywhere, there, clusters=2) == [[["east"]], [["west"], ["cpu"]]]


def test_volumes_in_several_clusters_wait_for_the_pod() -> None:
    offer = ClassOffer(compute_cluster="east", storage_class=storage_class(), node_labels_by_pool=[])
    for clusters, mode in ((1, "Immediate"), (2, "WaitForFirstConsumer")):
        assert tenant_class("local", [offer], clusters=clusters, default=False)["volumeBindingMode"] == mode


def pool(*hosts: str) -> PoolNodes:
    return PoolNodes(NodeView(metadata=Meta(name=host, labels={"host": host})) for host in hosts)


def affinity_terms(compute_affinity: dict[str, Any] | None, *, clusters: int = 1) -> list[list[str]]:
    behind = [(virtual("cpu"), pool("c1", "c2")), (virtual("gpu"), pool("g1"))]
    found = volume_node_affinity("east", clusters=clusters, nodes_behind=behind, compute_affinity=compute_affinity)
    if found is None:
        return []
    (term,) = found["required"]["nodeSelectorTerms"]
    return [entry["values"] for entry in term["matchExpressions"]]


def on(*hosts: str) -> dict[str, Any]:
    place = {"key": "host", "operator": "In", "values": list(hosts)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}}


@pytest.mark.parametrize(
    ("compute_affinity", "expected"),
    [(None, []), (on("c2"), [["cpu"]]), (on("g1"), [["gpu"]]), (on("c1", "g1"), []), (on("unknown"), [])],
)
def test_volume_node_affinity(compute_affinity: dict[str, Any] | None, expected: list[list[str]]) -> None:
    assert affinity_terms(compute_affinity) == expected
    assert affinity_terms(compute_affinity, clusters=2) == [["east"], *expected]


def test_volume_node_affinity_is_set_once() -> None:
    known = VolumeView(metadata=Meta(), spec=VolumeSpec(capacity={"storage": "1Gi"}, node_affinity=on("c1")))
    assert volume_patch(known, capacity="1024Mi", node_affinity=on("c2")) is None
    new = VolumeView(metadata=Meta(), spec=VolumeSpec(capacity={"storage": "1Gi"}))
    assert volume_patch(new, capacity="2Gi", node_affinity=on("c2")) == {
        "spec": {"capacity": {"storage": "2Gi"}, "nodeAffinity": on("c2")}
    }


def claim(**status: Any) -> ClaimView:
    return ClaimView(metadata=Meta(name="data", namespace="default"), status=ClaimStatus(phase="Bound", **status))


def test_equal_quantities_are_no_difference() -> None:
    assert is_same_quantity("1Gi", "1024Mi")
    assert not is_same_quantity("1Gi", None)
    assert claim_status_patch(claim(capacity={"storage": "1Gi"}), claim(capacity={"storage": "1024Mi"})) is None


def test_finished_conditions_are_removed() -> None:
    growing = claim(
        conditions=({"type": "Resizing", "status": "True"},),
        allocated_resources={"storage": "2Gi"},
        allocated_resource_statuses={"storage": "NodeResizePending"},
    )
    assert claim_status_patch(growing, claim()) == {
        "conditions": None,
        "allocatedResources": {"storage": None},
        "allocatedResourceStatuses": {"storage": None},
    }


@pytest.mark.parametrize(
    "field",
    [
        {"data_source": {"kind": "PersistentVolumeClaim", "name": "other"}},
        {"data_source_ref": {"kind": "VolumeSnapshot", "name": "snap"}},
        {"selector": {"matchLabels": {"a": "b"}}},
        {"volume_attributes_class_name": "fast"},
    ],
)
def test_unsupported_claims_have_a_reason(field: dict[str, Any]) -> None:
    assert "not" in unsupported_reason(ClaimView(metadata=Meta(), spec=ClaimSpec(**field)))
    assert unsupported_reason(ClaimView(metadata=Meta())) == ""


def test_deprecated_class_annotation_is_read() -> None:
    old = b'{"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}, "spec": {}}'
    assert decode_claim(old).class_name == "old"


def test_divided_pool_names_only_nodes_that_reach_the_volume() -> None:
    parts = [(virtual("gpu", "a"), pool("g1")), (virtual("gpu", "b"), pool("g2")), (virtual("cpu"), pool("c1"))]

    def place(*hosts: str) -> list[dict[str, Any]]:
        found = volume_node_affinity("east", clusters=1, nodes_behind=parts, compute_affinity=on(*hosts))
        assert found is not None
        (term,) = found["required"]["nodeSelectorTerms"]
        expressions: list[dict[str, Any]] = term["matchExpressions"]
        return expressions

    assert place("g2", "c1") == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["cpu.east", "gpu.b.east"]}
    ]
    assert place("g1", "g2") == [{"key": "vkgateway.io/pool", "operator": "In", "values": ["gpu"]}]
