"""Leader election with one Lease, and the proof of leadership that opens the write gate.

A Lease expires after a candidate observed it unchanged for its duration, measured with the candidate's monotonic clock
as in client-go. The holder measures from the start of its last successful renewal, and stops writing a margin earlier.
So clocks of different machines need not agree, and two processes never write at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

import msgspec
import structlog

from vkgateway.api.errors import VkgatewayError
from vkgateway.api.objects import Meta
from vkgateway.api.times import render_micro_time
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import LEASES
from vkgateway.kube.write_gate import WriteGate

log = structlog.get_logger(__name__)

_WRITE_SHARE: Final = 0.8
"""Share of a Lease's duration during which its holder writes. The rest covers requests on their way and slow clocks."""
_MAX_CONFLICTS: Final = 5
"""Attempts to write a Lease after conflicts with other writers."""


class LeaseLost(VkgatewayError):  # noqa: N818 - named by the reason
    """Another process took the Lease over, or may have held it meanwhile."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Durations of leader election, in seconds: of the Lease, between renewals, and between attempts to acquire it."""

    lease: int = 5
    renew: float = 1.5
    retry: float = 0.5

    @property
    def write(self) -> float:
        """Seconds from the start of a renewal during which the holder may write."""
        return self.lease * _WRITE_SHARE

    @property
    def request_timeout(self) -> float:
        """Time limit of a request for the Lease: two renewals fit into the time in which the holder may write."""
        return (self.write - self.renew - self.retry) / 2


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """Lease of another holder at the first observation of its state. `observed_at` is monotonic time."""

    holder: str
    acquire_time: str | None
    renew_time: str | None
    observed_at: float

    def shows(self, spec: LeaseSpec) -> bool:
        """Return whether a Lease is still in this state. Other fields, such as annotations, don't renew it."""
        seen = self.holder, self.acquire_time, self.renew_time
        return seen == (spec.holder_identity, spec.acquire_time, spec.renew_time)


@dataclass(slots=True)
class _HeldLease:
    """The Lease as this process wrote it last. Its acquire time distinguishes it from those of other processes."""

    version: str
    acquire_time: str
    transitions: int


