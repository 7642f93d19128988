"""Exposure of API servers in pods: objects, addresses in certificates and kubeconfigs, and what is missing."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.controlplane.drivers.test_kubernetes_driver import NAMESPACE, ManagementWorld, start_world
from tests.unit.controlplane.test_provisioner import tenant
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import NotPublishedError, UnavailableError
from vkgateway.api.types import ApiServerAccess, ApiServerExposure, GatewayReference, Tenant, TenantSpec
from vkgateway.kube import kubeconfig
from vkgateway.kube.resources import (
    EVENTS,
    INGRESS_CLASSES,
    INGRESSES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.pki import alternative_names

INTERNAL = "https://10.215.0.21:6443"
EDGE = GatewayReference(namespace="edge", name="shared", section_name="tls")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ManagementWorld]:
    async with start_world(tmp_path) as world:
        yield world


def exposed(**exposure: Any) -> Tenant:
    access = ApiServerAccess(exposure=ApiServerExposure(**exposure))
    return msgspec.structs.replace(tenant(), spec=TenantSpec(api_server=access))


def user_server(world: ManagementWorld) -> str:
    """Return the URL in the kubeconfig of the tenant's admin."""
    found: str = kubeconfig.parse(world.store.records["alpha"].kubeconfig)["clusters"][0]["cluster"]["server"]
    return found


def certificate_names(world: ManagementWorld) -> frozenset[str]:
    return alternative_names(base64.b64decode(world.cluster.get(SECRETS, "files", NAMESPACE)["data"]["apiserver.crt"]))


def set_status(world: ManagementWorld, resource: Resource, name: str, status: dict[str, Any]) -> None:
    found = world.cluster.get(resource, name, NAMESPACE) | {"status": status}
    world.cluster.update(resource, found, name=name, namespace=NAMESPACE, status=True)


def client_peers(world: ManagementWorld) -> list[str]:
    policy = world.cluster.get(NETWORK_POLICIES, "control-plane", NAMESPACE)["spec"]
    return [peer["ipBlock"]["cidr"] for peer in policy["ingress"][0]["from"] if "ipBlock" in peer]


async def test_load_balancer_is_published_when_it_has_an_address(world: ManagementWorld) -> None:
    wanted = exposed(type="LoadBalancer", load_balancer_class="lb/internal", annotations={"zone": "a"})
    made = await world.provisioner().provision(wanted)
    assert (made.url, user_server(world)) == (INTERNAL, INTERNAL)
    assert made.publication.reason == "AddressPending"
    service = world.cluster.get(SERVICES, "api-published", NAMESPACE)
    assert service["metadata"]["annotations"] == {"zone": "a"}
    assert (service["spec"]["type"], service["spec"]["loadBalancerClass"]) == ("LoadBalancer", "lb/internal")
    addresses = [{"ip": "192.0.2.7", "ipMode": "VIP"}, {"hostname": "lb.example.org"}]
    set_status(world, SERVICES, "api-published", {"loadBalancer": {"ingress": addresses}})
    made = await world.provisioner().provision(wanted)
    assert made.publication.url == user_server(world) == "https://192.0.2.7:6443"
    assert made.url == INTERNAL
    assert {"192.0.2.7", "lb.example.org", "10.215.0.21"} <= certificate_names(world)
    loaded = await world.provisioner().load_existing(wanted)
    assert loaded is not None
    assert (loaded.url, loaded.publication.url) == (INTERNAL, "https://192.0.2.7:6443")


NO_ADDRESS = 'Failed to allocate IP for "vkgateway-tenant-alpha/api-published": no available IPs'
"""Warning of MetalLB 0.16.2."""


def warn(world: ManagementWorld, message: str, *, about: str, at: str | None, **fields: Any) -> None:
    """Write a warning about the published Service of a UID, as controllers of load balancers do."""
    event = {
        "metadata": {"name": f"api-published.{len(message)}"},
        "involvedObject": {"kind": "Service", "namespace": NAMESPACE, "name": "api-published", "uid": about},
        "type": "Warning",
        "reason": "AllocationFailed",
        "message": message,
        "count": 2,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "eventTime": None,
        "reportingComponent": "metallb-controller",
    }
    world.cluster.create(EVENTS, event | fields, NAMESPACE)


