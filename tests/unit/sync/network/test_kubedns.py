"""The Service `kube-dns` of a tenant: it leads to the name server, and gives way to one that the tenant makes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.addresses import Addresses
from tests.unit.sync.network.test_names import FORWARDER, OWN, FakeServers
from tests.unit.sync.network.test_services import nothing_to_write, serve
from tests.unit.sync.world import World, until, world
from vkgateway.kube.resources import ENDPOINT_SLICES, NAMESPACES, SERVICES
from vkgateway.model.names import SYSTEM_NAMESPACE
from vkgateway.model.objects import Object
from vkgateway.sync.network.platform_service import Endpoint

BELOW = "alpha--kube-system"


@pytest.fixture
def servers() -> FakeServers:
    return FakeServers()


@pytest.fixture
async def here(servers: FakeServers) -> AsyncIterator[World]:
    async with world() as made:
        made.below.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        made.above.store.create(NAMESPACES, {"metadata": {"name": "kube-system"}})
        made.name_servers = servers
        made.service_range = "10.160.5.0/24"
        Addresses(made.below.store)
        yield made


def shown(here: World) -> Object | None:
    """The Service in the tenant cluster."""
    return here.above.store.find(SERVICES, "kube-dns", "kube-system")


def leads_to(here: World) -> list[Endpoint]:
    """What its slices say."""
    slices = [one for one in here.above.store.all(ENDPOINT_SLICES) if one["metadata"]["namespace"] == "kube-system"]
    return [
        Endpoint(address, one["ports"][0]["port"])
        for one in slices
        for endpoint in one["endpoints"]
        for address in endpoint["addresses"]
    ]


def delete(here: World) -> None:
    here.above.store.delete(SERVICES, "kube-dns", "kube-system")


async def test_a_tenant_is_born_with_it_though_nothing_runs(here: World, servers: FakeServers) -> None:
    async with here.gateway():
        made = await until(lambda: shown(here))
        await until(lambda: leads_to(here) == [FORWARDER])
        assert made["spec"]["clusterIP"] == "10.160.5.10"
        assert "selector" not in made["spec"]
        assert made["metadata"]["labels"]["k8s-app"] == "kube-dns"
        ports = [(port["name"], port["protocol"], port["port"]) for port in made["spec"]["ports"]]
        assert ports == [("dns", "UDP", 53), ("dns-tcp", "TCP", 53)]
        await here.settled()
    assert servers.served == []


async def test_it_is_no_service_of_the_tenants_below(here: World, servers: FakeServers) -> None:
    here.create()
    async with here.gateway():
        await until(lambda: leads_to(here) == [FORWARDER])
        await here.forwarded()
        await here.settled()
        assert {one["metadata"]["namespace"] for one in here.below.store.all(SERVICES)} == {SYSTEM_NAMESPACE}
        assert not here.events()
        assert servers.served == []
        serve(here)
        await until(lambda: leads_to(here) == [OWN])
        await here.settled()
    assert await nothing_to_write(here)


async def test_names_lead_to_the_address_below_where_that_differs(here: World, servers: FakeServers) -> None:
    here.service_range = ""
    here.create()
    async with here.gateway():
        await until(lambda: shown(here))
        await here.forwarded()
        serve(here)
        address = here.below.store.get(SERVICES, "dns-alpha", SYSTEM_NAMESPACE)["spec"]["clusterIP"]
        name = "kube-dns.kube-system.svc.cluster.local"
        await until(lambda: servers.served and servers.served[-1][2].get(name) == address)


async def test_an_address_that_is_taken_above_is_not_insisted_on(here: World) -> None:
    here.above.fail("POST", "/kube-system/services", status=422, reason="Invalid", times=1)
    async with here.gateway():
        made = await until(lambda: shown(here))
        assert made["spec"].get("clusterIP") != "10.160.5.10"


async def test_a_service_of_the_tenants_own_is_left_alone_and_goes_down(here: World) -> None:
    own = {"metadata": {"name": "kube-dns"}, "spec": {"selector": {"k8s-app": "mine"}, "clusterIP": "10.160.5.77"}}
    here.above.store.create(SERVICES, own, "kube-system")
    here.create()
    async with here.gateway():
        await here.forwarded()
        made = await until(lambda: here.below.store.find(SERVICES, "kube-dns", BELOW))
        assert made["spec"]["selector"] == {"k8s-app": "mine"}
        await here.settled()
    assert leads_to(here) == []
    assert (shown(here) or {})["metadata"]["uid"]


async def test_an_admin_can_put_another_in_its_place(here: World) -> None:
    here.create()
    async with here.gateway():
        await until(lambda: shown(here))
        await here.forwarded()
        delete(here)
        await here.settled()
        assert shown(here) is None
        own = {"metadata": {"name": "kube-dns"}, "spec": {"selector": {"k8s-app": "mine"}, "clusterIP": "10.160.5.77"}}
        here.above.store.create(SERVICES, own, "kube-system")
        await until(lambda: here.below.store.find(SERVICES, "kube-dns", BELOW))


async def test_where_no_names_are_served_there_is_none(here: World, servers: FakeServers) -> None:
    async with here.gateway():
        await until(lambda: shown(here))
        await here.settled()
    servers.forwarder_endpoint = None
    async with here.gateway():
        await until(lambda: shown(here) is None)


async def test_a_tenant_that_refuses_it_is_served_all_the_same(here: World) -> None:
    here.above.fail("POST", "/kube-system/services", status=403, reason="Forbidden", times=100)
    here.create()
    async with here.gateway():
        await here.forwarded()
        serve(here)
        await until(lambda: here.below.store.find(SERVICES, "web", "alpha--default"))
    assert shown(here) is None
