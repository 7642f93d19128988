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
        self.reachable = False
        self.why = _NOT_YET
        """Why it is not reachable, in words; empty while it is."""
        self._name = name
        self._on_change = on_change
        self._watching = False, self.why
        self._answering = True, ""
        self._heartbeat = Heartbeat(client, on_change=self._beats)

    @property
    def judged(self) -> bool:
        """Whether the cluster has shown by now that it can be reached, or that it cannot."""
        return self.reachable or self.why != _NOT_YET

    async def run(self) -> None:
        """Ask regularly whether it answers, until cancelled."""
        await self._heartbeat.run()

    def watches(self, reachable: bool, why: str) -> None:
        """The watch of pods stands, or does not, and why."""
        self._watching = reachable, why
        self._judge()

    def answers(self) -> None:
        """It has told something whole before the watch of pods stands, which takes longest: so it can be reached.

        Tenants' lists need not wait for that of all their pods below; whatever the watch of pods says counts then.
        """
        if not self.judged:
            self.watches(True, "")

    def end(self) -> None:
        """Nobody looks any more: what was known is no ground to act on."""
        self.reachable, self.why = False, "not connected any more"

    def _beats(self, answers: bool, why: str) -> None:
        self._answering = answers, why
        self._judge()

    def _judge(self) -> None:
        reachable, why = self._watching if not self._watching[0] else self._answering
        changed, self.why = reachable != self.reachable, why
        if not changed:
            return
        self.reachable = reachable
        log.info("compute cluster reachability", compute=self._name, reachable=reachable, why=why)
        self._on_change()
