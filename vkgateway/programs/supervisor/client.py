"""Talking to the supervisor: ask for processes, list them, stop them; and starting it."""

import asyncio
import fcntl
import os
import subprocess
from pathlib import Path
from typing import ClassVar

import msgspec

from vkgateway.model.errors import NotFoundError, UnavailableError, VkgatewayError
from vkgateway.programs.supervisor import logs, procfs, protocol
from vkgateway.programs.supervisor.leftovers import stop_leftovers
from vkgateway.programs.supervisor.spec import ProcessSpec, ProcessState, SupervisorPaths

__all__ = [
    "ProcessSpec",
    "ProcessState",
    "SupervisorClient",
    "SupervisorError",
    "SupervisorUnavailable",
    "start_supervisor",
    "stop_leftovers",
]

ProcessStates = list[ProcessState]  # the client's own `list_processes` hides the builtin inside the class

_START_SECONDS = 15.0
_POLL_SECONDS = 0.05


class SupervisorUnavailable(UnavailableError):  # noqa: N818 - named by the reason, as its siblings are
    """No supervisor answers at the socket."""


class SupervisorError(VkgatewayError):
    """The supervisor refused a request."""

    exit_code: ClassVar[int] = 1


class SupervisorClient:
    """Requests to one supervisor; each has a connection of its own, so many tasks may share one client.

    Every method raises SupervisorUnavailable when nothing answers, SupervisorError when it is refused.
    """

    def __init__(self, socket_path: Path, *, timeout: float = 120.0) -> None:
        self._socket_path = socket_path
        self._timeout = timeout

    @classmethod
    def for_data_dir(cls, data_dir: Path, *, timeout: float = 120.0) -> "SupervisorClient":
        """The client of the supervisor that keeps the platform in `data_dir`."""
        return cls(SupervisorPaths(data_dir).socket_path, timeout=timeout)

    async def ensure_process(self, spec: ProcessSpec) -> ProcessState:
        """Keep `spec` running.

        The same spec again changes nothing, except that a process waiting to be restarted starts at once.
        A changed spec stops the old process first. Returns as soon as the program was started; whether it
        serves is the caller's to probe. A program that cannot be started is no error here: its state is
        `backoff` with the reason.
        """
        return (await self._send_request(protocol.Ensure(spec)))[0]

    async def remove_process(self, name: str) -> None:
        """Stop the process and all it started, and forget it; nothing happens if there is none."""
        await self._send_request(protocol.Remove(name))

    async def remove_group(self, prefix: str) -> None:
        """Stop and forget every process at or below `prefix`, in the order of their stop ranks."""
        await self._send_request(protocol.Remove(prefix, group=True))

    async def restart_process(self, name: str) -> ProcessState:
        """Stop the process and start it again at once.

        Raises:
            NotFoundError: no process has that name.
        """
        return (await self._send_request(protocol.Restart(name)))[0]

    async def list_processes(self, prefix: str = "") -> ProcessStates:
        """The processes at or below `prefix`, by name."""
        return await self._send_request(protocol.ListProcesses(prefix))

    async def shutdown(self) -> None:
        """Stop every process in order of stop rank, then the supervisor; returns when all that is done."""
        await self._send_request(protocol.Shutdown())
        await self._wait_for_exit()

    async def _wait_for_exit(self) -> None:
        """Wait for the supervisor to let go of its lock, which the kernel takes from it when it ends."""
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
        try:
            async with asyncio.timeout(self._timeout):
                line = await self._exchange_lines(msgspec.json.encode(request) + b"\n")
        except (OSError, TimeoutError) as error:
            raise self._unavailable_error(error) from error
        if not line:
            raise self._unavailable_error(EOFError("it hung up"))
        answer = msgspec.json.decode(line, type=protocol.Answer)
        if answer.missing:
            raise NotFoundError(answer.error)
        if answer.error:
            raise SupervisorError(answer.error)
        return answer.processes

    async def _exchange_lines(self, request: bytes) -> bytes:
        with protocol.short_socket_path(self._socket_path) as path:
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
            hint="start the platform with 'vkgateway up'",
        )


async def start_supervisor(data_dir: Path) -> SupervisorClient:
    """The client of a running supervisor for `data_dir`, which is started, detached, if there is none.

    Raises:
        SupervisorUnavailable: it did not come up; the message holds the end of its log.
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
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        ended = daemon.poll()
        try:
            await client.list_processes()
        except SupervisorUnavailable:
            if ended is not None:
                break
            await asyncio.sleep(_POLL_SECONDS)
        else:
            daemon.returncode = daemon.returncode or 0  # it goes on living, and nobody waits for it
            return
    why = f"did not answer within {_START_SECONDS:.0f} s" if ended is None else f"ended with exit code {ended}"
    log = paths.log_path("supervisor")
    line = logs.last_error_line(log)
    raise SupervisorUnavailable(
        f"the supervisor of {data_dir} {why}" + (f": {line}" if line else ""), hint=f"see {log}"
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
