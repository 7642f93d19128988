"""Reachability: tenants are isolated whatever their policies are, and policies work as in Kubernetes."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.local.netpol.kernel import Kernel, Packet
from tests.unit.local.realnode.test_options import OPTIONS
from vkgateway.api.names import TENANT_LABEL
from vkgateway.api.objects import Meta
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.policies.translation import NetworkPolicyView, decode_policy, isolation_policies
from vkgateway_platform.embedded.netpol.cluster_state import ClusterState, ContainerPort, Pod, Server, Site
from vkgateway_platform.embedded.netpol.ruleset import render_ruleset
from vkgateway_platform.embedded.realnode import configs

SITE = msgspec.json.decode(configs.site_config(replace(OPTIONS, open_ports=(10352,))), type=Site)
WEB, CLIENT, OTHER, THEIRS, SYSTEM, GATEWAY = (f"10.214.7.{number}" for number in (10, 11, 12, 20, 30, 40))
HOST, PLATFORM, NODE, OUTSIDE = "10.213.7.3", "10.213.7.1", "10.213.7.2", "203.0.113.9"


APP = {"key": "app", "operator": "Exists"}


def policy(name: str = "one", *, namespace: str = "alpha--web", **spec: Any) -> NetworkPolicyView:
    return NetworkPolicyView(metadata=Meta(name=name, namespace=namespace, uid=name), spec={"podSelector": {}, **spec})


def fences() -> list[NetworkPolicyView]:
    """Return the policies of the gateway in namespaces without policies of the tenant."""
    places = (("alpha", "web"), ("alpha", "other"), ("beta", "web"))
    tenants = {name: TenantContext(name=name, api_host=PLATFORM, api_port=20001) for name in ("alpha", "beta")}
    made = (isolation_policies(tenants[tenant], namespace, "uid").documents for tenant, namespace in places)
    return [decode_policy(msgspec.json.encode(document)) for documents in made for document in documents]


PODS = (
    Pod(
        address=WEB,
        namespace="alpha--web",
        labels={"app": "web"},
        ports=(ContainerPort(8080, "http"), ContainerPort(53, "dns", "UDP")),
    ),
    Pod(address=CLIENT, namespace="alpha--web", labels={"app": "client"}),
    Pod(address=OTHER, namespace="alpha--other", labels={"app": "client"}),
    Pod(address=THEIRS, namespace="beta--web", labels={"app": "web"}),
    Pod(address=SYSTEM, namespace="kube-system"),
    Pod(
        address=GATEWAY,
        namespace="vkgateway-system",
        labels={"app.kubernetes.io/component": "gateway"},
        ports=(ContainerPort(10250, "kubelet"), ContainerPort(9631, "health")),
    ),
)
WORLD = ClusterState(
    pods=PODS,
    namespaces={
        "alpha--web": {TENANT_LABEL: "alpha", "kubernetes.io/metadata.name": "alpha--web"},
        "alpha--other": {TENANT_LABEL: "alpha", "kubernetes.io/metadata.name": "alpha--other"},
        "beta--web": {TENANT_LABEL: "beta"},
        "kube-system": {},
    },
    servers={"alpha": (Server(PLATFORM, 20001), Server(PLATFORM, 10001, "UDP")), "beta": (Server(PLATFORM, 20002),)},
)


def reaches(saddr: str, daddr: str, *policies: NetworkPolicyView, dport: int = 8080, protocol: str = "tcp") -> bool:
    kernel = Kernel(replace(WORLD, policies=policies), SITE)
    hook = "input" if daddr == NODE else "forward"
    from_pod = saddr.startswith("10.214.7.")
    packet = Packet(saddr=saddr, daddr=daddr, dport=dport, protocol=protocol, iifname="veth1" if from_pod else "eth0")
    return kernel.passes(packet, hook=hook)


EVERYBODY = policy(ingress=[{}], egress=[{}], policyTypes=["Egress", "Ingress"])


@pytest.mark.parametrize("policies", [[], fences(), [EVERYBODY]])
def test_no_pod_reaches_a_pod_of_another_tenant(policies: list[NetworkPolicyView]) -> None:
    assert reaches(CLIENT, WEB, *policies)
    assert reaches(OTHER, WEB, *policies)
    for one in (WEB, CLIENT, OTHER, SYSTEM):
        assert not reaches(one, THEIRS, *policies)
        assert not reaches(THEIRS, one, *policies)


@pytest.mark.parametrize("policies", [[], fences()])
def test_tenant_pods_reach_only_their_own_servers_of_the_platform(
    policies: list[NetworkPolicyView],
) -> None:
    def open_to(address: str, port: int, protocol: str = "tcp") -> list[bool]:
        return [reaches(one, address, *policies, dport=port, protocol=protocol) for one in (WEB, THEIRS)]

    assert open_to(PLATFORM, 20001) == [True, False]
    assert open_to(PLATFORM, 20002) == [False, True]
    assert open_to(PLATFORM, 10001, "udp") == [True, False]
    assert open_to(PLATFORM, 10352) == open_to(GATEWAY, 10250) == [True, True]
    assert open_to(GATEWAY, 9631) == [False, False]
    assert open_to(NODE, 54, "udp") == open_to(NODE, 54) == [True, True]
    for port in (53, 10250, 22):
        assert open_to(NODE, port) == open_to(NODE, port, "udp") == [False, False]
    assert open_to(PLATFORM, 6443) == open_to("10.213.9.1", 6443) == open_to("10.214.9.5", 80) == [False, False]
    assert open_to("10.214.7.1", 10250) == open_to("10.215.7.1", 443) == [False, False]
    assert open_to(OUTSIDE, 443) == [True, True]


def test_cloud_metadata_is_blocked() -> None:
    assert not reaches(WEB, "169.254.169.254", *fences(), dport=80)


def test_machine_reaches_every_pod_and_others_what_policies_allow() -> None:
    for one in (WEB, THEIRS, SYSTEM):
        assert reaches(HOST, one, *fences())
        assert reaches(PLATFORM, one, *fences(), policy(policyTypes=["Ingress"]))
    assert not reaches(OUTSIDE, WEB, *fences())
    assert reaches(OUTSIDE, SYSTEM, *fences())
    assert reaches(OUTSIDE, WEB, policy(ingress=[{"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}]))


def test_unknown_addresses_neither_send_nor_receive() -> None:
    kernel = Kernel(WORLD, SITE)
    for daddr in (WEB, OUTSIDE):
        assert not kernel.passes(Packet(saddr="10.214.7.99", daddr=daddr))
        assert not kernel.passes(Packet(saddr=HOST, daddr=daddr)), "a pod that calls itself the machine"
    assert not kernel.passes(Packet(saddr=SYSTEM, daddr="10.214.7.99"))
    assert not kernel.passes(Packet(saddr="10.214.7.99", daddr=NODE, dport=53), hook="input")


def test_established_connections_continue_and_a_pod_reaches_itself() -> None:
    shut = policy(policyTypes=["Ingress", "Egress"])
    assert reaches(WEB, WEB, shut)
    assert not reaches(CLIENT, WEB, shut)
    assert Kernel(replace(WORLD, policies=[shut]), SITE).passes(Packet(saddr=CLIENT, daddr=WEB, known=True))


@pytest.mark.parametrize(
    ("peer", "reached_by"),
    [
        ({"podSelector": {"matchLabels": {"app": "client"}}}, {CLIENT}),
        ({"namespaceSelector": {}}, {CLIENT, OTHER}),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "alpha--other"}}}, {OTHER}),
        ({"namespaceSelector": {}, "podSelector": {"matchExpressions": [APP]}}, {CLIENT, OTHER}),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}, set()),
        ({"ipBlock": {"cidr": "10.214.7.0/24", "except": ["10.214.7.11/32", "10.214.7.11/32"]}}, {OTHER}),
        ({"ipBlock": {"cidr": "fd00::/8"}}, set()),
    ],
)
def test_peers_match_labels_namespaces_and_blocks(peer: dict[str, Any], reached_by: set[str]) -> None:
    one = policy(podSelector={"matchLabels": {"app": "web"}}, ingress=[{"from": [peer]}])
    assert {pod.address for pod in PODS if reaches(pod.address, WEB, one)} - {WEB} == reached_by
    assert reaches(WEB, CLIENT, one), "not selected"


def test_empty_rule_allows_all_and_no_rule_denies_all() -> None:
    assert reaches(CLIENT, WEB, policy(ingress=[{}]))
    assert reaches(CLIENT, WEB, policy(ingress=[{"from": []}]))
    assert not reaches(CLIENT, WEB, policy(ingress=[]))
    assert reaches(CLIENT, WEB, policy(ingress=[]), policy("two", ingress=[{}])), "policies add to each other"
    assert not reaches(CLIENT, OUTSIDE, policy(policyTypes=["Egress"]))
    assert reaches(CLIENT, OUTSIDE, policy(policyTypes=["Ingress"]))


@pytest.mark.parametrize(
    ("port", "opened"),
    [
        ({"port": 8080}, {("tcp", 8080)}),
        ({"port": 8079, "endPort": 8081}, {("tcp", 8080)}),
        ({"port": "http"}, {("tcp", 8080)}),
        ({"port": "dns"}, set()),
        ({"port": "dns", "protocol": "UDP"}, {("udp", 53)}),
        ({"protocol": "UDP"}, {("udp", 53), ("udp", 8080)}),
        ({}, {("tcp", 53), ("tcp", 8080)}),
    ],
)
@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_ports_are_numbers_ranges_names_or_whole_protocols(
    direction: str, port: dict[str, Any], opened: set[tuple[str, int]]
) -> None:
    ports = [port, {"port": 9}, {"port": 9}]
    spec: dict[str, Any] = {"policyTypes": [direction], direction.lower(): [{"ports": ports}]}
    one = policy(**spec)
    asked = [(protocol, number) for protocol in ("tcp", "udp") for number in (53, 8080)]
    found = {(name, number) for name, number in asked if reaches(CLIENT, WEB, one, protocol=name, dport=number)}
    assert found == opened


def test_ruleset_is_deterministic() -> None:
    one = render_ruleset(replace(WORLD, policies=fences()), SITE)
    assert render_ruleset(replace(WORLD, pods=PODS[::-1], policies=fences()[::-1]), SITE) == one


PORTS = [{"port": "http"}, {"port": 1, "endPort": 9}, {"port": 5}, {"protocol": "SCTP"}]


@pytest.mark.parametrize(
    "world", [ClusterState(), replace(WORLD, policies=[*fences(), policy(ingress=[{"ports": PORTS}])])]
)
def test_kernel_accepts_the_rules(world: ClusterState) -> None:
    if os.geteuid() != 0 or shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("needs root and nft")
    command = ["unshare", "--net", "nft", "-f", "-"]
    done = subprocess.run(command, input=render_ruleset(world, SITE), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
