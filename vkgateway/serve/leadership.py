"""Leadership of this replica: one gateway writes, the others stand by."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from vkgateway.api.errors import ConflictError, VkgatewayError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.clusters import prerequisites
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.leader_election import LeaderElector, LeaseLost, LeaseTiming
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.etcd.errors import SPACE_EXCEEDED
from vkgateway.settings.config import LeaderElection
from vkgateway.tenants import metrics

log = structlog.get_logger(__name__)

LEASE_NAME: Final = "gateway"
_SPACE_SECONDS: Final = 60.0
"""Time limit to free space in a full datastore."""
_IDLE_SECONDS: Final = 1.0
"""How long a leader that stops waits for the responses to its last writes."""


class Leadership:
    """Candidate for the leader's Lease, and its holder. `gate` is open while this replica may write.

    `management` is a separate client of the management cluster, so that no other request delays a renewal.
    """

    def __init__(
        self, management: Client, *, identity: str, settings: LeaderElection, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.gate: Final = WriteGate()
        self.problem = "waiting for the management cluster"
        """Why the state of the Lease is unknown; empty if it is known."""
        self.last_writes: Final = contextlib.AsyncExitStack()
        """Callbacks that store what this leader counted, before it stops writing. A failure is ignored."""
        self.last_logs: Final = contextlib.AsyncExitStack()
        """Callbacks that write what this leader did to its logs, before it releases its Lease."""
        self.role_known: Final = asyncio.Event()
        """Set once this replica leads or has seen another leader."""
        self.leading: Final = asyncio.Event()
        """Set once this replica leads. It never stands by again: the process ends when it loses the Lease."""
        self._management = management
        self._clock = clock
        timing = LeaseTiming(settings.lease_seconds, settings.renew_seconds, settings.retry_seconds)
        self._elector = LeaderElector(
            management,
            LEASE_NAME,
            namespace=SYSTEM_NAMESPACE,
            identity=identity,
            timing=timing,
            gate=self.gate,
            clock=clock,
        )
        metrics.LEADER.set_function(lambda: float(self.gate.is_open))
        metrics.LEASE_TRANSITIONS.set_function(self._transitions)

    @property
    def role(self) -> str:
        """The role of this replica, for people."""
        if self.gate.is_open:
            return "leader"
        holder = self._elector.holder
        if holder == self._elector.identity:
            return "leader, paused: its Lease was not renewed in time"
        return f"standby of {holder}" if holder else "standby"

    async def run(self, work: Coroutine[Any, Any, None], *, free_space: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, and set `leading` when this replica leads. When cancelled, release the Lease before `work` ends.

        An unreachable management cluster pauses writes, but ends nothing. `free_space` is called if the datastore of
        the Lease is full.

        Raises:
            ConflictError: another replica leads after this one did.
        """
        working = asyncio.create_task(work, name="replica")
        election = asyncio.create_task(self._elect(free_space), name="leader-election")
        try:
            await asyncio.wait((working, election), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self.gate.is_open and not working.done():
                await self._store()
            self.gate.close_writes()
            election.cancel()
            await asyncio.gather(election, return_exceptions=True)
            if self.gate.logs.is_valid:
                await self._finish()
            self.gate.close()
            await self._release()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        if not election.cancelled() and (lost := election.exception()) is not None:
            raise lost
        await working

    async def _elect(self, free_space: Callable[[], Awaitable[None]]) -> None:
        """Acquire the Lease and renew it. Raises ConflictError if it is lost."""
        await self._acquire(free_space)
        log.info("this gateway leads", identity=self._elector.identity)
        self.leading.set()
        self.role_known.set()
        revoking = asyncio.create_task(self._revoke_expired(), name="leader-expiry")
        try:
            await self._keep_renewing()
        finally:
            revoking.cancel()

    async def _revoke_expired(self) -> None:
        """When this replica may not write any more, discard writes that the network has not delivered."""
        while True:
            seconds = self.gate.writes.seconds_left
            if seconds <= 0:
                self.gate.writes.revoke_requests()
            await asyncio.sleep(seconds if seconds > 0 else self._elector.timing.retry)

    async def _acquire(self, free_space: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                is_acquired = await self._elector.try_acquire()
                self.problem = ""
                if is_acquired:
                    return
                self.role_known.set()
                delay = self._elector.seconds_to_retry()
            except errors.ApiError as error:
                self._report(error)
                delay = self._elector.timing.retry
                if isinstance(error, errors.NotFound):
                    await self._create_namespace()
                if SPACE_EXCEEDED in error.message:  # no other replica can lead, either
                    self.gate.upkeep.extend(self.gate.now() + _SPACE_SECONDS)
                    await free_space()
            await self._clock.sleep(delay)

    async def _keep_renewing(self) -> None:
        """Renew the Lease. Raises ConflictError if it is lost."""
        timing = self._elector.timing
        delay = timing.renew
        while True:
            await self._clock.sleep(delay)
            started, began = self._clock.monotonic(), self.gate.now()
            try:
                await self._elector.renew()
            except LeaseLost as error:
                raise ConflictError(
                    f"this gateway does not lead anymore: {error}", hint="It starts again as a standby."
                ) from error
            except errors.ApiError as error:
                self._report(error)
                self.gate.upkeep.extend(began + timing.write)
                delay = timing.retry
                continue
            self.problem = ""
            seconds = self._clock.monotonic() - started
            metrics.LEASE_RENEWAL.observe(seconds)
            delay = max(0.0, timing.renew - seconds)

    async def _finish(self) -> None:
        """Wait for the responses to the last writes, and until what was done is logged."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_SECONDS):
                await asyncio.shield(self.last_logs.aclose())
                await self.gate.writes.wait_idle(timeout=_IDLE_SECONDS)

    async def _store(self) -> None:
        """Store what was counted, for at most a second."""
        with contextlib.suppress(TimeoutError, VkgatewayError):
            async with asyncio.timeout(_IDLE_SECONDS):
                await self.last_writes.aclose()

    async def _release(self) -> None:
        try:
            await self._elector.release()
        except (errors.ApiError, LeaseLost) as error:
            log.warning("lease not released; it expires", error=str(error))

    async def _create_namespace(self) -> None:
        try:
            await prerequisites.ensure_namespace(self._management)
        except VkgatewayError as error:
            self.problem = str(error)

    def _transitions(self) -> float:
        found = self._elector.transitions
        return math.nan if found is None else float(found)

    def _report(self, error: errors.ApiError) -> None:
        """Log the first of several equal problems."""
        problem = str(error)
        if isinstance(error, errors.Forbidden):
            problem = f"no permission for the Lease {SYSTEM_NAMESPACE}/{LEASE_NAME}; apply deploy/rbac: {problem}"
        if problem != self.problem:
            log.warning("lease not available", lease=LEASE_NAME, error=problem)
        self.problem = problem
