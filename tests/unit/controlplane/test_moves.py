"""A control plane moves between drivers with its data and its CA, also after an interruption at any step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.controlplane.fakes import FakeDriver
from tests.unit.controlplane.test_provisioner import MAKING, Stopped, World, stop_at, tenant
from vkgateway.api.errors import InputError
from vkgateway.api.types import Tenant, TenantControlPlane
from vkgateway.planes.drivers.driver_set import DriverSet
from vkgateway.planes.provisioner import Step


class MovingWorld(World):
    """A gateway with two drivers, of which `first` is the default."""

    def __init__(self, server: FakeApiServer, folder: Path) -> None:
        super().__init__(server, folder)
        self.first, self.second = FakeDriver(), FakeDriver(address="10.0.0.2")
        self.default = "first"

    def create_drivers(self) -> DriverSet:
        return DriverSet({"first": self.first, "second": self.second}, default=self.default)

    def running(self) -> list[str]:
        drivers = {"first": self.first, "second": self.second}
        return [name for name, driver in drivers.items() if "alpha" in driver.running]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MovingWorld]:
    async with FakeApiServer() as server:
        yield MovingWorld(server, tmp_path)


def on(driver: str) -> Tenant:
    new = tenant()
    spec = msgspec.structs.replace(new.spec, control_plane=TenantControlPlane(driver=driver))
    return msgspec.structs.replace(new, spec=spec)


async def test_move_keeps_the_credentials_and_stops_the_former_control_plane(world: MovingWorld) -> None:
    before = await world.provisioner().provision(on(""))
    after = await world.provisioner().provision(on("second"))
    assert world.running() == ["second"]
    assert (before.address, after.address) == ("10.0.0.1", "10.0.0.2")
    assert before.ca == after.ca
    record = world.store.records["alpha"]
    assert (record.driver, record.moving_to) == ("second", "")
    assert after.url in record.kubeconfig
    await world.provisioner().provision(on("first"))
    assert world.running() == ["first"]


@pytest.mark.parametrize("step", MAKING)
async def test_interrupted_move_continues(world: MovingWorld, step: Step) -> None:
    await world.provisioner().provision(on("first"))
    with pytest.raises(Stopped):
        await world.provisioner().provision(on("second"), on_step=lambda reached: stop_at(step, reached))
    made = await world.provisioner().provision(on("second"))
    assert world.running() == ["second"]
    assert made.address == "10.0.0.2"
    assert world.store.records["alpha"].driver == "second"


@pytest.mark.parametrize("step", MAKING)
async def test_interrupted_move_can_be_taken_back(world: MovingWorld, step: Step) -> None:
    before = await world.provisioner().provision(on("first"))
    with pytest.raises(Stopped):
        await world.provisioner().provision(on("second"), on_step=lambda reached: stop_at(step, reached))
    made = await world.provisioner().provision(on("first"))
    assert world.running() == ["first"]
    assert made.ca == before.ca
    assert made.address == before.address
    assert world.store.records["alpha"].moving_to == ""


async def test_former_driver_stays_in_charge_until_its_control_plane_stops(world: MovingWorld) -> None:
    drivers = world.create_drivers()
    world.create_drivers = lambda: drivers  # type: ignore[method-assign]
    await world.provisioner().provision(on("first"))
    with pytest.raises(Stopped):
        await world.provisioner().provision(on("second"), on_step=lambda reached: stop_at(Step.PROGRAMS, reached))
    assert drivers.of("alpha") is world.first
    with pytest.raises(Stopped):
        await world.provisioner().provision(on("second"), on_step=lambda reached: stop_at(Step.PROCESSES, reached))
    assert drivers.of("alpha") is world.second


async def test_restart_finds_the_control_plane_at_its_driver(world: MovingWorld) -> None:
    await world.provisioner().provision(on("second"))
    loaded = await world.provisioner().load_existing(on("second"))
    assert loaded is not None
    assert loaded.address == "10.0.0.2"


async def test_another_default_driver_moves_tenants_without_a_choice(world: MovingWorld) -> None:
    await world.provisioner().provision(on(""))
    world.default = "second"
    await world.provisioner().provision(on(""))
    assert world.running() == ["second"]


async def test_driver_that_is_not_enabled_is_refused(world: MovingWorld) -> None:
    with pytest.raises(InputError, match="do not enable the driver 'third'") as caught:
        await world.provisioner().provision(on("third"))
    assert "first, second" in caught.value.hint
    assert world.running() == []


async def test_removal_covers_a_move_that_never_finished(world: MovingWorld) -> None:
    await world.provisioner().provision(on("first"))
    with pytest.raises(Stopped):
        await world.provisioner().provision(on("second"), on_step=lambda reached: stop_at(Step.OBJECTS, reached))
    await world.provisioner().deprovision("alpha")
    assert world.running() == []
