"""Client of the supervisor: start, list and stop processes; and the start of a supervisor."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Final, Protocol

import msgspec
import psutil

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.supervisor import logs, procfs, protocol
from vkgateway.planes.supervisor.procfs import GUARDIAN, SUPERVISOR, MarkedProcess, list_marked
from vkgateway.planes.supervisor.running_process import stop_marked
from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState, SupervisorPaths
from vkgateway.runtime.socket_paths import short_socket_path

__all__ = [
    "ProcessSpec",
    "ProcessState",
    "SupervisorClient",
    "SupervisorError",
    "SupervisorUnavailable",
    "start_supervisor",
    "stop_leftovers",
]

ProcessStates = list[ProcessState]  # the method `list_processes` of the client would hide the builtin

_START_SECONDS = 15.0
_POLL_SECONDS = 0.05


class SupervisorUnavailable(UnavailableError):  # noqa: N818 - named by the reason, as its siblings are
    """No supervisor answers at the socket."""


class SupervisorError(VkgatewayError):
    """The supervisor refused a request."""

    exit_code: ClassVar[int] = 1


class SupervisorClient:
    """Client of one supervisor. Each request has its own connection, so many tasks may share a client.

    Every method raises SupervisorUnavailable if no supervisor answers, and SupervisorError if it refuses the request.
    `gate` permits requests that start or stop processes; None: always.
    """

    def __init__(self, socket_path: Path, *, timeout: float = 120.0, gate: WriteGate | None = None) -> None:
        self._socket_path = socket_path
        self._timeout = timeout
        self._gate = gate

    @classmethod
    def for_data_dir(cls, data_dir: Path, *, timeout: float = 120.0) -> SupervisorClient:
        """Return the client of the supervisor of a data directory."""
        return cls(SupervisorPaths(data_dir).socket_path, timeout=timeout)

    async def ensure_process(self, spec: ProcessSpec) -> ProcessState:
        """Start the process of `spec` and keep it running.

        For an unchanged spec nothing happens, except that a process in back-off starts at once. A changed spec replaces
        the process. Returns as soon as the program has started; the caller must probe whether it serves. A program that
        cannot start is not an error: its state is `backoff` with the reason.
        """
        return (await self._send_request(protocol.Ensure(spec)))[0]

    async def remove_process(self, name: str) -> None:
        """Stop a process and all its children, and forget it; no error if there is none."""
        await self._send_request(protocol.Remove(name))

    async def remove_group(self, prefix: str) -> None:
        """Stop and forget every process at or below `prefix`, in the order of stop ranks."""
        await self._send_request(protocol.Remove(prefix, group=True))

    async def list_processes(self, prefix: str = "") -> ProcessStates:
        """Return the state of every process at or below `prefix`, by name."""
        return await self._send_request(protocol.ListProcesses(prefix))

    async def shutdown(self) -> None:
        """Stop every process in the order of stop ranks, then the supervisor, and wait for it."""
        await self._send_request(protocol.Shutdown())
        await self._wait_for_exit()

    async def _wait_for_exit(self) -> None:
        """Wait until the supervisor's lock is free; the kernel releases it at exit."""
        lock = os.open(self._socket_path.with_name("supervisor.lock"), os.O_RDWR | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(_START_SECONDS):
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        await asyncio.sleep(_POLL_SECONDS)
                    else:
                        return
        except TimeoutError as error:
            raise self._unavailable_error(error) from error
        finally:
            os.close(lock)

    async def _send_request(self, request: protocol.Request) -> ProcessStates:
        if self._gate is not None and isinstance(request, protocol.Ensure | protocol.Remove):
            self._gate.writes.check()
        try:
            async with asyncio.timeout(self._timeout):
                line = await self._exchange_lines(msgspec.json.encode(request) + b"\n")
        except (OSError, TimeoutError) as error:
            raise self._unavailable_error(error) from error
        if not line:
            raise self._unavailable_error(EOFError("it closed the connection"))
        answer = msgspec.json.decode(line, type=protocol.Answer)
        if answer.error:
            raise SupervisorError(answer.error)
        return answer.processes

    async def _exchange_lines(self, request: bytes) -> bytes:
        with short_socket_path(self._socket_path) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=protocol.LINE_LIMIT)
        try:
            writer.write(request)
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()

    def _unavailable_error(self, error: BaseException) -> SupervisorUnavailable:
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        return SupervisorUnavailable(
            f"no supervisor answers at {self._socket_path}: {why}",
            hint="Start the platform with 'vkgateway up'.",
        )


async def start_supervisor(data_dir: Path) -> SupervisorClient:
    """Return the client of the supervisor of `data_dir`; start a detached supervisor if none runs.

    Raises:
        SupervisorUnavailable: it did not start; the message has the end of its log.
    """
    client = SupervisorClient.for_data_dir(data_dir)
    try:
        await client.list_processes()
    except SupervisorUnavailable:
        await _launch_supervisor(data_dir, client)
    return client