async def test_last_warning_about_the_service_explains_the_missing_address(world: ManagementWorld) -> None:
    wanted = exposed(type="LoadBalancer", load_balancer_class="lb/internal")
    await world.provisioner().provision(wanted)
    uid = world.cluster.get(SERVICES, "api-published", NAMESPACE)["metadata"]["uid"]
    warn(world, "another reason", about=uid, at="2026-11-26T15:41:25Z")
    warn(world, NO_ADDRESS, about=uid, at="2026-11-26T15:41:26Z")
    warn(world, "of a former Service", about="former", at="2026-11-26T15:42:00Z")
    made = await world.provisioner().provision(wanted)
    assert made.publication.message == (
        f"the load balancer (class lb/internal) of Service api-published has no address yet: {NO_ADDRESS}"
    )


async def test_warnings_of_both_event_groups_are_compared(world: ManagementWorld) -> None:
    wanted = exposed(type="LoadBalancer")
    await world.provisioner().provision(wanted)
    uid = world.cluster.get(SERVICES, "api-published", NAMESPACE)["metadata"]["uid"]
    warn(world, "quota exceeded", about=uid, at="2026-11-26T14:00:00Z")
    series = {"count": 2, "lastObservedTime": "2026-11-26T14:00:00.123456Z"}
    warn(world, "no address", about=uid, at=None, eventTime="2026-11-26T13:00:00.000001Z", series=series)
    made = await world.provisioner().provision(wanted)
    assert made.publication.message.endswith("no address yet: no address")


async def test_node_port_is_published_at_a_node_with_a_ready_pod(world: ManagementWorld) -> None:
    wanted = exposed(type="NodePort", port=30443, source_ranges=("192.0.2.0/24",))
    made = await world.provisioner().provision(wanted)
    assert made.publication.reason == "AddressPending"
    labels = world.cluster.get(SERVICES, "api", NAMESPACE)["spec"]["selector"]
    pod = world.cluster.create(PODS, {"metadata": {"name": "one", "labels": labels}, "spec": {}}, NAMESPACE)
    status = {"hostIP": "10.0.0.5", "conditions": [{"type": "Ready", "status": "True"}]}
    world.cluster.update(PODS, pod | {"status": status}, name="one", namespace=NAMESPACE, status=True)
    made = await world.provisioner().provision(wanted)
    assert made.publication.url == user_server(world) == "https://10.0.0.5:30443"
    assert "10.0.0.5" in certificate_names(world)
    assert world.cluster.get(SERVICES, "api-published", NAMESPACE)["spec"]["externalTrafficPolicy"] == "Local"
    assert client_peers(world) == ["192.0.2.0/24"]


async def test_node_port_with_a_hostname_needs_no_address(world: ManagementWorld) -> None:
    made = await world.provisioner().provision(exposed(type="NodePort", port=30443, hostname="alpha.example.org"))
    assert made.publication.url == "https://alpha.example.org:30443"
    assert "alpha.example.org" in certificate_names(world)
    assert client_peers(world) == ["0.0.0.0/0", "::/0"]


async def test_address_is_published_only_once_the_api_server_has_its_certificate(world: ManagementWorld) -> None:
    world.unserved = frozenset({"alpha.example.org"})
    with pytest.raises(UnavailableError, match=r"serves no certificate for alpha\.example\.org"):
        await world.provisioner().provision(exposed(type="NodePort", port=30443, hostname="alpha.example.org"))
    world.unserved = frozenset()
    made = await world.provisioner().provision(exposed(type="NodePort", port=30443, hostname="alpha.example.org"))
    assert made.publication.url == "https://alpha.example.org:30443"


async def test_ingress_passes_tls_through(world: ManagementWorld) -> None:
    wanted = exposed(type="Ingress", hostname="alpha.example.org", ingress_class="nginx")
    made = await world.provisioner().provision(wanted)
    assert made.publication.reason == "AddressPending"
    assert "alpha.example.org" in certificate_names(world)
    ingress = world.cluster.get(INGRESSES, "api", NAMESPACE)
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/ssl-passthrough"] == "true"
    set_status(world, INGRESSES, "api", {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}})
    made = await world.provisioner().provision(wanted)
    assert made.publication.url == user_server(world) == "https://alpha.example.org:443"
    assert client_peers(world) == []


