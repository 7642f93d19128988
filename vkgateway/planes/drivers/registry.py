"""The drivers of control planes, by the name that the setting `controlPlanes.driver` selects.

To add a driver, write a package next to `process` and add its factory here.
"""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.api.errors import InputError
from vkgateway.planes.drivers.base import Driver, DriverContext, DriverFactory


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