async def _launch_supervisor(data_dir: Path, client: SupervisorClient) -> None:
    paths = SupervisorPaths(data_dir.resolve())  # noqa: ASYNC240 - once, at start
    daemon = _spawn_supervisor(paths)
    clock = asyncio.get_running_loop().time
    began = clock()
    limit = StartWait(_START_SECONDS, now=began)
    while not limit.is_over(daemon.pid, clock()):
        ended = daemon.poll()
        try:
            await client.list_processes()
        except SupervisorUnavailable:
            if ended is not None:
                break
            await asyncio.sleep(_POLL_SECONDS)
        else:
            daemon.returncode = (
                daemon.returncode or 0
            )  # the daemon keeps running, and this process does not wait for it
            return
    why = f"did not answer within {clock() - began:.0f} s" if ended is None else f"exited with code {ended}"
    log = paths.log_path("supervisor")
    line = logs.last_error_line(log)
    raise SupervisorUnavailable(
        f"the supervisor of {data_dir} {why}" + (f": {line}" if line else ""), hint=f"See {log}."
    )


def _spawn_supervisor(paths: SupervisorPaths) -> subprocess.Popen[bytes]:
    paths.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths.log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = logs.open_log(paths.log_path("supervisor"))
    try:
        return subprocess.Popen(
            paths.command_line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            cwd=paths.data_dir,
            env={**os.environ, procfs.MARK_VARIABLE: procfs.mark_value(paths.data_dir, name=procfs.SUPERVISOR)},
        )
    finally:
        os.close(log)


_ROUNDS = 5


def stop_leftovers(data_dir: Path, *, timeout: float = 10.0) -> list[str]:
    """Stop every process of this data directory, including the supervisor, found by the mark in its environment.

    Blocking. The supervisor is killed first, since it would restart the others. The processes get SIGTERM in the order
    of their stop ranks, and SIGKILL after `timeout` seconds per rank; their descendants are last. Return the names of
    the stopped processes. For a supervisor that answers, use its `shutdown`.

    Raises:
        UnavailableError: some processes cannot be killed; the call may be repeated.
    """
    data_dir = data_dir.resolve()
    names: set[str] = set()
    for _ in range(_ROUNDS):
        found = list_marked(data_dir)
        if not found:
            break
        names.update(process.name for process in found)
        if left := _stop_processes(found, timeout=timeout):
            raise _unkillable_error(left)
    paths = SupervisorPaths(data_dir)
    for file in (paths.socket_path, paths.state_path):
        file.unlink(missing_ok=True)
    return sorted(names)


def _stop_processes(found: list[MarkedProcess], *, timeout: float) -> list[MarkedProcess]:
    """Stop all processes; return those that survived."""
    left: list[MarkedProcess] = []
    for keeper in (GUARDIAN, SUPERVISOR):
        left += stop_marked([p for p in found if p.name == keeper], timeout=timeout, kill_at_once=True)
    leaders = [p for p in found if p.is_leader and p.name not in (GUARDIAN, SUPERVISOR)]
    leaders.sort(key=lambda process: process.rank, reverse=True)
    for _, rank in groupby(leaders, key=lambda process: process.rank):
        left += stop_marked(list(rank), timeout=timeout)
    return left + stop_marked([p for p in found if not p.is_leader], timeout=timeout, kill_at_once=True)


def _unkillable_error(left: list[MarkedProcess]) -> UnavailableError:
    names = ", ".join(sorted(f"{process.name} (pid {process.pid})" for process in left))
    return UnavailableError(
        f"{names} {'survives' if len(left) == 1 else 'survive'} SIGKILL: the kernel waits, most often for a disk or "
        "network share that does not answer",
        hint="Restore it, then run `vkgateway down` again to continue.",
    )


_INTERVAL: Final = 1.0
"""Seconds over which work is measured."""
_WORKING: Final = 0.05
"""Share of a core above which a process works: one that waits for another uses less."""
MOST_TIMES: Final = 10
"""However much a process works, it is waited for at most this many times as long."""


class CpuTime(Protocol):
    """How the CPU time of a process is read."""

    def __call__(self, pid: int, /) -> float | None:
        """Return the seconds of CPU time that a process has used; None if it does not exist."""


def read_cpu_time(pid: int) -> float | None:
    """Return the seconds of CPU time that a process has used; None if it does not exist."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(used.user + used.system)


class StartWait:
    """The limit of a wait for a process: `seconds` since it last worked, times in seconds of any one clock.

    On a machine that is slow or busy with other work, a sound start takes many times as long as on an idle one.
    """

    def __init__(self, seconds: float, *, now: float, cpu_time: CpuTime = read_cpu_time) -> None:
        self._seconds = seconds
        self._cpu_time = cpu_time
        self._began = self._worked = self._measured = now
        self._used: dict[int, float] = {}

    def is_over(self, pid: int | None, now: float) -> bool:
        """Return whether the process, which may be another one than before, is not waited for any longer."""
        if now - self._measured >= _INTERVAL:
            if pid is not None and self._has_worked(pid, now - self._measured):
                self._worked = now
            self._measured = now
        return now - self._worked >= self._seconds or now - self._began >= MOST_TIMES * self._seconds

    def _has_worked(self, pid: int, elapsed: float) -> bool:
        used = self._cpu_time(pid)
        before = self._used.get(pid, 0.0)
        self._used[pid] = used or 0.0
        return used is not None and used - before >= _WORKING * elapsed
