"""Reachability of control planes in pods, evaluated by the rules of the embedded platform's node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.local.netpol.kernel import Kernel, Packet
from tests.unit.local.realnode.test_options import OPTIONS
from vkgateway.api.names import CONTROL_PLANE_LABEL, TENANT_LABEL
from vkgateway.api.types import ApiServerExposure
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.pods.translation.peer_terms import NAMESPACE_NAME_LABEL
from vkgateway.kinds.policies.egress_rules import PRIVATE_RANGES
from vkgateway.kinds.policies.translation import NetworkPolicyView, decode_policy, isolation_policies
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE, pod_selector
from vkgateway.planes.drivers.kubernetes.network_policies import control_plane_policies, name_server_policy
from vkgateway.planes.publication import client_ranges
from vkgateway_platform.embedded.netpol.cluster_state import ClusterState, Pod, Server, Site
from vkgateway_platform.embedded.realnode import configs

SITE = msgspec.json.decode(configs.site_config(OPTIONS), type=Site)
SERVER, NAMES, POD, THEIRS, THEIR_SERVER, GATEWAY, ETCD, DNS, OTHER = (f"10.214.7.{number}" for number in range(10, 19))
CORPORATE, PUBLIC, METADATA, NODE = "10.1.2.3", "203.0.113.9", "169.254.169.254", "10.1.2.9"
NAMESPACES = {
    "vkgateway-tenant-alpha": {CONTROL_PLANE_LABEL: "alpha"},
    "vkgateway-tenant-beta": {CONTROL_PLANE_LABEL: "beta"},
    "alpha--web": {TENANT_LABEL: "alpha"},
    "beta--web": {TENANT_LABEL: "beta"},
    "vkgateway-system": {},
    "etcd": {},
    "kube-system": {},
    "monitoring": {},
}
PODS = (
    Pod(address=SERVER, namespace="vkgateway-tenant-alpha", labels=pod_selector("alpha", CONTROL_PLANE)),
    Pod(address=NAMES, namespace="vkgateway-tenant-alpha", labels=pod_selector("alpha", "names-local")),
    Pod(address=THEIR_SERVER, namespace="vkgateway-tenant-beta", labels=pod_selector("beta", CONTROL_PLANE)),
    Pod(address=POD, namespace="alpha--web"),
    Pod(address=THEIRS, namespace="beta--web"),
    Pod(address=GATEWAY, namespace="vkgateway-system"),
    Pod(address=ETCD, namespace="etcd"),
    Pod(address=DNS, namespace="kube-system"),
    Pod(address=OTHER, namespace="monitoring"),
)


def policies(**changes: Any) -> list[NetworkPolicyView]:
    """Return the policies of both control planes and of both tenants' pods."""
    documents: list[Any] = []
    for tenant in ("alpha", "beta"):
        settings: dict[str, Any] = {
            "namespace": f"vkgateway-tenant-{tenant}",
            "etcd": ["https://etcd-0.etcd.etcd.svc:2379"],
            "gateway": ServerEndpoint("10.215.0.9", 10250),
            "blocked": PRIVATE_RANGES,
        }
        documents += control_plane_policies(tenant, **(settings | changes))
        documents.append(name_server_policy(tenant, "names-local", namespace=settings["namespace"], port=1053))
        context = TenantContext(name=tenant, api_host="10.215.0.1", api_port=6443)
        documents += isolation_policies(context, "web", "uid").documents
    return [decode_policy(msgspec.json.encode(document)) for document in documents]


def reaches(saddr: str, daddr: str, port: int, *, protocol: str = "tcp", **changes: Any) -> bool:
    servers = {"alpha": (Server(SERVER, 6443), Server(NAMES, 1053, "UDP"))}
    named = {name: {**labels, NAMESPACE_NAME_LABEL: name} for name, labels in NAMESPACES.items()}
    state = ClusterState(pods=PODS, namespaces=named, policies=policies(**changes), servers=servers)
    is_pod = saddr.startswith("10.214.7.")
    packet = Packet(saddr=saddr, daddr=daddr, dport=port, protocol=protocol, iifname="veth1" if is_pod else "eth0")
    return Kernel(state, _site()).passes(packet)