@pytest.mark.parametrize(
    ("ingress_class", "classes", "words"),
    [
        ("", [], "it has no class, and the cluster has no default one; set ingressClass"),
        ("nginx", [], "IngressClass 'nginx' does not exist"),
        ("nginx", ["nginx"], "given the Ingress an address yet"),
    ],
)
async def test_ingress_without_an_address_says_what_its_class_lacks(
    world: ManagementWorld, ingress_class: str, classes: list[str], words: str
) -> None:
    for name in classes:
        world.cluster.create(INGRESS_CLASSES, {"metadata": {"name": name}})
    wanted = exposed(type="Ingress", hostname="alpha.example.org", ingress_class=ingress_class)
    made = await world.provisioner().provision(wanted)
    assert made.publication.message.endswith(words)


async def test_route_without_the_gateway_api_is_not_published(world: ManagementWorld) -> None:
    made = await world.provisioner().provision(exposed(type="TLSRoute", hostname="alpha.example.org", gateway=EDGE))
    assert made.publication.reason == "KindMissing"
    assert "install the Gateway API" in made.publication.message
    assert made.url == INTERNAL


async def test_another_type_deletes_the_object_of_the_former_one(world: ManagementWorld) -> None:
    await world.provisioner().provision(exposed(type="Ingress", hostname="alpha.example.org"))
    await world.provisioner().provision(exposed(type="NodePort", port=30443, hostname="alpha.example.org"))
    assert world.cluster.find(INGRESSES, "api", NAMESPACE) is None
    assert world.cluster.find(SERVICES, "api-published", NAMESPACE) is not None
    made = await world.provisioner().provision(tenant())
    assert world.cluster.find(SERVICES, "api-published", NAMESPACE) is None
    assert world.cluster.find(SERVICES, "api", NAMESPACE) is not None
    assert user_server(world) == made.url == INTERNAL


async def test_check_reports_a_changed_address_and_changes_nothing_else(world: ManagementWorld) -> None:
    wanted = exposed(type="LoadBalancer")
    made = await world.provisioner().provision(wanted)
    set_status(world, SERVICES, "api-published", {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}})
    endpoint = await world.create_driver().endpoints.find("alpha", recorded_port=6443)
    assert endpoint is not None
    found = await world.provisioner().check_publication(wanted, endpoint=endpoint)
    assert found.url == "https://192.0.2.7:6443"
    assert not made.publication.fits(found)
    assert user_server(world) == INTERNAL


async def test_pods_of_another_cluster_reach_the_exposure(world: ManagementWorld) -> None:
    driver, east = world.create_driver(), ClusterIdentity("east", "another")
    made = await world.provisioner().provision(tenant())
    endpoint = ServerEndpoint(made.address, made.port)
    with pytest.raises(NotPublishedError, match=r"cluster 'east' cannot reach .* set spec\.apiServer\.exposure\.type"):
        await driver.endpoints.reachable_from("alpha", east, endpoint=endpoint)
    await world.provisioner().provision(exposed(type="LoadBalancer"))
    addresses = [{"ip": "192.0.2.7"}, {"hostname": "lb.example.org"}]
    set_status(world, SERVICES, "api-published", {"loadBalancer": {"ingress": addresses}})
    found = await driver.endpoints.reachable_from("alpha", east, endpoint=endpoint)
    assert list(found) == [ServerEndpoint("192.0.2.7", 6443)]


async def test_name_server_of_another_cluster_is_exposed_like_the_api_server(world: ManagementWorld) -> None:
    servers, east = world.create_driver().name_servers, ClusterIdentity("east", "another")
    assert servers is not None
    await world.provisioner().provision(tenant())
    with pytest.raises(NotPublishedError, match="cannot reach the tenant's name server"):
        await servers.ensure_server("alpha", east, {})
    assert world.cluster.find(SERVICES, "names-east", NAMESPACE) is None
    await world.provisioner().provision(exposed(type="LoadBalancer"))
    with pytest.raises(UnavailableError, match="not ready yet"):
        await servers.ensure_server("alpha", east, {})
    service = world.cluster.get(SERVICES, "names-east", NAMESPACE)["spec"]
    assert (service["type"], service["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    set_status(world, SERVICES, "names-east", {"loadBalancer": {"ingress": [{"ip": "192.0.2.8"}]}})
    assert list(await servers.ensure_server("alpha", east, {})) == [ServerEndpoint("192.0.2.8", 53)]
    await world.provisioner().provision(tenant())
    with pytest.raises(NotPublishedError):
        await servers.ensure_server("alpha", east, {})
    assert world.cluster.find(SERVICES, "names-east", NAMESPACE) is None
