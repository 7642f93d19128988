"""The supervisor as a process: its lock, its socket, its guardian, its signals."""

import asyncio
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import time

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.supervisor import procfs, protocol
from vkgateway.planes.supervisor.daemon import Supervisor
from vkgateway.planes.supervisor.file_limit import raise_file_limit
from vkgateway.planes.supervisor.running_process import RunningProcess
from vkgateway.planes.supervisor.spec import SupervisorPaths
from vkgateway.runtime.socket_paths import short_socket_path

_LOG = logging.getLogger(__name__)
_LOCK_SECONDS = 5.0
_ROTATE_SECONDS = 30.0
_GUARDIAN_PAUSE_SECONDS = 1.0
_FAREWELL_SECONDS = 2.0

_GUARDIAN_SCRIPT = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
os.environ[sys.argv[2]] = sys.argv[3]
os.execv(sys.argv[4], sys.argv[4:])
"""
"""Script that sleeps until the supervisor's lock is free, which means that the supervisor is dead, and starts the next
one.
"""


def take_lock(paths: SupervisorPaths) -> int | None:
    """Lock the data directory for this supervisor; return None if another one holds it too long."""
    paths.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(paths.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(0.05)
        else:
            return descriptor


async def serve(paths: SupervisorPaths) -> None:
    """Run the supervisor until a request, SIGTERM or SIGINT shuts it down."""
    supervisor = Supervisor(paths)
    loop = asyncio.get_running_loop()
    ending: set[asyncio.Task[None]] = set()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: ending.add(loop.create_task(supervisor.shutdown())))
    raise_file_limit()
    await supervisor.resume()
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = loop.create_task(_serve_connection(supervisor, reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_unix_server(connected, sock=_open_socket(paths), limit=protocol.LINE_LIMIT)
    helpers = [
        loop.create_task(_rotate_periodically(supervisor), name="rotate logs"),
        loop.create_task(_keep_guardian(paths), name="guardian"),
    ]
    _LOG.info("supervisor ready, pid %d", os.getpid())
    await supervisor.stopped.wait()
    for task in helpers:
        task.cancel()
    await asyncio.gather(*helpers, *ending, return_exceptions=True)
    server.close()
    if connections:
        await asyncio.wait(connections, timeout=_FAREWELL_SECONDS)
    paths.socket_path.unlink(missing_ok=True)


async def _serve_connection(supervisor: Supervisor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        line = await reader.readline()
        if not line:
            return
        answer = await _handle_line(supervisor, line)
        writer.write(msgspec.json.encode(answer) + b"\n")
        await writer.drain()
    except (ConnectionError, ValueError) as error:
        _LOG.warning("request dropped: %s", error)
    finally:
        writer.close()


async def _handle_line(supervisor: Supervisor, line: bytes) -> protocol.Answer:
    try:
        return await supervisor.handle_request(msgspec.json.decode(line, type=protocol.Request))
    except (msgspec.MsgspecError, VkgatewayError, OSError) as error:
        return protocol.Answer(error=str(error))
    except Exception as error:  # noqa: BLE001 - one failed request must not end the daemon
        _LOG.exception("request failed")
        return protocol.Answer(error=f"the supervisor failed: {error!r}")


def _open_socket(paths: SupervisorPaths) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    paths.socket_path.unlink(missing_ok=True)
    mask = os.umask(0o177)
    try:
        with short_socket_path(paths.socket_path) as path:
            listener.bind(path)
    finally:
        os.umask(mask)
    return listener


async def _rotate_periodically(supervisor: Supervisor) -> None:
    while True:
        await asyncio.sleep(_ROTATE_SECONDS)
        supervisor.rotate_logs()


async def _keep_guardian(paths: SupervisorPaths) -> None:
    """Keep one guardian process that starts the next supervisor if this one dies."""
    while True:
        try:
            await _run_guardian(paths)
        except OSError as error:  # for example no free processes or memory; retry later
            _LOG.error("failed to start the guardian: %s", error)
        await asyncio.sleep(_GUARDIAN_PAUSE_SECONDS)


async def _run_guardian(paths: SupervisorPaths) -> None:
    """Start a guardian, and return when it has ended."""
    child = _start_guardian(paths)
    try:
        await RunningProcess(child.pid, child=child).ended.wait()
    finally:
        child.kill()


def _start_guardian(paths: SupervisorPaths) -> subprocess.Popen[bytes]:
    successor = procfs.mark_value(paths.data_dir, name=procfs.SUPERVISOR)
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", "-c", _GUARDIAN_SCRIPT),
            *(str(paths.lock_path), procfs.MARK_VARIABLE, successor),
            *paths.command_line,
        ],
        stdin=subprocess.DEVNULL,
        env={**os.environ, procfs.MARK_VARIABLE: procfs.mark_value(paths.data_dir, name=procfs.GUARDIAN)},
        start_new_session=True,
    )