class LeaderElector:
    """Candidate for one Lease, and its holder after `try_acquire` returned true. `gate` is open while it may write.

    `identity` names this process. A process with the identity of the Lease's holder is its successor after a restart,
    and acquires the Lease immediately.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        identity: str,
        timing: LeaseTiming,
        gate: WriteGate,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.identity: Final = identity
        self.timing: Final = timing
        self.gate: Final = gate
        self.holder = ""
        """Identity of the Lease's holder as of the last read."""
        self._client = client
        self._name = name
        self._namespace = namespace
        self._clock = clock
        self._observed: _ObservedLease | None = None
        self._observed_seconds = 1
        """Duration of the observed Lease."""
        self._held: _HeldLease | None = None

    @property
    def transitions(self) -> int | None:
        """How often the Lease changed its holder process before this one; None while this process does not hold it."""
        return self._held.transitions if self._held is not None else None

    async def try_acquire(self) -> bool:
        """Acquire the Lease if it is free, expired or has this identity. Return whether this process holds it.

        Raises ApiError.
        """
        for _ in range(_MAX_CONFLICTS):
            lease = await self._get_lease()
            if lease is not None and not self._is_free(lease.spec):
                self.holder = lease.spec.holder_identity
                return False
            if await self._write_lease(lease, acquire_time=self._render_now()):
                self._observed = None
                return True
        return False

    def seconds_to_retry(self) -> float:
        """Return the delay until the next attempt to acquire the Lease, which is also made when it expires."""
        if self._observed is None:
            return self.timing.retry
        expires_at = self._observed.observed_at + self._observed_seconds
        return min(self.timing.retry, max(0.0, expires_at - self._clock.monotonic()))

    async def renew(self) -> None:
        """Renew the Lease once. Raises LeaseLost, or ApiError if the Lease may still be held."""
        held = self._held
        assert held is not None, "not acquired"
        if await self._replace_held(held):
            return
        for _ in range(_MAX_CONFLICTS):
            lease = await self._get_lease()
            self._check_held(lease, held)
            if await self._write_lease(lease, acquire_time=held.acquire_time):
                return
        raise errors.Conflict(f"the Lease {self._namespace}/{self._name} keeps changing", status=409)

    async def release(self) -> None:
        """Give the Lease up, so that another process acquires it at its next attempt. Close the gate before.

        Raises ApiError, LeaseLost.
        """
        held, self._held = self._held, None
        if held is None:
            return
        spec = self._lease_spec(acquire_time=held.acquire_time, transitions=held.transitions)
        spec.holder_identity, spec.lease_duration_seconds = "", 1
        if not await self._replace(spec, version=held.version):  # for example after a renewal without a response
            lease = await self._get_lease()
            self._check_held(lease, held)
            if lease is not None:
                await self._replace(spec, version=lease.metadata.resource_version)

    def _is_free(self, spec: LeaseSpec) -> bool:
        """Return whether the Lease has no other holder or has expired."""
        if spec.holder_identity in ("", self.identity):
            return True
        if self._observed is None or not self._observed.shows(spec):
            if self._observed is None or self._observed.holder != spec.holder_identity:
                log.info("standby: another gateway leads", lease=self._name, holder=spec.holder_identity)
            # The Lease expires by this clock, from its first observation: the clocks of two machines may differ.
            self._observed_seconds = max(spec.lease_duration_seconds, 1)
            self._observed = _ObservedLease(
                spec.holder_identity, spec.acquire_time, spec.renew_time, self._clock.monotonic()
            )
        return self._clock.monotonic() >= self._observed.observed_at + self._observed_seconds

    def _check_held(self, lease: Lease | None, held: _HeldLease) -> None:
        """Raise LeaseLost unless no other process can have held the Lease since the last renewal."""
        if lease is None:
            if not self.gate.is_open:
                raise LeaseLost(f"the Lease {self._namespace}/{self._name} was deleted")
            return
        self.holder = lease.spec.holder_identity
        if (lease.spec.holder_identity, lease.spec.acquire_time) != (self.identity, held.acquire_time):
            holder = lease.spec.holder_identity or "no process"
            raise LeaseLost(f"{holder} holds the Lease {self._namespace}/{self._name} now")

    async def _get_lease(self) -> Lease | None:
        timeout = self.timing.request_timeout
        try:
            body = await self._client.get(LEASES, self._name, namespace=self._namespace, timeout=timeout)
        except errors.NotFound:
            return None
        return self._decode(body, "GET")

    async def _write_lease(self, lease: Lease | None, *, acquire_time: str) -> bool:
        """Create or replace the Lease. Return False after a conflict, possibly with an own earlier request."""
        spec = lease.spec if lease is not None else LeaseSpec()
        is_ours = spec.holder_identity == self.identity and spec.acquire_time == acquire_time
        transitions = spec.lease_transitions + (0 if is_ours or lease is None else 1)
        wanted = self._lease_spec(acquire_time=acquire_time, transitions=transitions)
        # Before the request: others may count the Lease's duration from any later moment, so the gate closes first.
        started = self.gate.now()
        if lease is not None:
            version = await self._replace(wanted, version=lease.metadata.resource_version)
        else:
            version = await self._create(wanted)
        return self._record(version, wanted, started)

    async def _replace_held(self, held: _HeldLease) -> bool:
        """Renew the Lease as this process wrote it last. Return False if it was changed or deleted meanwhile."""
        spec = self._lease_spec(acquire_time=held.acquire_time, transitions=held.transitions)
        started = self.gate.now()
        try:
            version = await self._replace(spec, version=held.version)
        except errors.NotFound:
            return False
        return self._record(version, spec, started)

    def _record(self, version: str, spec: LeaseSpec, started: float) -> bool:
        """Open the gate after a successful write that started at a time. Return whether the write was successful."""
        if not version:
            return False
        self._held = _HeldLease(version, spec.acquire_time or "", spec.lease_transitions)
        self.holder = self.identity
        self.gate.extend(started + self.timing.write)
        return True

    async def _create(self, spec: LeaseSpec) -> str:
        """Create the Lease, and return its resource version; "" if it exists."""
        document = lease_document({"name": self._name, "namespace": self._namespace}, spec)
        timeout = self.timing.request_timeout
        try:
            body = await self._client.create(LEASES, document, namespace=self._namespace, timeout=timeout)
        except errors.AlreadyExists:
            return ""
        return self._decode(body, "POST").metadata.resource_version

    async def _replace(self, spec: LeaseSpec, *, version: str) -> str:
        """Replace this version of the Lease, and return the new version; "" if it has another version."""
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace, "resourceVersion": version}
        document, timeout = lease_document(metadata, spec), self.timing.request_timeout
        try:
            body = await self._client.replace(LEASES, self._name, document, namespace=self._namespace, timeout=timeout)
        except errors.Conflict:
            return ""
        return self._decode(body, "PUT").metadata.resource_version

    def _decode(self, body: bytes, method: str) -> Lease:
        try:
            return decode_lease(body)
        except msgspec.DecodeError as error:  # a proxy answered instead of the server
            what = f"{method} {LEASES.path(self._namespace, self._name)} at {self._client.name}"
            raise errors.ServerError(f"{what}: {error}", status=500) from error

    def _lease_spec(self, *, acquire_time: str, transitions: int) -> LeaseSpec:
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self.timing.lease,
            acquire_time=acquire_time,
            renew_time=self._render_now(),
            lease_transitions=transitions,
        )

    def _render_now(self) -> str:
        return render_micro_time(self._clock.now())


NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
"""The namespace where the node lifecycle controller looks for heartbeats."""


class LeaseSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """`spec` of a Lease; the times are RFC 3339 with microseconds."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(msgspec.Struct, kw_only=True, rename="camel"):
    """A Lease."""

    metadata: Meta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


decode_lease: Final = msgspec.json.Decoder(Lease).decode


async def renew_node_lease(
    client: Client, node: str, *, now: datetime, duration: int = 40, owner_uid: str = "", timeout: float = 10
) -> None:
    """Renew the Lease of a node, and create it if necessary, owned by the Node with `owner_uid`."""
    spec = LeaseSpec(holder_identity=node, lease_duration_seconds=duration, renew_time=render_micro_time(now))
    try:
        await client.patch(LEASES, node, {"spec": spec}, namespace=NODE_LEASE_NAMESPACE, timeout=timeout)
    except errors.NotFound:
        metadata: dict[str, Any] = {"name": node, "namespace": NODE_LEASE_NAMESPACE}
        if owner_uid:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner_uid}
            metadata["ownerReferences"] = [owner]
        await client.create(LEASES, lease_document(metadata, spec), namespace=NODE_LEASE_NAMESPACE, timeout=timeout)


def lease_document(metadata: dict[str, Any], spec: LeaseSpec) -> dict[str, Any]:
    """Return a Lease as a document to write."""
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
