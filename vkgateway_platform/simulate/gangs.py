"""Gangs of a simulation that were submitted and have not ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vkgateway.scheduler.core.snapshot import Gang
from vkgateway_platform.simulate.usage import Usage


class SubmittedGangs:
    """Gangs in `gangs`, by tenant and with their usage. Evicted gangs return when their pods are re-created."""

    def __init__(self, gangs: dict[str, Gang], usage: Usage) -> None:
        self._gangs = gangs
        self._usage = usage
        self.on_change: Callable[[Gang], None] = lambda _gang: None
        """Called with a gang before it changes, ends or is evicted."""
        self._names: dict[str, dict[str, None]] = {}
        for gang in gangs.values():
            self._names.setdefault(gang.tenant, {})[gang.id] = None

    def of_tenant(self, tenant: str) -> list[Gang]:
        return [self._gangs[name] for name in self._names.get(tenant, ())]

    def add_gang(self, gang: Gang) -> None:
        """Add a gang at the end of the queue."""
        self._gangs[gang.id] = gang
        self._names.setdefault(gang.tenant, {})[gang.id] = None
        self._usage.replace_gang(None, gang)

    def remove_gang(self, gang: Gang) -> None:
        """Remove a gang that ended or was evicted."""
        self.on_change(gang)
        del self._gangs[gang.id], self._names[gang.tenant][gang.id]
        self._usage.replace_gang(gang, None)

    def replace_gang(self, new: Gang) -> None:
        """Replace a gang by its next state."""
        old, self._gangs[new.id] = self._gangs[new.id], new
        self.on_change(old)
        self._usage.replace_gang(old, new)

    def replace_gangs(self, changed: Mapping[str, Gang]) -> None:
        """Replace gangs by their states after a cycle: a gang may start on what another gang releases."""
        for name, gang in changed.items():
            self.on_change(self._gangs[name])
            self._usage.replace_gang(self._gangs[name], None)
            self._gangs[name] = gang
        for gang in changed.values():
            self._usage.replace_gang(None, gang)
