"""Waiting for a process: it serves, takes too long, or keeps exiting."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.clock import FakeClock
from vkgateway.api.errors import UnavailableError
from vkgateway.planes.supervisor import procfs
from vkgateway.planes.supervisor.client import SupervisorClient, SupervisorUnavailable
from vkgateway.planes.supervisor.spec import ProcessState
from vkgateway_platform.embedded import processes


class FakeSupervisor(SupervisorClient):
    """Returns one list per call; the last one forever."""

    def __init__(self, *answers: list[ProcessState] | SupervisorUnavailable) -> None:
        self._answers = list(answers)

    async def list_processes(self, prefix: str = "") -> "list[ProcessState]":
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, SupervisorUnavailable):
            raise answer
        return answer


def etcd(*, restarts: int = 0, reason: str = "") -> list[ProcessState]:
    return [
        ProcessState(
            name="etcd",
            state="running",
            pid=None,
            restarts=restarts,
            since=0.0,
            reason=reason,
            log="/logs/etcd.log",
            argv=("etcd",),
        )
    ]


async def wait(supervisor: SupervisorClient, *, serves_at: float = 1e9) -> float:
    clock = FakeClock()

    async def serves() -> bool:
        return clock.seconds >= serves_at

    await processes.wait_until_serving(serves, process="etcd", client=supervisor, timeout=5.0, clock=clock)
    return clock.seconds


async def test_wait_returns_when_the_process_serves() -> None:
    assert 1.0 <= await wait(FakeSupervisor(etcd()), serves_at=1.0) < 1.2


async def test_timeout_names_the_process_and_its_log() -> None:
    with pytest.raises(UnavailableError, match="etcd does not serve within 5 s") as caught:
        await wait(FakeSupervisor(etcd()))
    assert caught.value.hint == "See /logs/etcd.log."


async def test_wait_fails_for_a_process_that_keeps_exiting() -> None:
    dying = FakeSupervisor(etcd(), etcd(restarts=1), etcd(restarts=3, reason="exit 1: no space left on device"))
    with pytest.raises(UnavailableError, match="etcd keeps ending: exit 1: no space left on device"):
        await wait(dying)


async def test_old_restarts_do_not_count() -> None:
    assert await wait(FakeSupervisor(etcd(restarts=9)), serves_at=1.0) >= 1.0


LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"


def test_own_ports_are_found_for_any_path_of_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    mark = {procfs.MARK_VARIABLE: procfs.mark_value(tmp_path / "real", name="etcd")}
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], env=mark, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        held = [processes.listening_ports(tmp_path / way) for way in ("real", "link")]
        server.communicate("\n")
    assert held == [{port}, {port}]
