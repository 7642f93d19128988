"""Leases: the heartbeat of a node, and who alone is at work.

Whether another's Lease has run out is judged by how long it was seen unchanged on our own clock, as
client-go does it, so that clocks of different machines need not agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import LEASES
from vkgateway.model.errors import ConflictError
from vkgateway.model.objects import Meta
from vkgateway.model.times import render_micro_time

log = structlog.get_logger(__name__)

NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
"""The namespace where the node lifecycle controller looks for heartbeats."""
_MAX_CONFLICTS: Final = 5
"""How often a Lease is read again that somebody else wrote between our reading and writing it."""


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
    spec = LeaseSpec(holder_identity=node, lease_duration_seconds=duration, renew_time=render_micro_time(now))
    try:
        await client.patch(LEASES, node, {"spec": spec}, namespace=NODE_LEASE_NAMESPACE, timeout=timeout)
    except errors.NotFound:
        metadata: dict[str, Any] = {"name": node, "namespace": NODE_LEASE_NAMESPACE}
        if owner_uid:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner_uid}
            metadata["ownerReferences"] = [owner]
        await client.create(LEASES, _lease_document(metadata, spec), namespace=NODE_LEASE_NAMESPACE, timeout=timeout)


class LeaseTaken(ConflictError):  # noqa: N818 - named by the reason
    """Another has the Lease, and renews it."""


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """Another's Lease as it was seen first, and when that was."""

    holder: str
    renew_time: str | None
    observed_at: float


class LeaderElector:
    """One Lease that one of several programs has, so that it alone is at work.

    `identity` differs between them and outlives a restart: who finds the Lease its own has it at once. Another's is
    taken over when nobody has renewed it for as long as it says itself.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        identity: str,
        duration: int = 30,
        renew_every: float = 10.0,
        look_every: float = 1.0,
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
        self._retry_every = look_every
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._observed: _ObservedLease | None = None
        self._last_error = ""

    async def acquire_lease(self) -> None:
        """Wait until it is ours; where it was before, nothing is written. Raises LeaseTaken, ApiError."""
        while not await self._try_acquire_or_renew(renew=False):
            await self._sleep(self._retry_every)

    async def renew_lease(self) -> None:
        """Renew it for ever; raises LeaseTaken where another has taken it over.

        A server that does not answer, or refuses, takes nothing away: the work goes on, and it is asked again.
        """
        while True:
            held = False
            try:
                held = await self._try_acquire_or_renew(renew=True)
                self._last_error = ""
            except errors.ApiError as error:
                if error.message != self._last_error:
                    log.warning("lease not renewed", lease=self._name, error=error.message)
                self._last_error = error.message
                held = True
            await self._sleep(self._renew_every if held else self._retry_every)

    async def _try_acquire_or_renew(self, *, renew: bool) -> bool:
        """Look once, and take or `renew` it; False: it is another's, of whom it is not known whether he lives."""
        for _ in range(_MAX_CONFLICTS):
            lease = await self._get_lease()
            if lease is not None and lease.spec.holder_identity == self._identity:
                self._observed = None
                if not renew:
                    return True
            elif lease is not None and not self._is_expired(lease.spec):
                return False
            if await (self._create_lease() if lease is None else self._update_lease(lease)):
                return True
        return False

    def _is_expired(self, spec: LeaseSpec) -> bool:
        """Whether nobody has it, or who has it fell silent. Raises LeaseTaken where it was renewed meanwhile."""
        if not spec.holder_identity:
            return True
        if self._observed is None:
            self._observed = _ObservedLease(spec.holder_identity, spec.renew_time, self._clock())
            log.info(
                "another has the lease; it is taken over unless it is renewed",
                lease=self._name,
                holder=spec.holder_identity,
                renewed=spec.renew_time,
                seconds=spec.lease_duration_seconds,
            )
        if (spec.holder_identity, spec.renew_time) != (self._observed.holder, self._observed.renew_time):
            raise LeaseTaken(
                f"{spec.holder_identity} has the Lease {self._namespace}/{self._name}, and renewed it at "
                f"{spec.renew_time}"
            )
        return self._clock() >= self._observed.observed_at + max(spec.lease_duration_seconds, 1)

    async def _get_lease(self) -> Lease | None:
        try:
            answer = await self._client.get(LEASES, self._name, namespace=self._namespace, timeout=self._renew_every)
        except errors.NotFound:
            return None
        try:
            return _decode_lease(answer)
        except msgspec.DecodeError as error:  # something on the way answered for the server
            what = f"GET {LEASES.path(self._namespace, self._name)} at {self._client.name}"
            raise errors.ServerError(f"{what}: {error}", status=500) from error

    async def _create_lease(self) -> bool:
        metadata = {"name": self._name, "namespace": self._namespace}
        document = _lease_document(metadata, self._lease_spec(transitions=0))
        try:
            await self._client.create(LEASES, document, namespace=self._namespace, timeout=self._renew_every)
        except errors.AlreadyExists:
            return False
        return True

    async def _update_lease(self, lease: Lease) -> bool:
        """Write it as ours over what was read; False: somebody wrote it meanwhile, perhaps we ourselves."""
        ours = lease.spec.holder_identity == self._identity
        spec = self._lease_spec(transitions=lease.spec.lease_transitions + (0 if ours else 1))
        if ours:
            spec.acquire_time = lease.spec.acquire_time
        version = lease.metadata.resource_version
        metadata = {"name": self._name, "namespace": self._namespace, "resourceVersion": version}
        try:
            await self._client.replace(
                LEASES,
                self._name,
                _lease_document(metadata, spec),
                namespace=self._namespace,
                timeout=self._renew_every,
            )
        except errors.Conflict:
            return False
        return True

    def _lease_spec(self, *, transitions: int) -> LeaseSpec:
        now = render_micro_time(self._now())
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._duration,
            acquire_time=now,
            renew_time=now,
            lease_transitions=transitions,
        )


def _lease_document(metadata: dict[str, Any], spec: LeaseSpec) -> dict[str, Any]:
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
