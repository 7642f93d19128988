"""The supervisor with real processes: restarts, changed specs, stop order, adoption, leftovers."""

import asyncio
import errno
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.api.errors import InputError, UnavailableError, VkgatewayError
from vkgateway.kube.errors import NotLeader
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.supervisor import procfs, running_process, server
from vkgateway.planes.supervisor.client import (
    SupervisorClient,
    SupervisorUnavailable,
    start_supervisor,
    stop_leftovers,
)
from vkgateway.planes.supervisor.protocol import ListProcesses, Remove
from vkgateway.planes.supervisor.server import Supervisor
from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState, SupervisorPaths


def spec(name: str, script: str, *, stop_rank: int = 50, stop_timeout: float = 5.0) -> ProcessSpec:
    return ProcessSpec(name=name, argv=("sh", "-c", script), stop_rank=stop_rank, stop_timeout=stop_timeout)


def names_alive(data_dir: Path) -> list[str]:
    return sorted(process.name for process in procfs.list_marked(data_dir))


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    paths = SupervisorPaths(tmp_path)
    paths.run_dir.mkdir()
    supervisor = Supervisor(paths, backoff_first=0.02)
    yield supervisor
    await supervisor.shutdown()
    assert names_alive(tmp_path) == [], "nothing outlives a shutdown"
    assert not paths.state_path.exists()


async def state(supervisor: Supervisor, name: str) -> ProcessState:
    return await supervisor.ensure_process(supervisor.processes[name].spec)


async def test_exited_process_is_restarted_with_a_reason(supervisor: Supervisor, tmp_path: Path) -> None:
    script = "if mkdir again; then echo 'Error: no luck' >&2; exit 3; fi; exec sleep 100"
    first = await supervisor.ensure_process(spec("a/b", script))
    process = supervisor.processes["a/b"]
    await wait_until(lambda: process.current_state().restarts == 1 and process.current_state().pid is not None)
    now = process.current_state()
    assert now.pid != first.pid
    assert now.state == "starting"
    assert re.fullmatch(r"exit code 3 after \d+(\.\d)? s: Error: no luck", now.reason)
    assert Path(now.log) == tmp_path / "logs" / "a.b.log"


async def test_reason_names_the_signal(supervisor: Supervisor) -> None:
    first = await supervisor.ensure_process(spec("a", "exec sleep 100"))
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    process = supervisor.processes["a"]
    await wait_until(lambda: process.current_state().restarts == 1)
    assert process.current_state().reason.startswith("killed by SIGKILL after")


async def test_process_that_cannot_start_is_in_backoff_with_a_reason(supervisor: Supervisor) -> None:
    found = await supervisor.ensure_process(ProcessSpec(name="a", argv=("/no/such/program",)))
    assert found.state == "backoff"
    assert found.pid is None
    assert found.reason == "cannot start /no/such/program: No such file or directory"


async def test_unchanged_spec_changes_nothing(supervisor: Supervisor) -> None:
    first = await supervisor.ensure_process(spec("a", "exec sleep 100"))
    again = await supervisor.ensure_process(spec("a", "exec sleep 100"))
    assert again.pid == first.pid
    assert again.restarts == 0


async def test_changed_spec_replaces_the_process(supervisor: Supervisor) -> None:
    first = await supervisor.ensure_process(spec("a", "exec sleep 100"))
    changed = await supervisor.ensure_process(spec("a", "exec sleep 200"))
    assert changed.pid != first.pid
    assert first.pid is not None
    assert procfs.start_ticks(first.pid) is None, "the old process ends before the new one starts"


async def test_second_request_ends_the_backoff(tmp_path: Path) -> None:
    paths = SupervisorPaths(tmp_path)
    paths.run_dir.mkdir()
    supervisor = Supervisor(paths, backoff_first=1000.0)
    wanted = spec("a", "mkdir once && exit 1; exec sleep 100")
    await supervisor.ensure_process(wanted)
    process = supervisor.processes["a"]
    await wait_until(lambda: process.current_state().state == "backoff")
    await supervisor.ensure_process(wanted)
    await wait_until(lambda: process.current_state().pid is not None)
    await supervisor.shutdown()


async def test_higher_stop_ranks_stop_first(supervisor: Supervisor, tmp_path: Path) -> None:
    for name, rank in (("store", 10), ("server", 20), ("agent", 30)):
        script = f"trap 'echo {name} >> {tmp_path}/order; exit 0' TERM; echo up; while :; do sleep 0.01; done"
        await supervisor.ensure_process(spec(name, script, stop_rank=rank))
        log = tmp_path / "logs" / f"{name}.log"
        await wait_until(lambda log=log: log.exists() and log.read_text() == "up\n")  # type: ignore[misc]
    await supervisor.shutdown()
    assert (tmp_path / "order").read_text().split() == ["agent", "server", "store"]


