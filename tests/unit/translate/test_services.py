"""Compute Services, field by field: backends are forwarded, exposure is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.translate.samples import TENANT
from vkgateway.api.names import NAMESPACE_ANNOTATION, TENANT_LABEL, UID_ANNOTATION, compute_namespace
from vkgateway.api.objects import Meta
from vkgateway.api.types import Exposure
from vkgateway.kinds.services.translation import (
    ServiceView,
    SliceView,
    decode_service,
    forward_service,
    forward_slice,
    is_service_current,
    load_balancer_patch,
    resolve_aliases,
    service_spec,
    slice_content,
)

PORT = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web"}
SPEC: dict[str, Any] = {"type": "ClusterIP", "clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": [PORT]}


def service(labels: dict[str, str] | None = None, **spec: Any) -> ServiceView:
    metadata = Meta(name="web", namespace="shop", uid="u-1", labels=labels or {}, annotations={"lb": "internal"})
    return ServiceView(metadata=metadata, spec=SPEC | spec)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sessionAffinity", "ClientIP"),
        ("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 60}}),
        ("publishNotReadyAddresses", True),
        ("internalTrafficPolicy", "Local"),
    ],
)
def test_backend_selection_is_forwarded(field: str, value: Any) -> None:
    assert forward_service(service(**{field: value}), tenant=TENANT)["spec"][field] == value
    assert field not in forward_service(service(), tenant=TENANT)["spec"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("externalIPs", ["192.0.2.1"]),
        ("loadBalancerIP", "192.0.2.1"),
        ("loadBalancerClass", "example.org/lb"),
        ("loadBalancerSourceRanges", ["0.0.0.0/0"]),
        ("externalTrafficPolicy", "Local"),
        ("healthCheckNodePort", 31000),
        ("allocateLoadBalancerNodePorts", True),
        ("externalName", "example.org"),
        ("clusterIP", "10.215.0.10"),
        ("clusterIPs", ["10.215.0.10"]),
        ("ipFamilies", ["IPv6"]),
        ("ipFamilyPolicy", "RequireDualStack"),
        ("somethingNew", "x"),
    ],
)
def test_exposure_is_not_forwarded(field: str, value: Any) -> None:
    assert field not in forward_service(service(**{field: value}), tenant=TENANT)["spec"]


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_every_type_becomes_a_cluster_ip_and_reports_its_exposure(kind: str) -> None:
    view = service(type=kind, ports=[PORT | {"nodePort": 31000}])
    made = forward_service(view, tenant=TENANT)["spec"]
    assert made["type"] == "ClusterIP"
    assert made["ports"] == [PORT]
    assert view.external_exposure == [f"type {kind}"]
    assert service().external_exposure == []


BALANCED = {"type": "LoadBalancer", "loadBalancerClass": "example.org/lb", "loadBalancerSourceRanges": ["10.0.0.0/8"]}


def test_forwarded_load_balancer_drops_external_addresses() -> None:
    tenant = replace(TENANT, load_balancers="Forward")
    claims = {"externalIPs": ["192.0.2.1"], "loadBalancerIP": "192.0.2.1", "externalTrafficPolicy": "Local"}
    made = forward_service(service({"team": "x", "vkgateway.io/tenant": "beta"}, **BALANCED, **claims), tenant=tenant)
    assert made["spec"].items() >= (BALANCED | {"externalTrafficPolicy": "Local"}).items()
    assert not {"externalIPs", "loadBalancerIP"} & made["spec"].keys()
    assert made["spec"]["ports"] == [PORT]
    assert made["metadata"]["annotations"]["lb"] == "internal"
    assert made["metadata"]["labels"] == {"team": "x", TENANT_LABEL: TENANT.name}


def test_forwarded_node_port_keeps_its_number() -> None:
    tenant = replace(TENANT, node_ports="Forward")
    view = service(type="NodePort", ports=[PORT | {"nodePort": 31000}])
    made = forward_service(view, tenant=tenant)["spec"]
    assert (made["type"], made["ports"]) == ("NodePort", [PORT | {"nodePort": 31000}])
    assert view.unforwarded_exposure(tenant=tenant) == []
    assert view.unforwarded_exposure(tenant=replace(TENANT, load_balancers="Forward")) == ["type NodePort"]


@pytest.mark.parametrize("how", ["ClusterAddress", "Forward"])
def test_forwarded_service_is_current(how: Exposure) -> None:
    tenant = replace(TENANT, load_balancers=how)
    source = service({"team": "x"}, **BALANCED)
    made = forward_service(source, tenant=tenant)
    compute_service = decode_service(json.dumps(made).encode())
    assert is_service_current(source, compute_service, tenant=tenant)
    other = replace(TENANT, load_balancers="Forward" if how == "ClusterAddress" else "ClusterAddress")
    assert not is_service_current(source, compute_service, tenant=other)
    assert is_service_current(service({"team": "y"}, **BALANCED), compute_service, tenant=tenant) == (
        how == "ClusterAddress"
    )


CLUSTER = {"ip": "10.96.0.9", "ipMode": "VIP"}
OUTER = {"ip": "192.0.2.7", "ipMode": "VIP"}


@pytest.mark.parametrize(
    ("how", "spec", "current", "expected"),
    [
        ("ClusterAddress", {}, [], [CLUSTER]),
        ("ClusterAddress", {}, [CLUSTER], None),
        ("ClusterAddress", {}, [OUTER], [CLUSTER]),
        ("ClusterAddress", {}, [{"ip": "203.0.113.1"}], None),
        ("ClusterAddress", {"loadBalancerClass": "mine"}, [], None),
        ("ClusterAddress", {"type": "NodePort"}, [], None),
        ("Refuse", {}, [], None),
        ("Forward", {}, [], [OUTER]),
        ("Forward", {}, [CLUSTER], [OUTER]),
        ("Forward", {}, [OUTER], None),
    ],
)
def test_load_balancer_address(
    how: Exposure, spec: dict[str, Any], current: list[dict[str, str]], expected: list[dict[str, str]] | None
) -> None:
    patch = load_balancer_patch(
        {"type": "LoadBalancer", "clusterIP": "10.96.0.9", **spec},
        {"loadBalancer": {"ingress": current}},
        tenant=replace(TENANT, load_balancers=how),
        compute_statuses=[{"loadBalancer": {"ingress": [OUTER]}}, {"loadBalancer": {}}],
    )
    assert patch == (None if expected is None else {"status": {"loadBalancer": {"ingress": expected}}})


def test_labels_are_not_forwarded_and_ownership_is_set() -> None:
    metadata = forward_service(service({"team": "x"}), tenant=TENANT)["metadata"]
    assert metadata["namespace"] == compute_namespace(TENANT.name, "shop")
    assert metadata["labels"] == {TENANT_LABEL: TENANT.name}
    assert "lb" not in metadata["annotations"]
    assert metadata["annotations"][NAMESPACE_ANNOTATION] == "shop"
    assert metadata["annotations"][UID_ANNOTATION] == "u-1"


@pytest.mark.parametrize(
    ("spec", "address"),
    [
        ({}, "10.96.0.9"),
        ({"clusterIP": "None"}, ""),
        ({"clusterIP": ""}, ""),
        ({"type": "ExternalName", "clusterIP": "10.96.0.9"}, ""),
    ],
)
def test_services_with_an_address(spec: dict[str, Any], address: str) -> None:
    assert service(**spec).cluster_ip == address


def test_service_without_selector() -> None:
    assert "selector" not in forward_service(service(selector=None), tenant=TENANT)["spec"]
    assert service_spec({})["selector"] == {}


def test_selectors_are_translated_like_pod_labels() -> None:
    made = forward_service(service(selector={"app": "x", "volcano.sh/job-name": "y"}), tenant=TENANT)
    assert made["spec"]["selector"] == {"app": "x", "volcano.sh.tenant-label.vkgateway.io/job-name": "y"}


def test_slice_keeps_only_endpoints_of_the_tenants_pods() -> None:
    text = b"""{"metadata": {"name": "s", "namespace": "shop", "uid": "u-2"}, "addressType": "IPv4", "ports": null,
      "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true, "serving": null}, "nodeName": "n",
      "targetRef": {"kind": "Pod", "name": "p"}, "hostname": "h"}, {"addresses": ["10.1.0.1", "10.9.9.9"]},
      {"addresses": []}]}"""
    view = msgspec.json.decode(text, type=SliceView)
    content, refused = slice_content(view, pod_addresses={"10.1.0.1"})
    assert content["endpoints"] == [{"addresses": ["10.1.0.1"], "conditions": {"ready": True}}]
    assert content["ports"] == []
    assert refused == ["10.9.9.9"]
    made = forward_slice(view, content, service=Meta(name="web", uid="s-1"), tenant=TENANT)
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "s-1"},
    ]
    assert slice_content(msgspec.structs.replace(view, endpoints=None), pod_addresses=())[0]["endpoints"] == []


class Counted(dict[str, str]):
    """Map that counts its lookups."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


@pytest.mark.parametrize("backwards", [False, True], ids=["first to last", "last to first"])
def test_long_alias_chains_are_followed_once(backwards: bool) -> None:
    chain = [(f"s{number}", f"s{number + 1}") for number in range(5000)]
    targets = Counted(chain[::-1] if backwards else chain)
    assert resolve_aliases(targets, {"s5000": "10.0.0.7"}) == dict.fromkeys(targets, "10.0.0.7")
    assert targets.asked <= 2 * len(chain)


def test_alias_cycles_and_unknown_names_have_no_address() -> None:
    targets = {"a": "b", "b": "a", "c": "a", "d": "d", "e": "example.org", "f": "web", "g": "f"}
    assert resolve_aliases(targets, {"web": "10.0.0.7"}) == {"f": "10.0.0.7", "g": "10.0.0.7"}
