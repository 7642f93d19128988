"""Reachability of a compute cluster: it can be watched, and it answers."""

from __future__ import annotations

from typing import Final

import structlog

from vkgateway.clusters.cluster_watches import REACHABILITY, ClusterWatches
from vkgateway.clusters.heartbeat import Heartbeat
from vkgateway.kube.client import Client

log = structlog.get_logger(__name__)

_NOT_YET: Final = "not connected yet"


class Reachability:
    """Reachability of one compute cluster, from its pod watch and a heartbeat."""

    def __init__(self, name: str, client: Client, watches: ClusterWatches) -> None:
        self.is_reachable = False
        self.reason = _NOT_YET
        """Why the cluster is unreachable; empty while it is reachable."""
        self._name = name
        self._watches = watches
        self._watching = False, self.reason
        self._answering = True, ""
        self._heartbeat = Heartbeat(client, self)

    @property
    def is_judged(self) -> bool:
        """Whether the cluster has proved reachable or unreachable."""
        return self.is_reachable or self.reason != _NOT_YET

    async def run(self) -> None:
        """Probe the cluster regularly until cancelled."""
        await self._heartbeat.run()

    def set_watching(self, reachable: bool, reason: str) -> None:
        """Record whether the pod watch is established, and if not, why."""
        self._watching = reachable, reason
        self._update_reachable()

    def mark_answered(self) -> None:
        """Count the cluster as reachable because another list completed before the pod watch was established.

        The pod list takes longest, and tenants' lists need not wait for it. Afterwards, the state of the pod watch
        decides.
        """
        if not self.is_judged:
            self.set_watching(True, "")

    def mark_closed(self) -> None:
        """Count the cluster as unreachable because its watches have stopped."""
        self.is_reachable, self.reason = False, "no longer connected"

    def set_answering(self, answering: bool, reason: str) -> None:
        """See `HeartbeatObserver`."""
        self._answering = answering, reason
        self._update_reachable()

    def _update_reachable(self) -> None:
        reachable, reason = self._watching if not self._watching[0] else self._answering
        changed, self.reason = reachable != self.is_reachable, reason
        if not changed:
            return
        self.is_reachable = reachable
        log.info("compute cluster reachability", compute=self._name, reachable=reachable, why=reason)
        self._watches.notify(REACHABILITY)
