"""Virtual nodes: capacity, labels, conditions, and nothing of their hosts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from vkgateway.api.objects import NodeView, Object
from vkgateway.clusters.pool_nodes import PoolNodes, is_in_pool
from vkgateway.nodes.virtual_nodes import pool_context, virtual_node

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SHARED = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "nvidia.com/gpu.product": "A100",
    "platform.vkgateway.io/pool": "a100",
    "node-role.kubernetes.io/gpu": "",
    "node.kubernetes.io/instance-type": "p4d",
}


def node(name: str, *, ready: bool = True, unschedulable: bool = False, **status: Any) -> NodeView:
    view: dict[str, Any] = {
        "metadata": {
            "name": name,
            "labels": {**SHARED, "kubernetes.io/hostname": name, "rack": name, "zone": name[-1]},
        },
        "spec": {"unschedulable": unschedulable},
        "status": {
            "allocatable": {
                "cpu": "95500m",
                "memory": "1Ti",
                "pods": "110",
                "nvidia.com/gpu": "8",
                "attachable-volumes-x": "9",
            },
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kernelVersion": f"6.{name[-1]}",
                "kubeletVersion": f"v1.36.{name[-1]}",
                "machineID": name,
                "systemUUID": name,
                "bootID": name,
            },
            **status,
        },
    }
    return msgspec.convert(view, NodeView)


NODES = [node("host-1"), node("host-2")]


def behind(nodes: list[NodeView] | None) -> PoolNodes:
    return PoolNodes(NODES if nodes is None else nodes)


def context(nodes: list[NodeView] | None = None) -> Any:
    return pool_context(name="a100", compute_cluster="local", node_selector={}, tolerations=[], nodes=behind(nodes))


def made(nodes: list[NodeView] | None = None, **more: Any) -> Object:
    settings: dict[str, Any] = {
        "limit": {},
        "address": "10.213.0.1",
        "port": 10250,
        "version": "0.1.0",
        "connected": True,
        "now": NOW,
    }
    return virtual_node(context(nodes), nodes=behind(nodes), **{**settings, **more})


def test_capacity_is_the_sum_of_usable_nodes() -> None:
    nodes = [*NODES, node("host-3", ready=False), node("host-4", unschedulable=True)]
    assert PoolNodes(nodes).total_allocatable == {"cpu": "191", "memory": "2Ti", "pods": "220", "nvidia.com/gpu": "16"}


def test_capacity_is_limited_by_the_tenants_quota() -> None:
    status = made(limit={"nvidia.com/gpu": 4, "memory": "8Ti", "other": 3})["status"]
    assert status["allocatable"] == {"cpu": "191", "memory": "2Ti", "pods": "220", "nvidia.com/gpu": "4"}
    assert status["capacity"] == status["allocatable"]


def test_labels_are_common_labels_of_the_pool() -> None:
    labels = made()["metadata"]["labels"]
    assert labels == {
        "type": "virtual-kubelet",
        "vkgateway.io/pool": "a100",
        "vkgateway.io/compute-cluster": "local",
        "node.kubernetes.io/instance-type": "a100",
        "kubernetes.io/hostname": "a100.local",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.product": "A100",
    }


def test_pool_with_one_host_hides_its_name() -> None:
    single = made([NODES[0]])
    text = repr(single)
    assert "host-1" not in text
    assert "192.0.2.1" not in text
    assert PoolNodes([NODES[0]]).common_labels["zone"] == "1"


def test_platform_labels_come_from_node_status_without_labels() -> None:
    bare = node("host-1")
    bare.metadata.labels = {}
    labels = made([bare])["metadata"]["labels"]
    assert (labels["kubernetes.io/os"], labels["kubernetes.io/arch"]) == ("linux", "amd64")


def test_carried_labels_exclude_host_names() -> None:
    keys = PoolNodes(NODES).carried_labels
    assert {"zone", "nvidia.com/gpu.product"} <= keys
    assert not {"kubernetes.io/hostname", "rack", "platform.vkgateway.io/pool"} & keys


def test_node_info_hides_hosts() -> None:
    info = made()["status"]["nodeInfo"]
    assert (info["machineID"], info["systemUUID"], info["bootID"], info["kernelVersion"]) == ("", "", "", "")
    assert info["kubeletVersion"] == "v1.36.1"
    assert info["architecture"] == "amd64"


def test_features_are_those_of_all_nodes() -> None:
    one = node(
        "host-1",
        declaredFeatures=["B", "A"],
        runtimeHandlers=[{"name": "runc", "features": {"x": True, "y": True}}, {"name": "kata"}],
        features={"supplementalGroupsPolicy": True},
    )
    two = node(
        "host-2",
        declaredFeatures=["A", "C"],
        runtimeHandlers=[{"name": "runc", "features": {"x": True, "y": False}}],
        features={"supplementalGroupsPolicy": False},
    )
    status = made([one, two])["status"]
    assert status["declaredFeatures"] == ["A"]
    assert status["runtimeHandlers"] == [{"name": "runc", "features": {"x": True, "y": False}}]
    assert status["features"] == {"supplementalGroupsPolicy": False}


def test_endpoint() -> None:
    status = made()["status"]
    assert status["addresses"][0] == {"type": "InternalIP", "address": "10.213.0.1"}
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}


def conditions(of: Object) -> dict[str, Object]:
    return {entry["type"]: entry for entry in of["status"]["conditions"]}


def test_conditions_follow_the_connection() -> None:
    first = made()
    assert conditions(first)["Ready"]["status"] == "True"
    assert conditions(first)["MemoryPressure"]["status"] == "False"
    later = NOW + timedelta(minutes=1)
    lost = made(connected=False, message="no route", now=later, previous=first)
    assert conditions(lost)["Ready"]["status"] == "False"
    assert conditions(lost)["Ready"]["message"] == "no route"
    assert conditions(lost)["vkgateway.io/ComputeConnected"]["status"] == "False"
    assert conditions(lost)["Ready"]["lastTransitionTime"] == "2026-03-01T12:01:00Z"
    assert conditions(lost)["DiskPressure"]["lastTransitionTime"] == "2026-03-01T12:00:00Z"
    assert lost["status"]["capacity"] == first["status"]["capacity"]


def test_empty_pool_has_no_capacity() -> None:
    empty = made([])
    assert "capacity" not in empty["status"]
    assert conditions(empty)["Ready"]["status"] == "True"


def test_pool_membership() -> None:
    assert is_in_pool(NODES[0], {"nvidia.com/gpu.product": "A100"})
    assert is_in_pool(NODES[0], {})
    assert not is_in_pool(NODES[0], {"nvidia.com/gpu.product": "H100"})
