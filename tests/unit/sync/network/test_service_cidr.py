"""Same cluster IPs in both clusters if the tenant has its own range; otherwise DNS names resolve to others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes import addresses
from tests.fakes.addresses import Addresses
from tests.support.waiting import wait_until
from tests.unit.sync.network.test_name_service import FakeNameServers, api_endpoint, current_endpoint, platform_address
from tests.unit.sync.network.test_services import compute_service, create_service, wait_unchanged
from tests.unit.sync.world import World, make_node, start_world
from vkgateway.api.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.kinds.services import name_service
from vkgateway.kube.resources import NAMESPACES, NODES, SERVICE_CIDRS, SERVICES
from vkgateway.tenants.teardown import remove_tenant

RANGE = "10.160.16.0/20"
OURS = "vkgateway-alpha"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        world.service_range = RANGE
        world.name_servers = FakeNameServers()
        Addresses(world.compute_server.store)
        yield world


def served_addresses(world: World) -> list[tuple[str, str, dict[str, str]]]:
    assert isinstance(world.name_servers, FakeNameServers)
    return world.name_servers.served


def cluster_ip(world: World, name: str = "web") -> str:
    return str((compute_service(world, name) or {"spec": {}})["spec"].get("clusterIP", ""))


async def event_messages(world: World, reason: str) -> str:
    found: list[str] = await wait_until(
        lambda: [words for event_reason, words in world.events() if event_reason == reason]
    )
    return found[0]


async def test_service_has_the_same_address_in_both_clusters(world: World) -> None:
    create_service(world, clusterIP="10.160.17.7")
    create_service(world, "kubernetes", clusterIP="10.160.16.1")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: cluster_ip(world) == "10.160.17.7")
        await wait_until(lambda: served_addresses(world))
        await world.wait_settled()
    found = world.compute_server.store.get(SERVICE_CIDRS, OURS)
    assert found["spec"] == {"cidrs": [RANGE]}
    assert found["metadata"]["labels"] == {TENANT_LABEL: "alpha"}
    assert served_addresses(world)[-1][2] == {}
    assert platform_address(world) == "10.160.16.10"


async def test_starting_compute_cluster_is_waited_for(world: World) -> None:
    """A Service keeps the address of its creation."""
    starting = world.compute_server.fail("POST", "/servicecidrs", status=403, reason="Forbidden")
    starting.message = f'servicecidrs "{OURS}" is forbidden: not yet ready to handle request'
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: cluster_ip(world))
    assert starting.hits == 1
    assert cluster_ip(world) == "10.160.17.7"


async def test_pod_finds_the_api_server_at_its_service_address(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
    assert api_endpoint(world) == "10.160.16.1"
    env = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert (env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]) == ("10.160.16.1", "443")
    assert env["KUBERNETES_PORT_443_TCP"] == "tcp://10.160.16.1:443"
    assert pod["spec"]["hostAliases"][0]["ip"] == "10.160.16.1"
    assert pod["spec"]["dnsConfig"]["nameservers"] == ["10.160.16.10"]


async def test_same_addresses_without_name_servers(world: World) -> None:
    world.name_servers = None
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
        await wait_until(lambda: cluster_ip(world) == "10.160.17.7")
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert pod["spec"]["hostAliases"][0]["ip"] == api_endpoint(world) == "10.160.16.1"


async def test_pod_waits_for_the_services_of_its_namespace(world: World) -> None:
    for number in range(20):
        create_service(world, f"s{number}", clusterIP=f"10.160.17.{number + 1}")
    world.create_pod(enableServiceLinks=True)
    async with world.run_gateway():
        await world.wait_forwarded()
        assert all(cluster_ip(world, f"s{number}") for number in range(20))


async def test_refused_service_does_not_block_pods(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_service, "_REFUSAL_GRACE", 0.0)
    world.compute_server.fail("POST", "/services", status=403, reason="Forbidden", times=1000)
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod(enableServiceLinks=True)
    async with world.run_gateway():
        await world.wait_forwarded()
        await event_messages(world, "ForwardingRefused")


async def test_concurrent_pods_create_what_they_need_once(world: World) -> None:
    for number in range(12):
        world.create_pod(f"p{number}")
    async with world.run_gateway():
        pods = [await world.wait_forwarded(f"p{number}") for number in range(12)]
    assert {tuple(pod["spec"]["dnsConfig"]["nameservers"]) for pod in pods} == {("10.160.16.10",)}
    assert {pod["spec"]["hostAliases"][0]["ip"] for pod in pods} == {"10.160.16.1"}


async def test_existing_service_not_shown_yet_is_accepted(world: World) -> None:
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway() as sync:
        await wait_until(lambda: cluster_ip(world) == "10.160.17.7")
        link = world.link
        assert link is not None
        link.services.store.pop(("alpha--default", "web"), None)
        await sync.reconcilers.services.reconcile(("default", "web"))
        await world.wait_settled()
    assert cluster_ip(world) == "10.160.17.7"
    assert "AddressTaken" not in [reason for reason, _ in world.events()]


async def test_taken_address_is_reported_and_the_name_resolves_to_another(world: World) -> None:
    world.compute_server.store.create(
        SERVICE_CIDRS, {"metadata": {"name": "theirs"}, "spec": {"cidrs": ["10.160.17.0/28"]}}
    )
    stranger = {"metadata": {"name": "theirs"}, "spec": {"clusterIP": "10.160.17.7"}}
    world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "theirs"}})
    world.compute_server.store.create(SERVICES, stranger, "theirs")
    world.compute_server.store.delete(SERVICE_CIDRS, "theirs")
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway():
        assert "10.160.17.7 is in use" in await event_messages(world, "AddressTaken")
        await wait_until(lambda: cluster_ip(world).startswith("10.215."))
        name = "web.default.svc.cluster.local"
        await wait_until(
            lambda: served_addresses(world) and served_addresses(world)[-1][2].get(name) == cluster_ip(world)
        )
        await world.wait_settled()
    assert await wait_unchanged(world)


async def test_recreated_service_gets_its_new_address(world: World) -> None:
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: cluster_ip(world) == "10.160.17.7")
    world.tenant_server.store.delete(SERVICES, "web", "default")
    create_service(world, clusterIP="10.160.17.8")
    async with world.run_gateway():
        await wait_until(lambda: cluster_ip(world) == "10.160.17.8")


async def test_address_moves_between_services_during_an_outage(world: World) -> None:
    for number in range(8):
        create_service(world, f"old{number}", clusterIP=f"10.160.17.{number + 1}")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: all(cluster_ip(world, f"old{number}") for number in range(8)))
    for number in range(8):
        world.tenant_server.store.delete(SERVICES, f"old{number}", "default")
        create_service(world, f"new{number}", clusterIP=f"10.160.17.{number + 1}")
    async with world.run_gateway():
        await wait_until(lambda: all(cluster_ip(world, f"new{number}") for number in range(8)))
        await world.wait_settled()
    assert [cluster_ip(world, f"new{number}") for number in range(8)] == [f"10.160.17.{n + 1}" for n in range(8)]
    assert "AddressTaken" not in [reason for reason, _ in world.events()]


async def test_two_services_swap_addresses_during_an_outage(world: World) -> None:
    create_service(world, "one", clusterIP="10.160.17.1")
    create_service(world, "two", clusterIP="10.160.17.2")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: cluster_ip(world, "one") and cluster_ip(world, "two"))
    for name in ("one", "two"):
        world.tenant_server.store.delete(SERVICES, name, "default")
    create_service(world, "one", clusterIP="10.160.17.2")
    create_service(world, "two", clusterIP="10.160.17.1")
    async with world.run_gateway():
        await wait_until(lambda: (cluster_ip(world, "one"), cluster_ip(world, "two")) == ("10.160.17.2", "10.160.17.1"))


async def test_address_outside_the_range_is_never_requested(world: World) -> None:
    create_service(world, clusterIP="10.215.0.10")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: compute_service(world))
    assert cluster_ip(world) != "10.215.0.10"


async def test_compute_cluster_without_service_cidrs_assigns_other_addresses(world: World) -> None:
    for method in ("GET", "POST"):
        world.compute_server.fail(method, "/servicecidrs", status=404, times=1000)
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway():
        pod = await world.wait_forwarded()
        await wait_until(lambda: cluster_ip(world).startswith("10.215."))
        await wait_until(
            lambda: served_addresses(world) and "web.default.svc.cluster.local" in served_addresses(world)[-1][2]
        )
    (host,) = [one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "KUBERNETES_SERVICE_HOST"]
    assert host == "10.213.0.1"
    assert current_endpoint(world) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.160.0.0/12"]}},
        {"metadata": {"name": OURS, "labels": {TENANT_LABEL: "beta"}}, "spec": {"cidrs": [RANGE]}},
        {"metadata": {"name": OURS, "labels": {TENANT_LABEL: "alpha"}}, "spec": {"cidrs": ["10.160.0.0/20"]}},
    ],
    ids=["overlaps", "another's", "an earlier one's"],
)
async def test_foreign_range_is_not_used(world: World, other: dict[str, Any]) -> None:
    world.compute_server.store.create(SERVICE_CIDRS, other)
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: cluster_ip(world).startswith("10.215."))
    assert len(world.compute_server.store.all(SERVICE_CIDRS)) == 1


async def test_pod_ranges_are_not_used_for_services(world: World) -> None:
    node = make_node("another") | {"spec": {"podCIDRs": ["10.160.20.0/24"]}}
    world.compute_server.store.create(NODES, node)
    create_service(world, clusterIP="10.160.17.7")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: cluster_ip(world).startswith("10.215."))
    assert world.compute_server.store.all(SERVICE_CIDRS) == []


def _delete_range(world: World) -> None:
    """Delete the range, as in a cluster restored from a backup or replaced by another one."""
    world.compute_server.store.delete(SERVICE_CIDRS, OURS)
    for name in ("dns-alpha", "api-alpha"):
        world.compute_server.store.delete(SERVICES, name, SYSTEM_NAMESPACE)


def _compute_address(world: World) -> str:
    found = world.compute_server.store.find(SERVICES, "dns-alpha", SYSTEM_NAMESPACE) or {"spec": {}}
    return str(found["spec"].get("clusterIP", ""))


async def test_deleted_range_is_created_again(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await world.wait_settled()
        _delete_range(world)
        await wait_until(lambda: _compute_address(world) == "10.160.16.10")
        world.create_pod("later")
        later = await world.wait_forwarded("later")
    assert world.compute_server.store.find(SERVICE_CIDRS, OURS) is not None
    assert later["spec"]["dnsConfig"]["nameservers"] == ["10.160.16.10"]


async def test_compute_cluster_with_other_ranges_assigns_another_address(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.service_range = ""
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await world.wait_settled()
        assert platform_address(world).startswith("10.215.0.")
        monkeypatch.setattr(addresses, "DEFAULT", "10.216.0.0/24")
        world.compute_server.store.delete(SERVICES, "dns-alpha", SYSTEM_NAMESPACE)
        await wait_until(lambda: _compute_address(world).startswith("10.216.0."))
        world.create_pod("later")
        later = await world.wait_forwarded("later")
    assert later["spec"]["dnsConfig"]["nameservers"] == [platform_address(world)]


async def test_range_is_removed_with_its_tenant(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await world.wait_settled()
        link = world.link
        assert link is not None
        world.compute_server.store.create(
            SERVICE_CIDRS, {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.1.0.0/16"]}}
        )
        await world.stop_tenant()
        await remove_tenant(link, "alpha")
        await remove_tenant(link, "alpha")
    assert [found["metadata"]["name"] for found in world.compute_server.store.all(SERVICE_CIDRS)] == ["kubernetes"]
