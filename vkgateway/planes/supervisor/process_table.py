"""The supervised processes by name, recorded in the data directory for the next supervisor."""

import logging

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.supervisor import state_file
from vkgateway.planes.supervisor.spec import SupervisorPaths, in_group
from vkgateway.planes.supervisor.supervised_process import Backoff, SupervisedProcess

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

    def add(self, record: state_file.ProcessRecord) -> SupervisedProcess:
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

    def load_records(self) -> list[state_file.ProcessRecord]:
        """Return the records of an earlier supervisor."""
        try:
            return state_file.load_records(self._paths)
        except (msgspec.MsgspecError, VkgatewayError, OSError) as error:
            _LOG.error("%s cannot be used: %s", self._paths.state_path, error)
            return []

    def save(self) -> None:
        """Record all processes."""
        try:
            state_file.save_records(self._paths, [process.record for process in self._processes.values()])
        except OSError as error:
            _LOG.error("%s cannot be written: %s", self._paths.state_path, error)