async def test_process_that_ignores_sigterm_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.ensure_process(
        spec("deaf", "trap '' TERM; echo up; while :; do sleep 0.01; done", stop_timeout=0.1)
    )
    await wait_until(lambda: (tmp_path / "logs" / "deaf.log").read_text() == "up\n")
    await supervisor.handle_request(Remove("deaf"))
    assert names_alive(tmp_path) == []


async def test_children_in_other_sessions_are_killed_with_a_removed_process(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    await supervisor.ensure_process(spec("a", "setsid sleep 100 & sleep 100 & echo up; exec sleep 100"))
    await wait_until(lambda: len(names_alive(tmp_path)) == 3)
    await supervisor.handle_request(Remove("a"))
    assert names_alive(tmp_path) == []


async def test_children_of_a_crashed_process_are_killed_with_its_group(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.ensure_process(spec("a", "mkdir once && { sleep 1000 & exit 1; }; exec sleep 100"))
    process = supervisor.processes["a"]
    await wait_until(lambda: process.current_state().restarts == 1 and process.current_state().pid is not None)
    await wait_until(lambda: [p.pid for p in procfs.list_marked(tmp_path)] == [process.current_state().pid])


async def test_remove_group_stops_only_that_group(supervisor: Supervisor) -> None:
    for name in ("tenant/a/x", "tenant/a/y", "tenant/ab/x"):
        await supervisor.ensure_process(spec(name, "exec sleep 100"))
    await supervisor.handle_request(Remove("tenant/a", group=True))
    assert supervisor.processes.names() == ["tenant/ab/x"]


async def test_error_without_a_supervisor_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SupervisorUnavailable) as caught:
        await SupervisorClient.for_data_dir(tmp_path).list_processes()
    assert str(tmp_path / "run" / "supervisor.sock") in str(caught.value)
    assert "vkgateway up" in caught.value.hint


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[SupervisorClient]:
    data_dir = tmp_path / ("deep" * 30)
    data_dir.mkdir()
    client = await start_supervisor(data_dir)
    yield client
    await asyncio.to_thread(stop_leftovers, data_dir, timeout=1.0)
    assert names_alive(data_dir) == []


def data_dir_of(client: SupervisorClient) -> Path:
    return client._socket_path.parent.parent


async def test_guardian_starts_a_supervisor_that_adopts_the_processes(client: SupervisorClient) -> None:
    kept = await client.ensure_process(spec("kept", "setsid sleep 100 & exec sleep 100"))
    data_dir = data_dir_of(client)
    await wait_until(lambda: names_alive(data_dir).count("kept") == 2)
    [keeper] = [p for p in procfs.list_marked(data_dir) if p.name == "supervisor"]
    os.kill(keeper.pid, signal.SIGKILL)
    found = await answer_after_death(client, keeper.pid)
    assert [(p.name, p.pid, p.restarts) for p in found] == [("kept", kept.pid, 0)]
    assert kept.pid is not None
    os.kill(kept.pid, signal.SIGKILL)
    async with asyncio.timeout(patience(10)):
        while (now := (await client.list_processes())[0]).restarts == 0 or now.pid is None:  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.01)
    assert now.pid != kept.pid
    assert "earlier supervisor" in now.reason


async def answer_after_death(client: SupervisorClient, pid: int) -> list[ProcessState]:
    await wait_until(lambda: procfs.start_ticks(pid) is None)
    async with asyncio.timeout(patience(10)):
        while True:
            try:
                return await client.list_processes()
            except SupervisorUnavailable:
                await asyncio.sleep(0.01)


async def test_lists_are_sent_over_the_socket(client: SupervisorClient) -> None:
    await client.ensure_process(spec("b/one", "exec sleep 100"))
    await client.ensure_process(spec("a", "exec sleep 100"))
    assert [p.name for p in await client.list_processes()] == ["a", "b/one"]
    assert [p.name for p in await client.list_processes("b")] == ["b/one"]
    await client.remove_process("nobody")
    await client.remove_group("b")
    assert [p.name for p in await client.list_processes()] == ["a"]


async def test_shutdown_leaves_no_process(client: SupervisorClient) -> None:
    await client.ensure_process(spec("a", "exec sleep 100"))
    await client.shutdown()
    data_dir = data_dir_of(client)
    assert names_alive(data_dir) == []
    with pytest.raises(SupervisorUnavailable):
        await client.list_processes()


async def test_leftover_processes_are_found_without_a_supervisor(client: SupervisorClient) -> None:
    await client.ensure_process(spec("a", "setsid sleep 100 & exec sleep 100"))
    data_dir = data_dir_of(client)
    assert await asyncio.to_thread(stop_leftovers, data_dir, timeout=1.0) == ["a", "guardian", "supervisor"]
    assert names_alive(data_dir) == []
    assert await asyncio.to_thread(stop_leftovers, data_dir) == []