def _site() -> Site:
    """Return a node whose machine has no address, so that policies apply to every packet."""
    return msgspec.structs.replace(SITE, machine=())


@pytest.mark.parametrize(
    ("source", "is_open"),
    [
        (POD, True),
        (GATEWAY, True),
        (NAMES, True),
        (OTHER, True),
        (THEIRS, False),
        (THEIR_SERVER, False),
        (CORPORATE, False),
    ],
)
def test_api_server_is_reached_by_its_tenant_and_pods_of_no_tenant(source: str, is_open: bool) -> None:
    assert reaches(source, SERVER, 6443) is is_open
    assert not reaches(source, SERVER, 10257)


def test_addresses_that_are_no_pods_reach_api_servers_if_a_parameter_says_so() -> None:
    assert reaches(CORPORATE, SERVER, 6443, clients=["10.1.0.0/16"])
    assert not reaches(PUBLIC, SERVER, 6443, clients=["10.1.0.0/16"])


@pytest.mark.parametrize(
    ("exposure", "source", "is_open"),
    [
        # Nodes replace the client's address by theirs, except with sourceRanges (externalTrafficPolicy Local).
        ({"type": "LoadBalancer"}, NODE, True),
        ({"type": "LoadBalancer"}, PUBLIC, True),
        ({"type": "NodePort"}, NODE, True),
        ({"type": "LoadBalancer", "source_ranges": (f"{PUBLIC}/32",)}, PUBLIC, True),
        ({"type": "LoadBalancer", "source_ranges": (f"{PUBLIC}/32",)}, CORPORATE, False),
        ({"type": "NodePort", "source_ranges": (f"{PUBLIC}/32",)}, NODE, False),
        # A gateway or ingress controller connects from its pod, or from its node if it uses the host network.
        ({"type": "TLSRoute"}, OTHER, True),
        ({"type": "TLSRoute"}, NODE, False),
        ({"type": "Ingress"}, OTHER, True),
        ({"type": "Ingress"}, NODE, False),
        ({"type": "ClusterIP"}, PUBLIC, False),
    ],
)
def test_exposure_admits_the_addresses_from_which_its_clients_arrive(
    exposure: dict[str, Any], source: str, is_open: bool
) -> None:
    assert reaches(source, SERVER, 6443, clients=client_ranges(ApiServerExposure(**exposure))) is is_open


def test_name_server_answers_its_tenant_only() -> None:
    assert [reaches(one, NAMES, 1053, protocol="udp") for one in (POD, THEIRS, OTHER)] == [True, False, False]


@pytest.mark.parametrize(
    ("target", "port", "is_open"),
    [
        (ETCD, 2379, True),
        (GATEWAY, 10250, True),
        (DNS, 53, True),
        (POD, 8443, True),
        (PUBLIC, 443, True),
        (THEIRS, 8443, False),
        (THEIR_SERVER, 6443, False),
        (OTHER, 9090, False),
        (CORPORATE, 443, False),
        (METADATA, 80, False),
    ],
)
def test_api_server_reaches_what_it_needs_and_the_outside(target: str, port: int, is_open: bool) -> None:
    assert reaches(SERVER, target, port) is is_open


def test_servers_with_addresses_are_open_at_their_port() -> None:
    changes: dict[str, Any] = {"etcd": [f"https://{CORPORATE}:2379"], "gateway": ServerEndpoint("10.1.2.4", 10352)}
    assert reaches(SERVER, CORPORATE, 2379, **changes)
    assert reaches(SERVER, "10.1.2.4", 10352, **changes)
    assert not reaches(SERVER, CORPORATE, 22, **changes)
    assert not reaches(SERVER, ETCD, 2379, **changes)


def test_private_addresses_are_open_if_only_ranges_of_the_cluster_are_blocked() -> None:
    assert reaches(SERVER, CORPORATE, 443, blocked=["10.214.0.0/16"])
    assert not reaches(SERVER, METADATA, 80, blocked=[])
