"""DNS for pods: one constant address, answered by the forwarder or by the tenant's own name server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from tests.fakes.addresses import Addresses
from tests.support.waiting import wait_until
from tests.unit.sync.network.test_services import count_writes, create_service, wait_unchanged
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, object_names, start_world
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import NotPublishedError, UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.kinds.services import name_service as network_names
from vkgateway.kinds.services.name_service import remove_names
from vkgateway.kinds.services.platform_service import Endpoint, _similar_endpoints
from vkgateway.kube.resources import ENDPOINT_SLICES, NAMESPACES, SERVICES

FORWARDER = Endpoint("10.213.0.2", 54)
OWN = Endpoint("10.213.0.1", 10053)


class FakeNameServers:
    """Name servers that record what they serve; `away` makes them fail."""

    forwarder_endpoint: Endpoint | None = FORWARDER
    listening_range: NameServerRange | None = NameServerRange(OWN.address, 10000, 19999)

    def __init__(self) -> None:
        self.served: list[tuple[str, str, dict[str, str]]] = []
        self.away = False
        self.error = UnavailableError("not yet")

    async def serve_tenant(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[Endpoint]:
        if self.away:
            raise self.error
        self.served.append((tenant, cluster.name, dict(addresses)))
        return [OWN]


@pytest.fixture
def servers() -> FakeNameServers:
    return FakeNameServers()


@pytest.fixture
async def world(servers: FakeNameServers) -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        world.name_servers = servers
        Addresses(world.compute_server.store)
        yield world


def current_endpoint(world: World) -> Endpoint | None:
    found = world.compute_server.store.find(ENDPOINT_SLICES, "dns-alpha", SYSTEM_NAMESPACE)
    if found is None:
        return None
    assert {(port["name"], port["protocol"]) for port in found["ports"]} == {("dns", "UDP"), ("dns-tcp", "TCP")}
    return Endpoint(found["endpoints"][0]["addresses"][0], found["ports"][0]["port"])


def platform_address(world: World, name: str = "dns-alpha") -> str:
    found = world.compute_server.store.get(SERVICES, name, SYSTEM_NAMESPACE)
    return str(found["spec"]["clusterIP"])


def api_endpoint(world: World) -> str:
    return platform_address(world, "api-alpha")


async def test_forwarder_answers_at_the_tenants_address_without_services(
    world: World, servers: FakeNameServers
) -> None:
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
        await world.wait_settled()
        assert pod["spec"]["dnsPolicy"] == "None"
        assert pod["spec"]["dnsConfig"]["nameservers"] == [platform_address(world)]
        assert pod["spec"]["dnsConfig"]["searches"] == [
            "default.svc.cluster.local",
            "svc.cluster.local",
            "cluster.local",
        ]
        assert current_endpoint(world) == FORWARDER
    assert servers.served == []


async def test_api_server_name_resolves_to_the_usual_port(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
    (alias,) = pod["spec"]["hostAliases"]
    assert alias["ip"] == api_endpoint(world)
    assert "kubernetes.default.svc" in alias["hostnames"]
    found = world.compute_server.store.get(ENDPOINT_SLICES, "api-alpha", SYSTEM_NAMESPACE)
    assert found["endpoints"][0]["addresses"] == ["10.213.0.1"]
    assert found["ports"] == [{"name": "https", "protocol": "TCP", "port": 6443}]
    assert world.compute_server.store.get(SERVICES, "api-alpha", SYSTEM_NAMESPACE)["spec"]["ports"][0]["port"] == 443
    (host,) = [v["value"] for v in pod["spec"]["containers"][0]["env"] if v["name"] == "KUBERNETES_SERVICE_HOST"]
    assert host == "10.213.0.1"


async def test_first_service_starts_a_name_server_with_differing_addresses(
    world: World, servers: FakeNameServers
) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        before = platform_address(world)
        create_service(world)
        create_service(world, "headless", clusterIP="None")
        await wait_until(lambda: current_endpoint(world) == OWN)
        below = await wait_until(lambda: world.compute_server.store.find(SERVICES, "web", COMPUTE_NAMESPACE))
        name = "web.default.svc.cluster.local"
        await wait_until(lambda: servers.served[-1][2].get(name) == below["spec"]["clusterIP"])
        assert servers.served[-1] == (
            "alpha",
            "local",
            {name: below["spec"]["clusterIP"], "kubernetes.default.svc.cluster.local": api_endpoint(world)},
        )
        assert platform_address(world) == before


async def test_external_name_of_a_differing_service_is_included(world: World, servers: FakeNameServers) -> None:
    create_service(world)
    domain = "default.svc.cluster.local"
    for name, target in (("a", f"web.{domain}"), ("b", f"a.{domain}."), ("c", f"d.{domain}"), ("d", f"c.{domain}")):
        create_service(world, name, type="ExternalName", clusterIP="", externalName=target)
    create_service(world, "out", type="ExternalName", clusterIP="", externalName="web.beta--default.svc.cluster.local")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: servers.served and f"web.{domain}" in servers.served[-1][2])
        names = servers.served[-1][2]
    assert names.keys() == {f"web.{domain}", f"a.{domain}", f"b.{domain}", "kubernetes.default.svc.cluster.local"}
    assert names[f"web.{domain}"] == names[f"a.{domain}"] == names[f"b.{domain}"]


async def test_forwarder_stays_until_the_name_server_answers(world: World, servers: FakeNameServers) -> None:
    servers.away = True
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await wait_until(lambda: world.compute_server.store.find(SERVICES, "web", COMPUTE_NAMESPACE))
        await world.wait_settled()
        assert current_endpoint(world) == FORWARDER
        servers.away = False
        await wait_until(lambda: current_endpoint(world) == OWN)


async def test_restart_writes_nothing(world: World) -> None:
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: current_endpoint(world) == OWN)
        await world.wait_settled()
    assert await wait_unchanged(world)


async def test_current_endpoint_stays_while_services_are_unknown(world: World) -> None:
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: current_endpoint(world) == OWN)
        await world.wait_settled()
        before = count_writes(world)
    world.tenant_server.fail("GET", "/api/v1/services", status=503, times=1000)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.is_complete and world.link is not None and world.link.services_trusted)
        sync.resync()
        await world.wait_settled()
        assert not sync.reconcilers.tenant_services.is_complete
        assert current_endpoint(world) == OWN
        assert count_writes(world) == before


async def test_deleted_service_is_recreated_with_the_same_address(world: World) -> None:
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: current_endpoint(world) == OWN)
        await world.wait_settled()
        before = platform_address(world)
        world.compute_server.store.delete(SERVICES, "dns-alpha", SYSTEM_NAMESPACE)
        world.compute_server.store.delete(ENDPOINT_SLICES, "dns-alpha", SYSTEM_NAMESPACE)
        await wait_until(lambda: "dns-alpha" in object_names(world.compute_server, SERVICES))
        await wait_until(lambda: current_endpoint(world) == OWN)
        assert platform_address(world) == before


async def test_refusal_of_a_starting_server_counts_as_transient(world: World) -> None:
    world.compute_server.fail("POST", "/services", status=403, reason="Forbidden", times=2)
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
    assert pod["spec"]["dnsConfig"]["nameservers"] == [platform_address(world)]


async def test_pods_use_their_nodes_resolver_without_permission(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_names, "_REFUSAL_GRACE", 0.0)
    fault = world.compute_server.fail("POST", "/services", status=403, reason="Forbidden", times=100)
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
        world.create_pod("another")
        await world.wait_forwarded("another")
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert fault.hits == 1


async def test_foreign_service_of_that_name_is_left_alone(world: World) -> None:
    document = {"metadata": {"name": "dns-alpha", "labels": {TENANT_LABEL: "beta"}}, "spec": {"ports": []}}
    world.compute_server.store.create(SERVICES, document, SYSTEM_NAMESPACE)
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
        link = world.link
        assert link is not None
        await remove_names(link, "alpha")
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert world.compute_server.store.find(SERVICES, "dns-alpha", SYSTEM_NAMESPACE) is not None


async def test_names_are_removed_with_their_tenant(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        link = world.link
        assert link is not None
        await world.stop_tenant()
        await remove_names(link, "alpha")
        await remove_names(link, "alpha")
    assert world.compute_server.store.all(ENDPOINT_SLICES) == []
    assert world.compute_server.store.all(SERVICES) == []


class PodApiServers:
    """API servers in pods: `addresses` are those that serve."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.error = UnavailableError("not yet")

    async def api_server_endpoints(
        self, tenant: str, cluster: ClusterIdentity, *, listening: Endpoint
    ) -> Collection[Endpoint]:
        assert (tenant, cluster.name, listening) == ("alpha", "local", Endpoint("10.213.0.1", 6443))
        if not self.addresses:
            raise self.error
        return [Endpoint(address, 6443) for address in self.addresses]


