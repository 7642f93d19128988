"""The drivers of one gateway, and which of them runs the control plane of each tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.planes.drivers.base import (
    Driver,
    DriverContext,
    DriverFactory,
    DriverListener,
    NameServers,
    ServerEndpoint,
)


class DriverSet:
    """Drivers by name; a tenant without an assignment has the default one."""

    def __init__(self, drivers: Mapping[str, Driver], *, default: str) -> None:
        self._drivers = dict(drivers)
        self._default = default
        self._assigned: dict[str, str] = {}

    def name_for(self, wanted: str) -> str:
        """Return the name of the driver that a tenant or a record names; empty means the default.

        Raises:
            InputError: the settings do not enable this driver.
        """
        name = wanted or self._default
        if name not in self._drivers:
            enabled = ", ".join(sorted(self._drivers))
            raise InputError(
                f"the settings do not enable the driver {name!r}",
                hint=f"Enabled drivers: {enabled}. Others need an entry in controlPlanes.otherDrivers.",
            )
        return name

    def named(self, name: str) -> Driver:
        """Return a driver by name; empty means the default. Raises InputError like `name_for`."""
        return self._drivers[self.name_for(name)]

    def assign(self, tenant: str, name: str) -> Driver:
        """Let a driver run the control plane of a tenant from now on, and return it."""
        self._assigned[tenant] = self.name_for(name)
        return self.of(tenant)

    def of(self, tenant: str) -> Driver:
        """Return the driver of a tenant."""
        return self._drivers[self._assigned.get(tenant, self._default)]

    async def stop(self, tenant: str) -> None:
        """Stop what all drivers run for a tenant, and keep its addresses; during a move, two drivers run it."""
        for name in sorted(self._drivers):
            await self._drivers[name].stop(tenant)

    async def remove(self, tenant: str, *, names: Collection[str] | None = None) -> None:
        """Remove what some drivers made for a tenant, by default all of them."""
        for name in sorted(self._drivers.keys() if names is None else {self.name_for(name) for name in names}):
            await self._drivers[name].remove(tenant)
        if names is None:
            self._assigned.pop(tenant, None)

    @property
    def name_servers(self) -> NameServers | None:
        """Name servers of the tenants' drivers; None if no driver has any."""
        found = [servers for driver in self._drivers.values() if (servers := driver.name_servers) is not None]
        return _DriverNameServers(self, found) if found else None

    async def run(self, listener: DriverListener) -> None:
        """Run all drivers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, driver in self._drivers.items():
                group.create_task(driver.run(listener), name=f"driver/{name}")

    async def close(self) -> None:
        for driver in self._drivers.values():
            await driver.close()


class _DriverNameServers:
    """Name servers of several drivers; implements `NameServers`."""

    def __init__(self, drivers: DriverSet, servers: Collection[NameServers]) -> None:
        self._drivers = drivers
        self._servers = servers

    @property
    def listening_range(self) -> NameServerRange | None:
        return next((one.listening_range for one in self._servers if one.listening_range is not None), None)

    async def ensure_server(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[ServerEndpoint]:
        servers = self._drivers.of(tenant).name_servers
        if servers is None:
            raise UnavailableError(f"the driver of tenant {tenant!r} runs no name servers")
        return await servers.ensure_server(tenant, cluster, addresses)

    async def remove_stale(self, clusters: Collection[str]) -> None:
        for servers in self._servers:
            await servers.remove_stale(clusters)


# To add a driver, write a package next to `process` and add its factory here.
def _create_process_driver(context: DriverContext) -> Driver:
    from vkgateway.planes.drivers.process.driver import create_driver

    return create_driver(context)


def _create_kubernetes_driver(context: DriverContext) -> Driver:
    from vkgateway.planes.drivers.kubernetes.driver import create_driver

    return create_driver(context)


DRIVERS: Mapping[str, DriverFactory] = {"kubernetes": _create_kubernetes_driver, "process": _create_process_driver}
"""Factories import their driver when they are called, so that reading the settings loads none."""


def driver_factory(name: str) -> DriverFactory:
    """Return the factory of a driver.

    Raises:
        InputError: no driver has this name; the hint lists the available ones.
    """
    if name not in DRIVERS:
        available = ", ".join(sorted(DRIVERS))
        raise InputError(f"driver {name!r} does not exist", hint=f"Available drivers: {available}.")
    return DRIVERS[name]
