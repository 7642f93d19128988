"""The supervised processes by name, recorded in the data directory for the next supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from typing import Protocol

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.supervisor import logs, procfs
from vkgateway.planes.supervisor.running_process import RunningProcess, adopt_process, spawn_process
from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState, State, SupervisorPaths, in_group

_LOG = logging.getLogger(__name__)


class ProcessTable:
    """Table of supervised processes and its file; a file that cannot be used is logged and is no error."""

    def __init__(self, paths: SupervisorPaths, *, backoff_first: float) -> None:
        self._paths = paths
        self._backoff_first = backoff_first
        self._processes: dict[str, SupervisedProcess] = {}

    def __getitem__(self, name: str) -> SupervisedProcess:
        return self._processes[name]

    def get(self, name: str) -> SupervisedProcess | None:
        """Return a process; None if there is none of that name."""
        return self._processes.get(name)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names at or below `prefix`, sorted; by default all names."""
        return sorted(name for name in self._processes if in_group(name, prefix))

    def add(self, record: ProcessRecord) -> SupervisedProcess:
        """Add a process that is not started yet; a process of the same name is replaced."""
        process = SupervisedProcess(record, paths=self._paths, store=self, backoff=Backoff(first=self._backoff_first))
        self._processes[record.spec.name] = process
        return process

    def remove(self, name: str) -> None:
        """Remove a process; `save` records it."""
        del self._processes[name]

    def clear(self) -> None:
        """Remove all processes; `save` records it."""
        self._processes.clear()

    def load_records(self) -> list[ProcessRecord]:
        """Return the records of an earlier supervisor."""
        try:
            return load_records(self._paths)
        except (msgspec.MsgspecError, VkgatewayError, OSError) as error:
            _LOG.error("%s cannot be used: %s", self._paths.state_path, error)
            return []

    def save(self) -> None:
        """Record all processes."""
        try:
            save_records(self._paths, [process.record for process in self._processes.values()])
        except OSError as error:
            _LOG.error("%s cannot be written: %s", self._paths.state_path, error)


class ProcessRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A requested process. `pid` and `started` (clock ticks since boot) are 0 while it does not run."""

    spec: ProcessSpec
    pid: int = 0
    started: int = 0
    restarts: int = 0
    since: float = 0.0
    reason: str = ""
    log_start: int = 0
    """Length of its log in bytes at the last start."""


class StateFile(msgspec.Struct, kw_only=True):
    """Content of the file."""

    version: int = 1
    processes: list[ProcessRecord] = []


def load_records(paths: SupervisorPaths) -> list[ProcessRecord]:
    """Return the requested processes; none if there is no file.

    Raises:
        msgspec.MsgspecError: the file is damaged, or from another version of this program.
        OSError: the file is not readable.
    """
    try:
        data = paths.state_path.read_bytes()
    except FileNotFoundError:
        return []
    state = msgspec.json.decode(data, type=StateFile)
    if state.version != 1:
        raise msgspec.ValidationError(f"version {state.version} is not 1")
    return state.processes


def save_records(paths: SupervisorPaths, records: list[ProcessRecord]) -> None:
    """Replace the file atomically; an empty list deletes it."""
    if not records:
        paths.state_path.unlink(missing_ok=True)
        return
    new = paths.state_path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(StateFile(processes=records)))
    os.chmod(new, 0o600)
    new.replace(paths.state_path)


_SETTLE_SECONDS = 1.0


@dataclass(slots=True)
class Backoff:
    """Pauses between restarts: they double from `first` to `longest` seconds, and reset after `healthy` seconds."""

    first: float = 0.2
    longest: float = 30.0
    healthy: float = 30.0
    _next: float = 0.0

    def next_pause(self, *, lived: float) -> float:
        """Return the pause in seconds after a run of `lived` seconds."""
        if lived >= self.healthy:
            self._next = 0.0
        pause = max(self._next, self.first)
        self._next = min(pause * 2, self.longest)
        return pause


class RecordStore(Protocol):
    """Where the records of processes are kept."""

    def save(self) -> None:
        """Save the records, of which a value (pid, restarts, reason) has changed."""


class SupervisedProcess:
    """Keeps the process of `spec` running until `stop`, and its record in `store` up to date."""

    def __init__(
        self,
        record: ProcessRecord,
        *,
        paths: SupervisorPaths,
        store: RecordStore,
        backoff: Backoff | None = None,
    ) -> None:
        self.record = record
        self._paths = paths
        self._store = store
        self._backoff = backoff or Backoff()
        self._running: RunningProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._start_event = asyncio.Event()
        self.is_stopping = False
        """Whether the process is being stopped, and is not restarted any more."""
        self._next_start: float | None = None

    @property
    def spec(self) -> ProcessSpec:
        return self.record.spec

    def start(self, found: procfs.MarkedProcess | None = None) -> None:
        """Start the process, or adopt `found`, and watch it."""
        running = adopt_process(found) if found is not None else None
        if running is not None:
            self._running = running
            self.record.pid, self.record.started = running.pid, running.started
            self.record.since = self.record.since or time.time()
        else:
            self._spawn_process()
        self._task = asyncio.create_task(self._keep_running(), name=f"supervise {self.spec.name}")
        self._task.add_done_callback(_report_failure)

    def start_now(self) -> None:
        """Start the process at once if it is in back-off."""
        if self._next_start is not None:
            self._start_event.set()

    async def stop(self) -> None:
        """Stop the process and its group, but not its descendants in other sessions. May be repeated.

        Raises:
            VkgatewayError: the process survives SIGKILL.
        """
        self.is_stopping = True
        self.record.since = time.time()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._running is not None:
            if not await self._running.terminate(timeout=self.spec.stop_timeout):
                raise VkgatewayError(f"{self.spec.name} (pid {self._running.pid}) survives SIGKILL")
            self._running = None

    def current_state(self) -> ProcessState:
        return ProcessState(
            name=self.spec.name,
            state=self._state_name(),
            pid=self._running.pid if self._running else None,
            restarts=self.record.restarts,
            since=self.record.since,
            reason=self.record.reason,
            log=str(self._paths.log_path(self.spec.name)),
            argv=self.spec.argv,
        )

    def _state_name(self) -> State:
        if self.is_stopping:
            return "stopping"
        if self._running is None:
            return "backoff"
        return "running" if time.time() - self.record.since >= _SETTLE_SECONDS else "starting"

    def _spawn_process(self) -> None:
        """Start the program; a failure is only recorded, and `_keep_running` retries later."""
        self.record.log_start = logs.log_size(self._paths.log_path(self.spec.name))
        self.record.since = time.time()
        try:
            self._running = spawn_process(self.spec, paths=self._paths)
        except OSError as error:
            self._record_end(f"cannot start {error.filename or self.spec.argv[0]}: {error.strerror}")
            return
        self.record.pid, self.record.started = self._running.pid, self._running.started
        _LOG.info("%s started, pid %d", self.spec.name, self._running.pid)
        self._store.save()

    async def _keep_running(self) -> None:
        while True:
            lived = 0.0
            if self._running is not None:
                await self._running.ended.wait()
                lived = time.time() - self.record.since
                self._record_end(self._exit_reason(lived))
            await self._wait_pause(self._backoff.next_pause(lived=lived))
            self.record.restarts += 1
            self._spawn_process()

    async def _wait_pause(self, seconds: float) -> None:
        self._start_event.clear()
        self.record.since = time.time()
        self._next_start = self.record.since + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._start_event.wait()
        except TimeoutError:
            pass
        finally:
            self._next_start = None

    def _exit_reason(self, lived: float) -> str:
        assert self._running is not None
        line = logs.last_error_line(self._paths.log_path(self.spec.name), since=self.record.log_start)
        return f"{self._running.exit_text} after {_format_span(lived)}" + (f": {line}" if line else "")

    def _record_end(self, reason: str) -> None:
        _LOG.warning("%s: %s", self.spec.name, reason)
        self._running = None
        self.record.pid = self.record.started = 0
        self.record.reason = reason
        self._store.save()


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s failed", task.get_name(), exc_info=error)


def _format_span(seconds: float) -> str:
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
