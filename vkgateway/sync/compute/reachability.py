"""Whether a compute cluster can be reached: it can be watched, and it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from vkgateway.kube.client import Client
from vkgateway.sync.compute.heartbeat import Heartbeat

log = structlog.get_logger(__name__)

_NOT_YET: Final = "not connected yet"


class Reachability:
    """One compute cluster's, judged by its watch of pods and by a heartbeat; `on_change()` hears of each turn."""

    def __init__(self, name: str, client: Client, *, on_change: Callable[[], None]) -> None:
        self.is_reachable = False
        self.reason = _NOT_YET
        """Why it is not reachable, in words; empty while it is."""
        self._name = name
        self._on_change = on_change
        self._watching = False, self.reason
        self._answering = True, ""
        self._heartbeat = Heartbeat(client, on_change=self._heartbeat_changed)

    @property
    def is_judged(self) -> bool:
        """Whether the cluster has shown by now that it can be reached, or that it cannot."""
        return self.is_reachable or self.reason != _NOT_YET

    async def run(self) -> None:
        """Ask regularly whether it answers, until cancelled."""
        await self._heartbeat.run()

    def set_watching(self, reachable: bool, why: str) -> None:
        """The watch of pods stands, or does not, and why."""
        self._watching = reachable, why
        self._update_reachable()

    def mark_answered(self) -> None:
        """It has told something whole before the watch of pods stands, which takes longest: so it can be reached.

        Tenants' lists need not wait for that of all their pods below; whatever the watch of pods says counts then.
        """
        if not self.is_judged:
            self.set_watching(True, "")

    def mark_closed(self) -> None:
        """Nobody looks any more: what was known is no ground to act on."""
        self.is_reachable, self.reason = False, "not connected any more"

    def _heartbeat_changed(self, answers: bool, why: str) -> None:
        self._answering = answers, why
        self._update_reachable()

    def _update_reachable(self) -> None:
        reachable, why = self._watching if not self._watching[0] else self._answering
        changed, self.reason = reachable != self.is_reachable, why
        if not changed:
            return
        self.is_reachable = reachable
        log.info("compute cluster reachability", compute=self._name, reachable=reachable, why=why)
        self._on_change()
