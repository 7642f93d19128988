"""Reachability of a compute cluster: it can be watched, and it answers."""

from __future__ import annotations

from typing import Final, Protocol

import structlog

from vkgateway.api.errors import VkgatewayError
from vkgateway.clusters.cluster_watches import REACHABILITY, ClusterWatches
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock

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


INTERVAL_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 2.0
"""Seconds between two probes while the server does not answer."""
_MAX_MISSED: Final = 2
"""Consecutive probes without an answer before the server counts as silent. A closing connection may lose one."""
_PATH: Final = "/version"
"""Path that every authenticated client may read, and that the server answers without its datastore."""


class HeartbeatObserver(Protocol):
    """Observer of a server's answers."""

    def set_answering(self, answering: bool, reason: str) -> None:
        """Record that the server answers again, or that it does not and why."""


class Heartbeat:
    """Probe that calls `on_change(answers, why)` when a server stops answering and when it answers again.

    The probe detects silence after 22 s at most, well before the 40 s after which Kubernetes marks a node unreachable.
    Any answer counts, a refusal too. Initially, the server is assumed to answer.
    """

    def __init__(
        self,
        client: Client,
        observer: HeartbeatObserver,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._observer = observer
        self._clock = clock
        self._missed = 0

    async def run(self) -> None:
        """Probe the server until cancelled."""
        while True:
            await self._clock.sleep(RETRY_SECONDS if self._missed else INTERVAL_SECONDS)
            await self._send_probe()

    async def _send_probe(self) -> None:
        try:
            await self._client.request("GET", _PATH, timeout=TIMEOUT_SECONDS)
        except errors.Unreachable as error:
            self._count_missed(error.message)
            return
        except errors.ApiError:
            pass
        except VkgatewayError as error:
            # No credentials are available: a token file or credential plugin fails for now.
            self._count_missed(str(error))
            return
        missed, self._missed = self._missed, 0
        if missed >= _MAX_MISSED:
            self._observer.set_answering(True, "")

    def _count_missed(self, reason: str) -> None:
        self._missed += 1
        if self._missed == _MAX_MISSED:
            self._observer.set_answering(False, reason)
