"""The supervisor: the table of processes, and the answers to requests about them."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

import msgspec

from vkgateway.model.errors import VkgatewayError
from vkgateway.programs.supervisor import logs, procfs, protocol, store
from vkgateway.programs.supervisor.process import Backoff, Supervised
from vkgateway.programs.supervisor.running import stop_marked
from vkgateway.programs.supervisor.spec import RESERVED, ProcessSpec, ProcessState, SupervisorPaths, in_group

_LOG = logging.getLogger(__name__)


class Supervisor:
    """Keeps processes running and remembers them in the data directory.

    `stopped` is set when a shutdown is complete. `backoff_first` is the first pause between restarts, in seconds.
    """

    def __init__(self, paths: SupervisorPaths, *, backoff_first: float = 0.2) -> None:
        self._paths = paths
        self._backoff_first = backoff_first
        self._processes: dict[str, Supervised] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._ending = False
        self.stopped = asyncio.Event()

    async def resume(self) -> None:
        """Take over what an earlier supervisor left: adopt, start what is missing, stop what nobody asked for."""
        found = [p for p in procfs.marked(self._paths.data_dir) if p.name not in RESERVED]
        records = self._load()
        adopted = [_recorded(record, found) for record in records]
        alive = {process.name for process in adopted if process is not None}
        known = {record.spec.name for record in records}
        strangers = [p for p in found if p.name not in known or (p.leader and p.name not in alive)]
        if strangers:
            names = ", ".join(sorted({p.name for p in strangers}))
            _LOG.warning("stopping what is left of %s", names)
            _tell_unkillable(await asyncio.to_thread(stop_marked, strangers, timeout=10.0))
        for record, process in zip(records, adopted, strict=True):
            self._add(record).start(process)

    async def answer(self, request: protocol.Request) -> protocol.Answer:
        """Do what is asked."""
        match request:
            case protocol.Ensure(spec=spec):
                return self._one(await self.ensure(spec))
            case protocol.Restart(name=name):
                return await self._restart(name)
            case protocol.Remove(name=name, group=group):
                names = [n for n in self._processes if (in_group(n, name) if group else n == name)]
                await self._stop(names)
            case protocol.ListProcesses(prefix=prefix):
                return protocol.Answer([self._processes[n].state() for n in self._names(prefix)])
            case protocol.Shutdown():
                await self.shutdown()
        return protocol.Answer()

    async def ensure(self, spec: ProcessSpec) -> ProcessState:
        """Keep `spec` running; see SupervisorClient.ensure."""
        async with self._lock(spec.name):
            if self._ending:
                raise VkgatewayError(f"the supervisor is shutting down: {spec.name} is not started")
            process = self._processes.get(spec.name)
            if process is not None and process.spec == spec and not process.stopping:
                process.wake()
                return process.state()
            if process is not None:
                await process.stop()
            process = self._add(store.Record(spec=spec))
            self._save()  # before the start: a successor must know what to do with the process it finds
            process.start()
            return process.state()

    async def shutdown(self) -> None:
        """Stop everything in order of stop rank and forget it, also what cannot be killed."""
        self._ending = True
        try:
            await self._stop(list(self._processes))
        except VkgatewayError as error:
            _LOG.error("%s", error)
        self._processes.clear()
        self._save()
        self.stopped.set()

    def rotate_logs(self) -> None:
        """Cut every log that has grown too long."""
        for name in (*self._processes, procfs.SUPERVISOR):
            with contextlib.suppress(OSError):
                if logs.rotate(self._paths.log(name)):
                    _LOG.info("log of %s rotated", name)

    async def _restart(self, name: str) -> protocol.Answer:
        async with self._lock(name):
            process = self._processes.get(name)
            if process is None or self._ending:
                return protocol.Answer(error=f"no process is called {name!r}", missing=True)
            await process.stop()
            record = process.record
            record.restarts += 1
            record.reason = "restarted on request"
            process = self._add(record)
            process.start()
            return self._one(process.state())

    async def _stop(self, names: Iterable[str]) -> None:
        """Stop and forget all of these that can be; raises VkgatewayError if one does not end, although killed."""
        left: list[BaseException] = []
        ranked = sorted(((self._processes[name].spec.stop_rank, name) for name in names), reverse=True)
        for _, rank in groupby(ranked, key=itemgetter(0)):
            together = [name for _, name in rank]
            ends = await asyncio.gather(*(self._stop_one(name) for name in together), return_exceptions=True)
            left += [end for end in ends if end is not None]
            await self._sweep(together)
        self._save()
        for failure in left:
            raise failure

    async def _stop_one(self, name: str) -> None:
        async with self._lock(name):
            process = self._processes.get(name)
            if process is not None:
                await process.stop()
                del self._processes[name]
                _LOG.info("%s stopped", name)

    async def _sweep(self, names: list[str]) -> None:
        """Kill what removed processes had started in sessions of their own (daemons, container shims)."""
        gone = [name for name in names if name not in self._processes]  # not what was asked for again meanwhile
        left = [process for process in procfs.marked(self._paths.data_dir) if process.name in gone]
        if left:
            _tell_unkillable(await asyncio.to_thread(stop_marked, left, timeout=1.0, kill_at_once=True))

    def _add(self, record: store.Record) -> Supervised:
        process = Supervised(record, paths=self._paths, changed=self._save, backoff=Backoff(first=self._backoff_first))
        self._processes[record.spec.name] = process
        return process

    def _load(self) -> list[store.Record]:
        try:
            return store.load(self._paths)
        except (msgspec.MsgspecError, VkgatewayError, OSError) as error:
            _LOG.error("%s cannot be used: %s", self._paths.state, error)
            return []

    def _save(self) -> None:
        try:
            store.save(self._paths, [process.record for process in self._processes.values()])
        except OSError as error:
            _LOG.error("%s cannot be written: %s", self._paths.state, error)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._processes if in_group(name, prefix))

    @staticmethod
    def _one(state: ProcessState) -> protocol.Answer:
        return protocol.Answer([state])


def _tell_unkillable(left: list[procfs.Marked]) -> None:
    for process in left:
        _LOG.error("%s (pid %d) does not end, although it was killed", process.name, process.pid)


def _recorded(record: store.Record, found: list[procfs.Marked]) -> procfs.Marked | None:
    """The live process of a record: the very one that was started, and from the very same spec."""
    identity = (record.pid, record.started, record.spec.digest())
    return next((p for p in found if (p.pid, p.started, p.digest) == identity), None)
