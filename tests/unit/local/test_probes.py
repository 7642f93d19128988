"""Problems that status reports for existing processes."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from vkgateway.kube import kubeconfig
from vkgateway.kube.resources import LEASES
from vkgateway.planes.supervisor import procfs
from vkgateway.planes.supervisor.spec import ProcessState
from vkgateway_platform.embedded import probes, processes
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.options import PORTS
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import ensure_pki
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.status import platform_status

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RECORD = PlatformRecord(
    address="127.0.0.1", ports=dict(PORTS), real_node_why_not="not wanted", hollow_nodes={"a100": 1}
)


def state(name: str, pid: int | None = None) -> ProcessState:
    pid = os.getpid() if pid is None else pid
    return ProcessState(name=name, state="running", pid=pid, restarts=0, since=0.0, reason="", log="", argv=())


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    """A server that gives every caller this answer, or none; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer:
            writer.write(b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 3\r\n\r\nwhy" % answer)
        else:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.fixture
def paths(tmp_path: Path) -> PlatformPaths:
    paths = PlatformPaths(tmp_path)
    ensure_pki(paths, now=NOW)
    records.save_record(paths.record_path, RECORD)
    return paths


@contextmanager
def child(*marks: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, **({procfs.MARK_VARIABLE: marks[0]} if marks else {})}
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env=env, start_new_session=True
    ) as made:
        try:
            yield made
        finally:
            made.kill()


async def unwell(
    paths: PlatformPaths, *states: ProcessState, tenants: dict[str, str] | None = None, **ports: int
) -> Any:
    record = msgspec.structs.replace(
        RECORD, ports=dict(PORTS) | {name.replace("_", "-"): p for name, p in ports.items()}
    )
    return await probes.find_problems(states, paths=paths, record=record, tenants=tenants or {})


@pytest.mark.parametrize(
    ("answer", "problem"), [(b"200 OK", ""), (b"503 Unavailable", "503: why"), (b"", "no answer within")]
)
async def test_gateway_reports_its_health(
    paths: PlatformPaths, monkeypatch: pytest.MonkeyPatch, answer: bytes, problem: str
) -> None:
    if not answer:
        monkeypatch.setattr(probes, "PATIENCE", 0.3)
    async with answering(answer) as port:
        found = await unwell(paths, state("gateway"), gateway_health=port)
    assert bool(found) == bool(problem)
    assert problem in found.get("gateway", "")


async def test_unreachable_server_is_a_problem(paths: PlatformPaths) -> None:
    found = await unwell(paths, state("gateway"), state("etcd"), gateway_health=1, etcd=1)
    assert all(found[name].startswith("no answer: ") for name in ("gateway", "etcd"))


async def test_stopped_process_is_not_checked(paths: PlatformPaths) -> None:
    assert await unwell(paths, ProcessState(**msgspec.structs.asdict(state("gateway")) | {"pid": None})) == {}


@pytest.mark.parametrize(("answer", "is_unwell"), [(b"401 Unauthorized", False), (b"", True)])
async def test_tenants_api_server_must_answer(
    paths: PlatformPaths, monkeypatch: pytest.MonkeyPatch, answer: bytes, is_unwell: bool
) -> None:
    """The API server does not know the platform's user."""
    if is_unwell:
        monkeypatch.setattr(probes, "PATIENCE", 0.3)
    async with answering(answer) as port:
        found = await unwell(paths, state("tenant/a/apiserver"), tenants={"a": f"http://127.0.0.1:{port}"})
    assert bool(found) is is_unwell


async def test_suspended_process_is_a_problem(paths: PlatformPaths) -> None:
    with child() as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # noqa: ASYNC222 - it is stopped already
        found = await unwell(paths, state("renewal", process.pid), state("provisioner"))
    assert found == {"renewal": "it is stopped by a signal"}


@pytest.mark.parametrize(
    ("age", "problem"), [(1, ""), (60, "the last renewal was 6"), (None, "does not renew the nodes' Leases")]
)
async def test_kwok_is_healthy_if_it_renews_leases(paths: PlatformPaths, age: int | None, problem: str) -> None:
    async with FakeApiServer() as server:
        kubeconfig.write_file(paths.admin_kubeconfig, kubeconfig.build_document("compute", server=server.url, ca=""))
        if age is not None:
            renewed = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
            lease = {"metadata": {"name": "a100-0", "namespace": "kube-node-lease"}}
            server.store.create(LEASES, lease | {"spec": {"renewTime": renewed.isoformat()}})
        found = await unwell(paths, state("compute/kwok"))
    assert problem in found.get("compute/kwok", "") if problem else not found


async def test_platform_without_a_supervisor_is_not_up(paths: PlatformPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PATIENCE", patience(0.15))
    with child(procfs.mark_value(paths.data_dir.resolve(), name="gateway")) as process:
        while not procfs.list_marked(paths.data_dir.resolve()):
            time.sleep(0.01)  # noqa: ASYNC251 - until it has become another program
        [found] = processes.list_unsupervised(paths.data_dir, why="gone")
        assert (found.name, found.pid) == ("gateway", process.pid)
        seen = await platform_status(paths.data_dir)
    assert seen.state == "degraded"
    assert any("no supervisor answers" in problem for problem in seen.problems)


async def test_platform_without_processes_is_down(paths: PlatformPaths) -> None:
    assert (await platform_status(paths.data_dir)).state == "down"
