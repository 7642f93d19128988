"""Leases: the heartbeat of a node, and who of several replicas leads.

Whether a leader's Lease has run out is judged by how long it was seen unchanged on our own clock, as
client-go does it, so that clocks of different machines need not agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import LEASES
from vkgateway.model.objects import Meta
from vkgateway.model.times import render_micro

log = structlog.get_logger(__name__)

NODE_LEASES: Final = "kube-node-lease"
"""The namespace where the node lifecycle controller looks for heartbeats."""


class LeaseSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """`spec` of a Lease; the times are RFC 3339 with microseconds."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(msgspec.Struct, kw_only=True, rename="camel"):
    """A Lease as far as it matters here."""

    metadata: Meta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


_decode_lease: Final = msgspec.json.Decoder(Lease).decode


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


async def renew_node_lease(
    client: Client, node: str, *, now: datetime, duration: int = 40, owner_uid: str = "", timeout: float = 10
) -> None:
    """Tell the cluster that a node is alive; its Lease is made if there is none, owned by the Node
    (`owner_uid`).
    """
    spec = LeaseSpec(holder_identity=node, lease_duration_seconds=duration, renew_time=render_micro(now))
    try:
        await client.patch(LEASES, node, {"spec": spec}, namespace=NODE_LEASES, timeout=timeout)
    except errors.NotFound:
        metadata: dict[str, Any] = {"name": node, "namespace": NODE_LEASES}
        if owner_uid:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner_uid}
            metadata["ownerReferences"] = [owner]
        await client.create(LEASES, _document(metadata, spec), namespace=NODE_LEASES, timeout=timeout)


class LeaderLease:
    """One Lease that one of several replicas holds at a time.

    `identity` must differ between replicas. The holder renews every `renew_every` seconds and gives up for
    itself `duration` seconds after its last success, counted from before the request, thus before any other
    may take over.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        identity: str,
        duration: float = 15.0,
        renew_every: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._duration = duration
        self._renew_every = renew_every
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._held_until = float("-inf")
        self._seen: tuple[str, float] = "", 0.0
        """The resource version last seen, and when that was first."""

    @property
    def held(self) -> bool:
        """Whether we lead now."""
        return self._clock() < self._held_until

    async def try_hold(self) -> bool:
        """Take or renew the Lease if that is possible now; tells whether we hold it. Raises ApiError."""
        asked = self._clock()
        try:
            lease = _decode_lease(
                await self._client.get(LEASES, self._name, namespace=self._namespace, timeout=self._renew_every)
            )
        except errors.NotFound:
            took = await self._create()
        else:
            took = self._free(lease) and await self._take(lease)
        self._held_until = asked + self._duration if took else float("-inf")
        return took

    def _free(self, lease: Lease) -> bool:
        spec = lease.spec
        if spec.holder_identity in ("", self._identity):
            return True
        version, since = self._seen
        if version != lease.metadata.resource_version:
            self._seen = lease.metadata.resource_version, self._clock()
            return False
        return self._clock() >= since + max(spec.lease_duration_seconds, 1)

    async def _create(self) -> bool:
        metadata = {"name": self._name, "namespace": self._namespace}
        try:
            await self._client.create(LEASES, _document(metadata, self._spec(transitions=0)), namespace=self._namespace)
        except errors.AlreadyExists:
            return False
        return True

    async def _take(self, lease: Lease) -> bool:
        ours = lease.spec.holder_identity == self._identity
        spec = self._spec(transitions=lease.spec.lease_transitions + (0 if ours else 1))
        if ours:
            spec.acquire_time = lease.spec.acquire_time
        metadata = {
            "name": self._name,
            "namespace": self._namespace,
            "resourceVersion": lease.metadata.resource_version,
        }
        try:
            await self._client.replace(
                LEASES,
                self._name,
                _document(metadata, spec),
                namespace=self._namespace,
                timeout=self._renew_every,
            )
        except errors.Conflict:
            return False
        return True

    def _spec(self, *, transitions: int) -> LeaseSpec:
        now = render_micro(self._now())
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=max(1, round(self._duration)),
            acquire_time=now,
            renew_time=now,
            lease_transitions=transitions,
        )

    async def release(self) -> None:
        """Let another replica lead at once; without effect where we do not hold the Lease."""
        if not self.held:
            return
        self._held_until = float("-inf")
        lease = _decode_lease(await self._client.get(LEASES, self._name, namespace=self._namespace))
        if lease.spec.holder_identity == self._identity:
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": render_micro(self._now())}
            version = {"resourceVersion": lease.metadata.resource_version}
            await self._client.patch(LEASES, self._name, {"metadata": version, "spec": spec}, namespace=self._namespace)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait until we lead, then do the work until it ends; raises what it raises.

        Where the lead is lost the work is cancelled, and begun anew once we lead again.
        """
        while True:
            await self._follow()
            task = asyncio.ensure_future(work())
            try:
                await self._renew_while(task)
                if task.done() and not task.cancelled():
                    return task.result()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await self._release_quietly()

    async def _follow(self) -> None:
        """Wait until we hold the Lease."""
        while True:
            try:
                if await self.try_hold():
                    log.info("leading", lease=self._name, identity=self._identity)
                    return
            except errors.ApiError as error:
                log.warning("lease not reached", lease=self._name, error=error.message)
            await self._sleep(self._renew_every)

    async def _renew_while(self, task: asyncio.Future[None]) -> None:
        """Renew until the work ends or the lead is lost."""
        while self.held:
            left = min(self._renew_every, self._held_until - self._clock())
            pause = asyncio.ensure_future(self._sleep(left))
            try:
                await asyncio.wait((task, pause), return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if task.done():
                return
            try:
                if not await self.try_hold():
                    break
            except errors.ApiError as error:
                log.warning("lease not renewed", lease=self._name, error=error.message)
        log.warning("lead lost", lease=self._name, identity=self._identity)

    async def _release_quietly(self) -> None:
        try:
            await self.release()
        except errors.ApiError as error:
            log.warning("lease not released", lease=self._name, error=error.message)


def _document(metadata: dict[str, Any], spec: LeaseSpec) -> dict[str, Any]:
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