def slice_addresses(world: World, name: str) -> list[str]:
    found = world.compute_server.store.get(ENDPOINT_SLICES, name, SYSTEM_NAMESPACE)
    return [address for endpoint in found["endpoints"] for address in endpoint["addresses"]]


async def test_api_service_follows_the_pods_of_the_api_server(world: World) -> None:
    world.api_servers = servers = PodApiServers("10.2.0.8", "10.2.0.7")
    world.create_pod()
    async with world.run_gateway() as sync:
        pod = await world.wait_forwarded()
        assert pod["spec"]["hostAliases"][0]["ip"] == api_endpoint(world)
        assert slice_addresses(world, "api-alpha") == ["10.2.0.7", "10.2.0.8"]
        servers.addresses = ["10.2.0.9"]
        sync.servers_changed()
        await wait_until(lambda: slice_addresses(world, "api-alpha") == ["10.2.0.9"])
        await world.wait_settled()
    assert await wait_unchanged(world)


async def test_pod_waits_while_no_address_of_its_api_server_is_known(world: World) -> None:
    world.api_servers = servers = PodApiServers()
    world.create_pod()
    async with world.run_gateway():
        await world.wait_settled()
        assert world.compute_pod() is None
        servers.addresses = ["10.2.0.7"]
        await world.wait_forwarded()


