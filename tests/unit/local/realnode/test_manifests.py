"""Objects for the node in the compute cluster."""

from tests.unit.local.realnode.test_options import OPTIONS
from vkgateway_platform.embedded.realnode import manifests


def test_name_service_points_at_the_node_without_a_selector() -> None:
    objects = {item["kind"]: item for item in manifests.cluster_objects(OPTIONS)}
    service, endpoints = objects["Service"], objects["EndpointSlice"]
    assert service["spec"]["clusterIP"] == "10.215.7.10"
    assert "selector" not in service["spec"]
    assert endpoints["endpoints"][0]["addresses"] == ["10.213.7.2"]
    assert endpoints["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert [port["name"] for port in service["spec"]["ports"]] == [port["name"] for port in endpoints["ports"]]


def test_name_service_has_read_permissions_only() -> None:
    role, binding = manifests.cluster_objects(OPTIONS)[:2]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    assert not any("secrets" in rule["resources"] for rule in role["rules"])
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == ["system:coredns"]


def test_node_gets_its_gpus() -> None:
    patch = manifests.node_status_patch(OPTIONS)
    assert patch == {"status": {"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"}}}
