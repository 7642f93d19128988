"""The supervisor as a process: its lock, its socket, its guardian, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.supervisor import logs, procfs, protocol
from vkgateway.planes.supervisor.file_limit import raise_file_limit
from vkgateway.planes.supervisor.process_table import ProcessRecord, ProcessTable
from vkgateway.planes.supervisor.running_process import RunningProcess, stop_marked
from vkgateway.planes.supervisor.spec import RESERVED, ProcessSpec, ProcessState, SupervisorPaths
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


class Supervisor:
    """Keeps the processes of its table running, and answers requests.

    `stopped` is set when a shutdown is complete. `backoff_first` is the first pause between restarts, in seconds.
    """

    def __init__(self, paths: SupervisorPaths, *, backoff_first: float = 0.2) -> None:
        self._paths = paths
        self.processes = ProcessTable(paths, backoff_first=backoff_first)
        self._locks: dict[str, asyncio.Lock] = {}
        self._shutting_down = False
        self.stopped = asyncio.Event()

    async def resume(self) -> None:
        """Take over from an earlier supervisor: adopt running processes, start missing ones, stop unknown ones."""
        found = [p for p in procfs.list_marked(self._paths.data_dir) if p.name not in RESERVED]
        records = self.processes.load_records()
        adopted = [_find_recorded(record, found) for record in records]
        alive = {process.name for process in adopted if process is not None}
        known = {record.spec.name for record in records}
        unknown = [p for p in found if p.name not in known or (p.is_leader and p.name not in alive)]
        if unknown:
            names = ", ".join(sorted({p.name for p in unknown}))
            _LOG.warning("stopping unknown processes: %s", names)
            _log_unkillable(await asyncio.to_thread(stop_marked, unknown, timeout=10.0))
        for record, process in zip(records, adopted, strict=True):
            self.processes.add(record).start(process)

    async def handle_request(self, request: protocol.Request) -> protocol.Answer:
        """Execute a request."""
        match request:
            case protocol.Ensure(spec=spec):
                return protocol.Answer([await self.ensure_process(spec)])
            case protocol.Remove(name=name, group=group):
                await self._stop_processes(n for n in self.processes.names(name) if group or n == name)
            case protocol.ListProcesses(prefix=prefix):
                return protocol.Answer([self.processes[n].current_state() for n in self.processes.names(prefix)])
            case protocol.Shutdown():
                await self.shutdown()
        return protocol.Answer()

    async def ensure_process(self, spec: ProcessSpec) -> ProcessState:
        """Start and keep running `spec`; see `SupervisorClient.ensure_process`."""
        async with self._process_lock(spec.name):
            if self._shutting_down:
                raise VkgatewayError(f"the supervisor is shutting down and does not start {spec.name}")
            process = self.processes.get(spec.name)
            if process is not None and process.spec == spec and not process.is_stopping:
                process.start_now()
                return process.current_state()
            if process is not None:
                await process.stop()
            process = self.processes.add(ProcessRecord(spec=spec))
            self.processes.save()  # saved before the start, so that a successor knows the process
            process.start()
            return process.current_state()

    async def shutdown(self) -> None:
        """Stop and forget every process in the order of stop ranks, also those that cannot be killed."""
        self._shutting_down = True
        try:
            await self._stop_processes(self.processes.names())
        except VkgatewayError as error:
            _LOG.error("%s", error)
        self.processes.clear()
        self.processes.save()
        self.stopped.set()

    def rotate_logs(self) -> None:
        """Rotate every log that is too long."""
        for name in (*self.processes.names(), procfs.SUPERVISOR):
            with contextlib.suppress(OSError):
                if logs.rotate_log(self._paths.log_path(name)):
                    _LOG.info("log of %s rotated", name)

    async def _stop_processes(self, names: Iterable[str]) -> None:
        """Stop and forget these processes. Raises VkgatewayError if one survives SIGKILL."""
        left: list[BaseException] = []
        ranked = sorted(((self.processes[name].spec.stop_rank, name) for name in names), reverse=True)
        for _, rank in groupby(ranked, key=itemgetter(0)):
            together = [name for _, name in rank]
            ends = await asyncio.gather(*(self._stop_process(name) for name in together), return_exceptions=True)
            left += [end for end in ends if end is not None]
            await self._kill_descendants(together)
        self.processes.save()
        for failure in left:
            raise failure

    async def _stop_process(self, name: str) -> None:
        async with self._process_lock(name):
            process = self.processes.get(name)
            if process is not None:
                await process.stop()
                self.processes.remove(name)
                _LOG.info("%s stopped", name)

    async def _kill_descendants(self, names: list[str]) -> None:
        """Kill descendants of removed processes in other sessions (daemons, container shims)."""
        # Names that were requested again meanwhile are excepted.
        removed = [name for name in names if self.processes.get(name) is None]
        left = [process for process in procfs.list_marked(self._paths.data_dir) if process.name in removed]
        if left:
            _log_unkillable(await asyncio.to_thread(stop_marked, left, timeout=1.0, kill_at_once=True))

    def _process_lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


def _log_unkillable(left: list[procfs.MarkedProcess]) -> None:
    for process in left:
        _LOG.error("%s (pid %d) survives SIGKILL", process.name, process.pid)


def _find_recorded(record: ProcessRecord, found: list[procfs.MarkedProcess]) -> procfs.MarkedProcess | None:
    """Return the live process of a record, if its start time and spec are the recorded ones."""
    identity = (record.pid, record.started, record.spec.short_digest())
    return next((p for p in found if (p.pid, p.started, p.digest) == identity), None)
