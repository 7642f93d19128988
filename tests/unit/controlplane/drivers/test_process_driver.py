"""The process driver: processes, files and logs of a tenant."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.clock import FakeClock
from tests.support.machine import patience
from tests.unit.controlplane.fakes import FakePrograms, FakeSupervisor
from tests.unit.controlplane.planes import ALPHA, AUTHORITIES, NOW, tenant_plane
from vkgateway.api.errors import ConflictError, InputError, UnavailableError
from vkgateway.api.types import ApiServerExposure
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.process.driver import ProcessDriver
from vkgateway.planes.plane import COMPONENTS, ControlPlaneSpec
from vkgateway.planes.pod_settings import PodSettings

OPENED: list[ProcessDriver] = []


@pytest.fixture(autouse=True)
async def _close_drivers() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().close()


class DriverFixture:
    """A process driver with a fake supervisor; `free` is whether its port is free."""

    def __init__(self, data_dir: Path, *, clock: FakeClock | None = None) -> None:
        self.supervisor = FakeSupervisor()
        self.programs = FakePrograms()
        self.free = True
        self.data_dir = data_dir
        self.driver = ProcessDriver(
            data_dir=data_dir,
            address="10.0.0.1",
            supervisor=self.supervisor,
            programs=self.programs,
            authorities=AUTHORITIES,
            gateway=ServerEndpoint("10.0.0.1", 10250),
            clock=clock or FakeClock(origin=NOW),
            can_bind=lambda address, port: self.free,
        )
        OPENED.append(self.driver)

    async def start(self, plane: ControlPlaneSpec) -> None:
        await self.driver.start(plane, credentials=ALPHA, version="1.36.3")
        await self.driver.start_clients(plane, version="1.36.3")


async def test_start_runs_three_processes_and_clients_stop_before_the_server(tmp_path: Path) -> None:
    fixture = DriverFixture(tmp_path)
    await fixture.start(tenant_plane())
    assert fixture.supervisor.starts == [f"tenant/alpha/{name}" for name in COMPONENTS]
    ranks = {name: fixture.supervisor.specs[f"tenant/alpha/{name}"].stop_rank for name in COMPONENTS}
    assert ranks["apiserver"] < min(ranks["scheduler"], ranks["controller-manager"])
    assert set(fixture.programs.versions) == {"1.36.3"}


async def test_second_start_restarts_nothing_while_the_api_server_uses_its_port(tmp_path: Path) -> None:
    fixture = DriverFixture(tmp_path)
    await fixture.start(tenant_plane())
    fixture.free = False
    await fixture.start(tenant_plane())
    assert len(fixture.supervisor.starts) == 3


async def test_a_template_for_several_replicas_is_refused(tmp_path: Path) -> None:
    fixture = DriverFixture(tmp_path)
    with pytest.raises(InputError, match="requests 2 replicas, and the driver process runs one"):
        await fixture.start(replace(tenant_plane(), pod=PodSettings(replicas=2)))
    assert not fixture.supervisor.starts


async def test_an_exposure_outside_the_machine_is_refused(tmp_path: Path) -> None:
    endpoints, endpoint = DriverFixture(tmp_path).driver.endpoints, ServerEndpoint("10.0.0.1", 20001)
    found = await endpoints.publish("alpha", ApiServerExposure(), previous="ClusterIP", endpoint=endpoint)
    assert not found.url
    with pytest.raises(InputError, match="the driver process has no exposure NodePort"):
        await endpoints.publish("alpha", ApiServerExposure(type="NodePort"), previous="ClusterIP", endpoint=endpoint)


async def test_start_fails_if_another_program_uses_the_port(tmp_path: Path) -> None:
    fixture = DriverFixture(tmp_path)
    fixture.free = False
    with pytest.raises(ConflictError, match=r"port 20001 at 10\.0\.0\.1.*'alpha'"):
        await fixture.start(tenant_plane())
    assert fixture.supervisor.specs == {}
    assert not (tmp_path / "tenants").exists()


async def test_failure_reason_names_the_process_and_its_exit(tmp_path: Path) -> None:
    fixture = DriverFixture(tmp_path)
    await fixture.start(tenant_plane())
    assert await fixture.driver.failure_reason(tenant_plane()) == ""
    fixture.supervisor.failing["tenant/alpha/apiserver"] = "exit 1: no such flag"
    assert "tenant/alpha/apiserver" in await fixture.driver.failure_reason(tenant_plane())
    assert "no such flag" in await fixture.driver.failure_reason(tenant_plane())


async def test_client_that_exits_before_the_server_is_ready_has_not_failed(tmp_path: Path) -> None:
    fixture = DriverFixture(tmp_path)
    await fixture.start(tenant_plane())
    fixture.supervisor.failing["tenant/alpha/controller-manager"] = "no answer within 10 s"
    assert await fixture.driver.failure_reason(tenant_plane()) == ""


async def test_start_names_a_directory_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "tenants").write_text("a file where a folder should be")
    fixture = DriverFixture(tmp_path)
    with pytest.raises(UnavailableError, match=r"'alpha' cannot be written to .*tenants/alpha"):
        await fixture.start(tenant_plane())
    assert fixture.supervisor.specs == {}


async def test_remove_deletes_processes_files_and_logs_of_one_tenant(tmp_path: Path) -> None:
    fixture = DriverFixture(tmp_path)
    await fixture.start(tenant_plane())
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("tenant.alpha.apiserver.log", "tenant.alpha.apiserver.log.1", "tenant.alpha-b.apiserver.log"):
        (logs / name).touch()
    await fixture.driver.remove("alpha")
    await fixture.driver.remove("alpha")
    assert fixture.supervisor.specs == {}
    assert not (tmp_path / "tenants" / "alpha").exists()
    assert [file.name for file in logs.iterdir()] == ["tenant.alpha-b.apiserver.log"]


async def test_remove_waits_for_a_pending_write(tmp_path: Path) -> None:
    """The thread that writes files for a tenant cannot be cancelled when the tenant is deleted."""
    begun, held = threading.Event(), threading.Event()

    class BlockingClock(FakeClock):
        def now(self) -> datetime.datetime:
            begun.set()
            assert held.wait(patience(10))
            return NOW

    fixture = DriverFixture(tmp_path, clock=BlockingClock())
    starting = asyncio.create_task(fixture.start(tenant_plane()))
    assert await asyncio.to_thread(begun.wait, patience(10))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    removing = asyncio.create_task(fixture.driver.remove("alpha"))
    await asyncio.sleep(0.05)
    held.set()
    await removing
    await asyncio.sleep(0.2)
    assert not (tmp_path / "tenants" / "alpha").exists()
