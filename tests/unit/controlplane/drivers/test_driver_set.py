"""Several drivers in one gateway: each tenant's calls reach the driver that runs its control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest

from tests.support.machine import patience
from tests.unit.controlplane.fakes import FakeDriver
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.driver_set import DriverSet
from vkgateway.planes.plane import tenant_plane_spec

LOCAL = ClusterIdentity("local", "uid")


class FakeNameServers:
    """Name servers at one address."""

    def __init__(self, address: str, *, listening_range: NameServerRange | None = None) -> None:
        self.address = address
        self.listening_range = listening_range
        self.kept: list[Collection[str]] = []

    async def ensure_server(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[ServerEndpoint]:
        return [ServerEndpoint(self.address, 53)]

    async def remove_stale(self, clusters: Collection[str]) -> None:
        self.kept.append(clusters)


class Listener:
    """Ignores changes."""

    def addresses_changed(self, tenant: str) -> None:
        pass

    def control_plane_changed(self, tenant: str) -> None:
        pass

    def owns_address(self, tenant: str, address: str) -> bool:
        return False

    def is_of_other_tenant(self, tenant: str, address: str) -> bool:
        return False


async def test_name_server_is_that_of_the_tenants_driver() -> None:
    shared = NameServerRange("10.0.0.1", 10000, 19999)
    near, far = FakeNameServers("10.0.0.1", listening_range=shared), FakeNameServers("10.0.0.2")
    drivers = DriverSet({"near": FakeDriver(name_servers=near), "far": FakeDriver(name_servers=far)}, default="near")
    drivers.assign("beta", "far")
    servers = drivers.name_servers
    assert servers is not None
    assert list(await servers.ensure_server("alpha", LOCAL, {})) == [ServerEndpoint("10.0.0.1", 53)]
    assert list(await servers.ensure_server("beta", LOCAL, {})) == [ServerEndpoint("10.0.0.2", 53)]
    assert servers.listening_range == shared
    await servers.remove_stale(["local"])
    assert near.kept == far.kept == [["local"]]


async def test_driver_without_name_servers_says_so() -> None:
    drivers = DriverSet(
        {"near": FakeDriver(name_servers=FakeNameServers("10.0.0.1")), "far": FakeDriver()}, default="far"
    )
    servers = drivers.name_servers
    assert servers is not None
    with pytest.raises(UnavailableError, match="the driver of tenant 'alpha' runs no name servers"):
        await servers.ensure_server("alpha", LOCAL, {})
    assert DriverSet({"far": FakeDriver()}, default="far").name_servers is None


def test_unknown_driver_is_named_with_the_enabled_ones() -> None:
    drivers = DriverSet({"near": FakeDriver(), "far": FakeDriver()}, default="near")
    assert drivers.name_for("") == "near"
    with pytest.raises(InputError, match="do not enable the driver 'other'") as caught:
        drivers.assign("alpha", "other")
    assert "far, near" in caught.value.hint


async def test_run_ends_when_no_driver_has_anything_to_report() -> None:
    drivers = DriverSet({"near": FakeDriver(), "far": FakeDriver()}, default="near")
    await asyncio.wait_for(drivers.run(Listener()), timeout=patience(5))
    await drivers.close()


async def test_stop_reaches_all_drivers_because_a_move_may_have_started_two() -> None:
    plane = tenant_plane_spec("alpha", address="10.0.0.1", port=6443, etcd_endpoints=("https://10.0.0.1:2379",))
    near, far = FakeDriver(running={"alpha": (plane, "1.36.3")}), FakeDriver(running={"alpha": (plane, "1.36.3")})
    drivers = DriverSet({"near": near, "far": far}, default="near")
    drivers.assign("alpha", "far")
    await drivers.stop("alpha")
    assert near.running == far.running == {}
    assert drivers.of("alpha") is far
