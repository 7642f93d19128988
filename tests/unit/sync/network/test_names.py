"""Where pods ask for names: one address for good; behind it the forwarder answers, or the tenant's own server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from tests.fakes.addresses import Addresses
from tests.unit.sync.network.test_services import nothing_to_write, serve, writes
from tests.unit.sync.world import BELOW, World, names, until, world
from vkgateway.kube.resources import ENDPOINT_SLICES, NAMESPACES, SERVICES
from vkgateway.model.errors import UnavailableError
from vkgateway.model.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.sync.network import name_service as network_names
from vkgateway.sync.network.name_service import remove_names
from vkgateway.sync.network.platform_service import Endpoint
from vkgateway.translate.egress_rules import NameServerRange

FORWARDER = Endpoint("10.213.0.2", 54)
OWN = Endpoint("10.213.0.1", 10053)


class FakeServers:
    """Remembers what it was asked to serve; `away` makes it fail."""

    forwarder_endpoint: Endpoint | None = FORWARDER
    listening_range: NameServerRange | None = NameServerRange(OWN.address, 10000, 19999)

    def __init__(self) -> None:
        self.served: list[tuple[str, str, dict[str, str]]] = []
        self.away = False

    async def serve_tenant(self, tenant: str, cluster: str, addresses: Mapping[str, str]) -> Endpoint:
        if self.away:
            raise UnavailableError("not yet")
        self.served.append((tenant, cluster, dict(addresses)))
        return OWN


@pytest.fixture
def servers() -> FakeServers:
    return FakeServers()


@pytest.fixture
async def here(servers: FakeServers) -> AsyncIterator[World]:
    async with world() as made:
        made.below.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        made.name_servers = servers
        Addresses(made.below.store)
        yield made


def answering(here: World) -> Endpoint | None:
    found = here.below.store.find(ENDPOINT_SLICES, "dns-alpha", SYSTEM_NAMESPACE)
    if found is None:
        return None
    assert {(port["name"], port["protocol"]) for port in found["ports"]} == {("dns", "UDP"), ("dns-tcp", "TCP")}
    return Endpoint(found["endpoints"][0]["addresses"][0], found["ports"][0]["port"])


def address(here: World, name: str = "dns-alpha") -> str:
    found = here.below.store.get(SERVICES, name, SYSTEM_NAMESPACE)
    return str(found["spec"]["clusterIP"])


def api(here: World) -> str:
    return address(here, "api-alpha")


async def test_a_pod_asks_at_the_tenants_address_and_without_services_the_forwarder_answers(
    here: World, servers: FakeServers
) -> None:
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
        await here.settled()
        assert pod["spec"]["dnsPolicy"] == "None"
        assert pod["spec"]["dnsConfig"]["nameservers"] == [address(here)]
        assert pod["spec"]["dnsConfig"]["searches"] == [
            "default.svc.cluster.local",
            "svc.cluster.local",
            "cluster.local",
        ]
        assert answering(here) == FORWARDER
    assert servers.served == []


async def test_the_api_servers_name_leads_to_it_at_its_usual_port(here: World) -> None:
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
    (alias,) = pod["spec"]["hostAliases"]
    assert alias["ip"] == api(here)
    assert "kubernetes.default.svc" in alias["hostnames"]
    found = here.below.store.get(ENDPOINT_SLICES, "api-alpha", SYSTEM_NAMESPACE)
    assert found["endpoints"][0]["addresses"] == ["10.213.0.1"]
    assert found["ports"] == [{"name": "https", "protocol": "TCP", "port": 6443}]
    assert here.below.store.get(SERVICES, "api-alpha", SYSTEM_NAMESPACE)["spec"]["ports"][0]["port"] == 443
    (host,) = [v["value"] for v in pod["spec"]["containers"][0]["env"] if v["name"] == "KUBERNETES_SERVICE_HOST"]
    assert host == "10.213.0.1"


async def test_the_first_service_brings_a_name_server_that_tells_addresses_that_differ(
    here: World, servers: FakeServers
) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        before = address(here)
        serve(here)
        serve(here, "headless", clusterIP="None")
        await until(lambda: answering(here) == OWN)
        below = await until(lambda: here.below.store.find(SERVICES, "web", BELOW))
        name = "web.default.svc.cluster.local"
        await until(lambda: servers.served[-1][2].get(name) == below["spec"]["clusterIP"])
        assert servers.served[-1] == (
            "alpha",
            "local",
            {name: below["spec"]["clusterIP"], "kubernetes.default.svc.cluster.local": api(here)},
        )
        assert address(here) == before


async def test_an_external_name_of_a_service_is_told_like_the_service(here: World, servers: FakeServers) -> None:
    serve(here)
    domain = "default.svc.cluster.local"
    for name, target in (("a", f"web.{domain}"), ("b", f"a.{domain}."), ("c", f"d.{domain}"), ("d", f"c.{domain}")):
        serve(here, name, type="ExternalName", clusterIP="", externalName=target)
    serve(here, "out", type="ExternalName", clusterIP="", externalName="web.beta--default.svc.cluster.local")
    here.create()
    async with here.gateway():
        await until(lambda: servers.served and f"web.{domain}" in servers.served[-1][2])
        told = servers.served[-1][2]
    assert told.keys() == {f"web.{domain}", f"a.{domain}", f"b.{domain}", "kubernetes.default.svc.cluster.local"}
    assert told[f"web.{domain}"] == told[f"a.{domain}"] == told[f"b.{domain}"]


async def test_a_name_server_that_does_not_answer_yet_leaves_the_forwarder(here: World, servers: FakeServers) -> None:
    servers.away = True
    serve(here)
    here.create()
    async with here.gateway():
        await here.forwarded()
        await until(lambda: here.below.store.find(SERVICES, "web", BELOW))
        await here.settled()
        assert answering(here) == FORWARDER
        servers.away = False
        await until(lambda: answering(here) == OWN)


async def test_a_restart_writes_nothing(here: World) -> None:
    serve(here)
    here.create()
    async with here.gateway():
        await until(lambda: answering(here) == OWN)
        await here.settled()
    assert await nothing_to_write(here)


async def test_as_long_as_services_are_not_known_whoever_answers_goes_on(here: World) -> None:
    serve(here)
    here.create()
    async with here.gateway():
        await until(lambda: answering(here) == OWN)
        await here.settled()
        before = writes(here)
    here.above.fail("GET", "/api/v1/services", status=503, times=1000)
    async with here.gateway() as sync:
        await until(lambda: sync.is_complete and here.link is not None and here.link.services_trusted)
        sync.enqueue_all()
        await here.settled()
        assert not sync.network.services.is_complete
        assert answering(here) == OWN
        assert writes(here) == before


async def test_what_somebody_deletes_comes_back_at_the_same_address(here: World) -> None:
    serve(here)
    here.create()
    async with here.gateway():
        await until(lambda: answering(here) == OWN)
        await here.settled()
        before = address(here)
        here.below.store.delete(SERVICES, "dns-alpha", SYSTEM_NAMESPACE)
        here.below.store.delete(ENDPOINT_SLICES, "dns-alpha", SYSTEM_NAMESPACE)
        await until(lambda: "dns-alpha" in names(here.below, SERVICES))
        await until(lambda: answering(here) == OWN)
        assert address(here) == before


async def test_a_refusal_of_a_server_that_just_started_is_not_believed(here: World) -> None:
    here.below.fail("POST", "/services", status=403, reason="Forbidden", times=2)
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
    assert pod["spec"]["dnsConfig"]["nameservers"] == [address(here)]


async def test_without_the_right_pods_run_with_their_nodes_resolver(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_names, "_PATIENCE", 0.0)
    fault = here.below.fail("POST", "/services", status=403, reason="Forbidden", times=100)
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
        here.create("another")
        await here.forwarded("another")
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert fault.hits == 1


async def test_a_strangers_service_of_that_name_is_left_alone(here: World) -> None:
    document = {"metadata": {"name": "dns-alpha", "labels": {TENANT_LABEL: "beta"}}, "spec": {"ports": []}}
    here.below.store.create(SERVICES, document, SYSTEM_NAMESPACE)
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
        link = here.link
        assert link is not None
        await remove_names(link, "alpha")
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert here.below.store.find(SERVICES, "dns-alpha", SYSTEM_NAMESPACE) is not None


async def test_a_tenant_that_goes_takes_its_names_along(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        link = here.link
        assert link is not None
        await here.leave()
        await remove_names(link, "alpha")
        await remove_names(link, "alpha")
    assert here.below.store.all(ENDPOINT_SLICES) == []
    assert here.below.store.all(SERVICES) == []
