"""Write gate: requests that change objects are sent only while this process provably leads.

The gate is checked at the moment of sending, because a process that was frozen runs its pending callbacks before it
notices that time has passed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from vkgateway.kube.errors import NotLeader

_READ_METHODS: Final = frozenset({"GET", "HEAD"})
_REVIEW_PATHS: Final = ("/apis/authentication.k8s.io/", "/apis/authorization.k8s.io/")
"""Servers answer reviews of tokens and access, and don't store them."""
_HEARTBEAT_PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/"


def boot_seconds() -> float:
    """Return seconds since the machine's start, which also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RequestInProgress(Protocol):
    """Connection that carries a request."""

    def revoke(self) -> None:
        """Close the connection, and discard what the peer has not received."""


class Permit:
    """Permission to send requests until a time of the clock `now`, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until = float("-inf")
        self._is_closed = False
        self._in_progress: set[RequestInProgress] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_valid(self) -> bool:
        """Whether requests may be sent now."""
        return not self._is_closed and self._now() < self._until

    @property
    def seconds_left(self) -> float:
        """Seconds during which requests may be sent; at most 0 if they may not."""
        return 0.0 if self._is_closed else self._until - self._now()

    def extend(self, until: float) -> None:
        """Permit requests until a time. Without effect after `close`."""
        self._until = until

    def close(self) -> None:
        """Permit no request anymore."""
        self._is_closed = True

    def check(self) -> None:
        """Raise NotLeader unless requests may be sent now."""
        if not self.is_valid:
            raise self.refusal()

    def refusal(self) -> NotLeader:
        """Return the error of a request that may not be sent."""
        return NotLeader("not sent: this gateway cannot prove that it leads", reason="NotLeader")

    async def wait_idle(self, *, timeout: float) -> bool:
        """Wait until no request is in progress. Return False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def begin(self, request: RequestInProgress) -> None:
        """Note a request that is sent now, until `end`. Raises NotLeader."""
        self.check()
        self._in_progress.add(request)
        self._idle.clear()

    def end(self, request: RequestInProgress) -> None:
        """Note the end of a request."""
        self._in_progress.discard(request)
        if not self._in_progress:
            self._idle.set()

    def revoke_requests(self) -> None:
        """Take back the requests in progress, as far as their bytes have not arrived: the permission has expired."""
        for request in tuple(self._in_progress):
            request.revoke()


class WriteGate:
    """Permissions of a process that may lead. Each renewal of its Lease extends them.

    `upkeep` is for heartbeats of virtual nodes and the space of the datastore. These requests are harmless if two
    processes send them, and go on while the management cluster is unavailable. They stop, too, if this process was
    frozen. `logs` is for what the leader did: after `close_writes`, it is valid until `close`.
    """

    def __init__(self, now: Callable[[], float] = boot_seconds) -> None:
        self.now: Final = now
        self.writes: Final = Permit(now)
        self.upkeep: Final = Permit(now)
        self.logs: Final = Permit(now)

    @property
    def is_open(self) -> bool:
        """Whether this process may write now."""
        return self.writes.is_valid

    def extend(self, until: float) -> None:
        """Permit all requests until a time."""
        for permit in (self.writes, self.upkeep, self.logs):
            permit.extend(until)

    def close_writes(self) -> None:
        """Permit no request anymore."""
        self.writes.close()
        self.upkeep.close()

    def close(self) -> None:
        """Permit nothing anymore."""
        self.close_writes()
        self.logs.close()

    def permit_for(self, method: str, path: str) -> Permit | None:
        """Return the permission that a request to an API server needs; None if it changes no object."""
        if method in _READ_METHODS or path.startswith(_REVIEW_PATHS):
            return None
        return self.upkeep if path.startswith(_HEARTBEAT_PATH) else self.writes
