"""The supervisor: its processes, and its answers to requests."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.supervisor import logs, procfs, protocol, state_file
from vkgateway.planes.supervisor.process_table import ProcessTable
from vkgateway.planes.supervisor.running_process import stop_marked
from vkgateway.planes.supervisor.spec import RESERVED, ProcessSpec, ProcessState, SupervisorPaths

_LOG = logging.getLogger(__name__)


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
        strangers = [p for p in found if p.name not in known or (p.is_leader and p.name not in alive)]
        if strangers:
            names = ", ".join(sorted({p.name for p in strangers}))
            _LOG.warning("stopping unknown processes: %s", names)
            _log_unkillable(await asyncio.to_thread(stop_marked, strangers, timeout=10.0))
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
            process = self.processes.add(state_file.ProcessRecord(spec=spec))
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


def _find_recorded(record: state_file.ProcessRecord, found: list[procfs.MarkedProcess]) -> procfs.MarkedProcess | None:
    """Return the live process of a record, if its start time and spec are the recorded ones."""
    identity = (record.pid, record.started, record.spec.short_digest())
    return next((p for p in found if (p.pid, p.started, p.digest) == identity), None)