async def test_process_that_survives_sigkill_is_reported_and_retried(
    client: SupervisorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await client.ensure_process(spec("a", "exec sleep 100"))
    await client.ensure_process(spec("b", "exec sleep 100", stop_rank=10))
    data_dir = data_dir_of(client)

    def send(process: procfs.MarkedProcess, number: signal.Signals) -> None:
        """Ignore signals to `a`, as if it hung in the kernel."""
        if process.name != "a":
            os.kill(process.pid, number)

    with monkeypatch.context() as hung:
        hung.setattr(running_process, "_send_signal", send)
        hung.setattr(running_process, "_KILLED_SECONDS", patience(1))  # the other ends within it
        with pytest.raises(UnavailableError, match=rf"^a \(pid {state.pid}\) survives SIGKILL") as caught:
            await asyncio.to_thread(stop_leftovers, data_dir, timeout=0.1)
        assert "vkgateway down" in caught.value.hint
        assert names_alive(data_dir) == ["a"]
    assert await asyncio.to_thread(stop_leftovers, data_dir, timeout=1.0) == ["a"]


async def test_process_that_survives_sigkill_does_not_block_others(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = await supervisor.ensure_process(spec("hung", "exec sleep 100", stop_timeout=0.1))
    await supervisor.ensure_process(spec("last", "exec sleep 100", stop_rank=10))
    signal_group = running_process.RunningProcess._signal_group

    def in_the_kernel(process: running_process.RunningProcess, number: signal.Signals) -> None:
        if process.pid != hung.pid:
            signal_group(process, number)

    message = rf"^hung \(pid {hung.pid}\) survives SIGKILL$"
    with monkeypatch.context() as kernel:
        kernel.setattr(running_process.RunningProcess, "_signal_group", in_the_kernel)
        kernel.setattr(running_process, "_KILLED_SECONDS", 0.1)
        async with asyncio.timeout(patience(10)):
            with pytest.raises(VkgatewayError, match=message):
                await supervisor.handle_request(Remove("", group=True))
            with pytest.raises(VkgatewayError, match=message):
                await supervisor.ensure_process(spec("hung", "exec sleep 200"))
        assert names_alive(tmp_path) == ["hung"], "the others are stopped"
        (found,) = (await supervisor.handle_request(ListProcesses())).processes
        assert (found.name, found.pid, found.state) == ("hung", hung.pid, "stopping")
    again = await supervisor.ensure_process(spec("hung", "exec sleep 100", stop_timeout=0.1))
    assert again.pid not in (None, hung.pid), "the same spec restarts it"


async def test_shutdown_does_not_wait_for_a_process_that_survives_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = SupervisorPaths(tmp_path)
    paths.run_dir.mkdir()
    supervisor = Supervisor(paths)
    state = await supervisor.ensure_process(spec("hung", "exec sleep 100", stop_timeout=0.1))
    assert state.pid is not None
    process = supervisor.processes["hung"]._running
    assert process is not None
    monkeypatch.setattr(running_process.RunningProcess, "_signal_group", lambda *_: None)
    monkeypatch.setattr(running_process, "_KILLED_SECONDS", 0.1)
    async with asyncio.timeout(patience(10)):
        await supervisor.shutdown()
    assert supervisor.stopped.is_set()
    assert not paths.state_path.exists()
    os.killpg(state.pid, signal.SIGKILL)
    await process.ended.wait()


async def test_second_supervisor_of_a_data_directory_is_refused(client: SupervisorClient) -> None:
    again = await start_supervisor(data_dir_of(client))
    assert await again.list_processes() == []
    assert names_alive(data_dir_of(client)).count("supervisor") == 1


async def test_supervisor_that_cannot_start_reports_why(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "supervisor.lock").mkdir()
    with pytest.raises(SupervisorUnavailable, match=r"exited with code 1: IsADirectoryError") as caught:
        await start_supervisor(tmp_path)
    assert str(tmp_path / "logs" / "supervisor.log") in caught.value.hint


async def test_missing_working_directory_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    found = await supervisor.ensure_process(ProcessSpec(name="a", argv=("true",), cwd=str(tmp_path / "none")))
    assert found.reason == f"cannot start {tmp_path}/none: No such file or directory"


def test_invalid_name_is_refused_before_the_request() -> None:
    with pytest.raises(InputError):
        spec("Bad", "true")


async def test_failed_start_of_the_guardian_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(_: SupervisorPaths) -> subprocess.Popen[bytes]:
        if not full.is_set():
            full.set()
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(subprocess.Popen(["sleep", "100"], start_new_session=True))
        return started[0]

    full = asyncio.Event()
    monkeypatch.setattr(server, "_GUARDIAN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(server, "_start_guardian", start)
    task = asyncio.create_task(server._keep_guardian(SupervisorPaths(tmp_path)))
    try:
        await wait_until(lambda: bool(started) or task.done())
        assert started
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for child in started:
            child.wait()


async def test_client_starts_and_stops_nothing_without_permission(tmp_path: Path) -> None:
    client = SupervisorClient(tmp_path / "none.sock", gate=WriteGate(lambda: 0.0))
    for refused in (client.ensure_process(spec("a", "true")), client.remove_process("a"), client.remove_group("a")):
        with pytest.raises(NotLeader):
            await refused
    with pytest.raises(SupervisorUnavailable):
        await client.list_processes()
