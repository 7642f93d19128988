"""The same cluster address above and below, where the tenant has a range of its own; where not, names lead on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes import addresses
from tests.fakes.addresses import Addresses
from tests.unit.sync.network.test_names import FakeServers, address, answering, api
from tests.unit.sync.network.test_services import below, nothing_to_write, serve
from tests.unit.sync.world import World, compute_node, until, world
from vkgateway.kube.resources import NAMESPACES, NODES, SERVICE_CIDRS, SERVICES
from vkgateway.model.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.sync.network import name_service
from vkgateway.sync.teardown import remove_tenant

RANGE = "10.160.16.0/20"
OURS = "vkgateway-alpha"


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.below.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        made.service_range = RANGE
        made.name_servers = FakeServers()
        Addresses(made.below.store)
        yield made


def served(here: World) -> list[tuple[str, str, dict[str, str]]]:
    assert isinstance(here.name_servers, FakeServers)
    return here.name_servers.served


def cluster_ip(here: World, name: str = "web") -> str:
    return str((below(here, name) or {"spec": {}})["spec"].get("clusterIP", ""))


async def reason(here: World, reason: str) -> str:
    found: list[str] = await until(lambda: [words for said, words in here.events() if said == reason])
    return found[0]


async def test_a_service_has_the_same_address_below_and_dns_tells_no_other(here: World) -> None:
    serve(here, clusterIP="10.160.17.7")
    serve(here, "kubernetes", clusterIP="10.160.16.1")
    here.create()
    async with here.gateway():
        await until(lambda: cluster_ip(here) == "10.160.17.7")
        await until(lambda: served(here))
        await here.settled()
    found = here.below.store.get(SERVICE_CIDRS, OURS)
    assert found["spec"] == {"cidrs": [RANGE]}
    assert found["metadata"]["labels"] == {TENANT_LABEL: "alpha"}
    assert served(here)[-1][2] == {}
    assert address(here) == "10.160.16.10"


async def test_a_compute_cluster_that_is_starting_has_no_other_address_for_it(here: World) -> None:
    """A Service keeps the address that it was born with."""
    starting = here.below.fail("POST", "/servicecidrs", status=403, reason="Forbidden")
    starting.message = f'servicecidrs "{OURS}" is forbidden: not yet ready to handle request'
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway():
        await until(lambda: cluster_ip(here))
    assert starting.hits == 1
    assert cluster_ip(here) == "10.160.17.7"


async def test_a_pod_finds_the_api_server_at_the_address_that_its_service_shows(here: World) -> None:
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
    assert api(here) == "10.160.16.1"
    env = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert (env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]) == ("10.160.16.1", "443")
    assert env["KUBERNETES_PORT_443_TCP"] == "tcp://10.160.16.1:443"
    assert pod["spec"]["hostAliases"][0]["ip"] == "10.160.16.1"
    assert pod["spec"]["dnsConfig"]["nameservers"] == ["10.160.16.10"]


async def test_it_works_where_nobody_answers_for_names(here: World) -> None:
    here.name_servers = None
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
        await until(lambda: cluster_ip(here) == "10.160.17.7")
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert pod["spec"]["hostAliases"][0]["ip"] == api(here) == "10.160.16.1"


async def test_a_pod_waits_until_its_namespaces_services_are_below(here: World) -> None:
    for number in range(20):
        serve(here, f"s{number}", clusterIP=f"10.160.17.{number + 1}")
    here.create(enableServiceLinks=True)
    async with here.gateway():
        await here.forwarded()
        assert all(cluster_ip(here, f"s{number}") for number in range(20))


async def test_a_service_that_cannot_be_made_holds_no_pod_up(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_service, "_PATIENCE", 0.0)
    here.below.fail("POST", "/services", status=403, reason="Forbidden", times=1000)
    serve(here, clusterIP="10.160.17.7")
    here.create(enableServiceLinks=True)
    async with here.gateway():
        await here.forwarded()
        await reason(here, "ForwardingRefused")


async def test_many_pods_at_once_make_what_they_need_once(here: World) -> None:
    for number in range(12):
        here.create(f"p{number}")
    async with here.gateway():
        pods = [await here.forwarded(f"p{number}") for number in range(12)]
    assert {tuple(pod["spec"]["dnsConfig"]["nameservers"]) for pod in pods} == {("10.160.16.10",)}
    assert {pod["spec"]["hostAliases"][0]["ip"] for pod in pods} == {"10.160.16.1"}


async def test_a_service_that_is_there_unseen_has_no_stranger(here: World) -> None:
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway() as sync:
        await until(lambda: cluster_ip(here) == "10.160.17.7")
        link = here.link
        assert link is not None
        link.services.store.pop(("alpha--default", "web"), None)
        await sync.network.services.reconcile(("default", "web"), sync.links)
        await here.settled()
    assert cluster_ip(here) == "10.160.17.7"
    assert "AddressTaken" not in [reason for reason, _ in here.events()]


async def test_an_address_that_a_stranger_has_is_told_and_names_lead_to_another(here: World) -> None:
    here.below.store.create(SERVICE_CIDRS, {"metadata": {"name": "theirs"}, "spec": {"cidrs": ["10.160.17.0/28"]}})
    stranger = {"metadata": {"name": "theirs"}, "spec": {"clusterIP": "10.160.17.7"}}
    here.below.store.create(NAMESPACES, {"metadata": {"name": "theirs"}})
    here.below.store.create(SERVICES, stranger, "theirs")
    here.below.store.delete(SERVICE_CIDRS, "theirs")
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway():
        assert "10.160.17.7 is in use" in await reason(here, "AddressTaken")
        await until(lambda: cluster_ip(here).startswith("10.215."))
        name = "web.default.svc.cluster.local"
        await until(lambda: served(here) and served(here)[-1][2].get(name) == cluster_ip(here))
        await here.settled()
    assert await nothing_to_write(here)


async def test_a_service_that_was_made_anew_above_has_its_new_address_below(here: World) -> None:
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway():
        await until(lambda: cluster_ip(here) == "10.160.17.7")
    here.above.store.delete(SERVICES, "web", "default")
    serve(here, clusterIP="10.160.17.8")
    async with here.gateway():
        await until(lambda: cluster_ip(here) == "10.160.17.8")


async def test_an_address_goes_from_one_service_to_another_while_the_gateway_is_away(here: World) -> None:
    for number in range(8):
        serve(here, f"old{number}", clusterIP=f"10.160.17.{number + 1}")
    here.create()
    async with here.gateway():
        await until(lambda: all(cluster_ip(here, f"old{number}") for number in range(8)))
    for number in range(8):
        here.above.store.delete(SERVICES, f"old{number}", "default")
        serve(here, f"new{number}", clusterIP=f"10.160.17.{number + 1}")
    async with here.gateway():
        await until(lambda: all(cluster_ip(here, f"new{number}") for number in range(8)))
        await here.settled()
    assert [cluster_ip(here, f"new{number}") for number in range(8)] == [f"10.160.17.{n + 1}" for n in range(8)]
    assert "AddressTaken" not in [reason for reason, _ in here.events()]


async def test_two_services_that_swap_addresses_while_the_gateway_is_away_have_them_below(here: World) -> None:
    serve(here, "one", clusterIP="10.160.17.1")
    serve(here, "two", clusterIP="10.160.17.2")
    here.create()
    async with here.gateway():
        await until(lambda: cluster_ip(here, "one") and cluster_ip(here, "two"))
    for name in ("one", "two"):
        here.above.store.delete(SERVICES, name, "default")
    serve(here, "one", clusterIP="10.160.17.2")
    serve(here, "two", clusterIP="10.160.17.1")
    async with here.gateway():
        await until(lambda: (cluster_ip(here, "one"), cluster_ip(here, "two")) == ("10.160.17.2", "10.160.17.1"))


async def test_an_address_outside_of_its_range_is_never_asked_for(here: World) -> None:
    serve(here, clusterIP="10.215.0.10")
    here.create()
    async with here.gateway():
        await until(lambda: below(here))
    assert cluster_ip(here) != "10.215.0.10"


async def test_a_compute_cluster_without_service_cidrs_gives_other_addresses(here: World) -> None:
    for method in ("GET", "POST"):
        here.below.fail(method, "/servicecidrs", status=404, times=1000)
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway():
        pod = await here.forwarded()
        await until(lambda: cluster_ip(here).startswith("10.215."))
        await until(lambda: served(here) and "web.default.svc.cluster.local" in served(here)[-1][2])
    (host,) = [one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "KUBERNETES_SERVICE_HOST"]
    assert host == "10.213.0.1"
    assert answering(here) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.160.0.0/12"]}},
        {"metadata": {"name": OURS, "labels": {TENANT_LABEL: "beta"}}, "spec": {"cidrs": [RANGE]}},
        {"metadata": {"name": OURS, "labels": {TENANT_LABEL: "alpha"}}, "spec": {"cidrs": ["10.160.0.0/20"]}},
    ],
    ids=["overlaps", "another's", "an earlier one's"],
)
async def test_a_range_that_is_not_its_own_is_not_used(here: World, other: dict[str, Any]) -> None:
    here.below.store.create(SERVICE_CIDRS, other)
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway():
        await until(lambda: cluster_ip(here).startswith("10.215."))
    assert len(here.below.store.all(SERVICE_CIDRS)) == 1


async def test_ranges_of_pods_are_no_services(here: World) -> None:
    node = compute_node("another") | {"spec": {"podCIDRs": ["10.160.20.0/24"]}}
    here.below.store.create(NODES, node)
    serve(here, clusterIP="10.160.17.7")
    here.create()
    async with here.gateway():
        await until(lambda: cluster_ip(here).startswith("10.215."))
    assert here.below.store.all(SERVICE_CIDRS) == []


def _forget(here: World) -> None:
    """Have the compute cluster be as before the tenant came: put back from a backup, or another in its place."""
    here.below.store.delete(SERVICE_CIDRS, OURS)
    for name in ("dns-alpha", "api-alpha"):
        here.below.store.delete(SERVICES, name, SYSTEM_NAMESPACE)


def _address(here: World) -> str:
    found = here.below.store.find(SERVICES, "dns-alpha", SYSTEM_NAMESPACE) or {"spec": {}}
    return str(found["spec"].get("clusterIP", ""))


async def test_a_compute_cluster_that_forgot_the_range_is_given_it_again(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        await here.settled()
        _forget(here)
        await until(lambda: _address(here) == "10.160.16.10")
        here.create("later")
        later = await here.forwarded("later")
    assert here.below.store.find(SERVICE_CIDRS, OURS) is not None
    assert later["spec"]["dnsConfig"]["nameservers"] == ["10.160.16.10"]


async def test_a_compute_cluster_that_has_other_ranges_by_now_gives_another_address(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.service_range = ""
    here.create()
    async with here.gateway():
        await here.forwarded()
        await here.settled()
        assert address(here).startswith("10.215.0.")
        monkeypatch.setattr(addresses, "DEFAULT", "10.216.0.0/24")
        here.below.store.delete(SERVICES, "dns-alpha", SYSTEM_NAMESPACE)
        await until(lambda: _address(here).startswith("10.216.0."))
        here.create("later")
        later = await here.forwarded("later")
    assert later["spec"]["dnsConfig"]["nameservers"] == [address(here)]


async def test_a_tenant_that_goes_takes_its_range_along(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        await here.settled()
        link = here.link
        assert link is not None
        here.below.store.create(SERVICE_CIDRS, {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.1.0.0/16"]}})
        await here.leave()
        await remove_tenant(link, "alpha")
        await remove_tenant(link, "alpha")
    assert [found["metadata"]["name"] for found in here.below.store.all(SERVICE_CIDRS)] == ["kubernetes"]