async def test_pod_starts_where_its_api_server_is_not_published(world: World) -> None:
    world.api_servers = servers = PodApiServers()
    servers.error = NotPublishedError("pods of compute cluster 'local' cannot reach it")
    world.create_pod()
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        assert slice_addresses(world, "api-alpha") == []
        assert sync.unreachable_servers() == ["pods of compute cluster 'local' cannot reach it"]
        servers.addresses = ["10.2.0.7"]
        sync.servers_changed()
        await wait_until(lambda: slice_addresses(world, "api-alpha") == ["10.2.0.7"])
        assert sync.unreachable_servers() == []


async def test_forwarder_answers_where_the_name_server_is_not_published(world: World, servers: FakeNameServers) -> None:
    servers.error = NotPublishedError("pods of compute cluster 'local' cannot reach it")
    servers.away = True
    create_service(world)
    world.create_pod()
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        await wait_until(lambda: sync.unreachable_servers() == [str(servers.error)])
        assert current_endpoint(world) == FORWARDER
        servers.away = False
        sync.servers_changed()
        await wait_until(lambda: current_endpoint(world) == OWN)
        assert sync.unreachable_servers() == []


def test_a_slice_has_the_endpoints_of_one_address_family_and_port() -> None:
    mixed = [Endpoint("fd00::2", 6443), Endpoint("10.2.0.7", 6443), Endpoint("10.2.0.6", 6443), Endpoint("10.2.0.7", 7)]
    assert _similar_endpoints(mixed) == [Endpoint("10.2.0.7", 7)]
    assert _similar_endpoints(mixed[:3]) == [Endpoint("10.2.0.6", 6443), Endpoint("10.2.0.7", 6443)]
    assert _similar_endpoints([]) == []
