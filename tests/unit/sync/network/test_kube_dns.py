"""The Service `kube-dns` of a tenant points to the name server, and yields to one that the tenant creates."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.addresses import Addresses
from tests.support.waiting import wait_until
from tests.unit.sync.network.test_name_service import FORWARDER, OWN, FakeNameServers
from tests.unit.sync.network.test_services import create_service, wait_unchanged
from tests.unit.sync.world import World, start_world
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import Object
from vkgateway.kinds.services.platform_service import Endpoint
from vkgateway.kube.resources import ENDPOINT_SLICES, NAMESPACES, SERVICES

COMPUTE_NAMESPACE = "alpha--kube-system"


@pytest.fixture
def servers() -> FakeNameServers:
    return FakeNameServers()


@pytest.fixture
async def world(servers: FakeNameServers) -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "kube-system"}})
        world.name_servers = servers
        world.service_range = "10.160.5.0/24"
        Addresses(world.compute_server.store)
        yield world


def shown_service(world: World) -> Object | None:
    """Return the Service in the tenant cluster."""
    return world.tenant_server.store.find(SERVICES, "kube-dns", "kube-system")


def endpoint_addresses(world: World) -> list[Endpoint]:
    """Return the endpoint addresses of its EndpointSlices."""
    slices = [
        one for one in world.tenant_server.store.all(ENDPOINT_SLICES) if one["metadata"]["namespace"] == "kube-system"
    ]
    return [
        Endpoint(address, one["ports"][0]["port"])
        for one in slices
        for endpoint in one["endpoints"]
        for address in endpoint["addresses"]
    ]


def delete_service(world: World) -> None:
    world.tenant_server.store.delete(SERVICES, "kube-dns", "kube-system")


async def test_service_exists_from_birth_without_any_pod(world: World, servers: FakeNameServers) -> None:
    async with world.run_gateway():
        created = await wait_until(lambda: shown_service(world))
        await wait_until(lambda: endpoint_addresses(world) == [FORWARDER])
        assert created["spec"]["clusterIP"] == "10.160.5.10"
        assert "selector" not in created["spec"]
        assert created["metadata"]["labels"]["k8s-app"] == "kube-dns"
        ports = [(port["name"], port["protocol"], port["port"]) for port in created["spec"]["ports"]]
        assert ports == [("dns", "UDP", 53), ("dns-tcp", "TCP", 53)]
        await world.wait_settled()
    assert servers.served == []


async def test_service_is_not_forwarded(world: World, servers: FakeNameServers) -> None:
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: endpoint_addresses(world) == [FORWARDER])
        await world.wait_forwarded()
        await world.wait_settled()
        assert {one["metadata"]["namespace"] for one in world.compute_server.store.all(SERVICES)} == {SYSTEM_NAMESPACE}
        assert not world.events()
        assert servers.served == []
        create_service(world)
        await wait_until(lambda: endpoint_addresses(world) == [OWN])
        await world.wait_settled()
    assert await wait_unchanged(world)


async def test_dns_returns_the_compute_address_if_it_differs(world: World, servers: FakeNameServers) -> None:
    world.service_range = ""
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: shown_service(world))
        await world.wait_forwarded()
        create_service(world)
        address = world.compute_server.store.get(SERVICES, "dns-alpha", SYSTEM_NAMESPACE)["spec"]["clusterIP"]
        name = "kube-dns.kube-system.svc.cluster.local"
        await wait_until(lambda: servers.served and servers.served[-1][2].get(name) == address)


async def test_any_address_is_used_if_the_wanted_one_is_taken(world: World) -> None:
    world.tenant_server.fail("POST", "/kube-system/services", status=422, reason="Invalid", times=1)
    async with world.run_gateway():
        created = await wait_until(lambda: shown_service(world))
        assert created["spec"].get("clusterIP") != "10.160.5.10"


async def test_own_service_of_the_tenant_is_left_alone_and_forwarded(world: World) -> None:
    own = {"metadata": {"name": "kube-dns"}, "spec": {"selector": {"k8s-app": "mine"}, "clusterIP": "10.160.5.77"}}
    world.tenant_server.store.create(SERVICES, own, "kube-system")
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        created = await wait_until(lambda: world.compute_server.store.find(SERVICES, "kube-dns", COMPUTE_NAMESPACE))
        assert created["spec"]["selector"] == {"k8s-app": "mine"}
        await world.wait_settled()
    assert endpoint_addresses(world) == []
    assert (shown_service(world) or {})["metadata"]["uid"]


async def test_admin_can_replace_the_service(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: shown_service(world))
        await world.wait_forwarded()
        delete_service(world)
        await world.wait_settled()
        assert shown_service(world) is None
        own = {"metadata": {"name": "kube-dns"}, "spec": {"selector": {"k8s-app": "mine"}, "clusterIP": "10.160.5.77"}}
        world.tenant_server.store.create(SERVICES, own, "kube-system")
        await wait_until(lambda: world.compute_server.store.find(SERVICES, "kube-dns", COMPUTE_NAMESPACE))


async def test_service_is_deleted_if_no_names_are_served(world: World, servers: FakeNameServers) -> None:
    async with world.run_gateway():
        await wait_until(lambda: shown_service(world))
        await world.wait_settled()
    servers.forwarder_endpoint = None
    async with world.run_gateway():
        await wait_until(lambda: shown_service(world) is None)


async def test_refusing_tenant_is_served_nevertheless(world: World) -> None:
    world.tenant_server.fail("POST", "/kube-system/services", status=403, reason="Forbidden", times=100)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        create_service(world)
        await wait_until(lambda: world.compute_server.store.find(SERVICES, "web", "alpha--default"))
    assert shown_service(world) is None
