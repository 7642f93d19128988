"""Leases: heartbeats of nodes, and leader election.

A Lease expires after it was observed unchanged for its duration, measured with the local monotonic clock like in
client-go. The clocks of different machines need not agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import LEASES
from vkgateway.model.errors import ConflictError
from vkgateway.model.objects import Meta
from vkgateway.model.times import render_micro_time

log = structlog.get_logger(__name__)

NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
"""The namespace where the node lifecycle controller looks for heartbeats."""
_DURATION_SECONDS: Final = 30
_RENEW_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_MAX_CONFLICTS: Final = 5
"""Attempts to write a Lease after conflicts with other writers."""


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


_decode_lease: Final = msgspec.json.Decoder(Lease).decode


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
        await client.create(LEASES, _lease_document(metadata, spec), namespace=NODE_LEASE_NAMESPACE, timeout=timeout)


class LeaseTaken(ConflictError):  # noqa: N818 - named by the reason
    """Another process holds the Lease and renews it."""


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """Lease of another holder at its first observation. `observed_at` is monotonic time."""

    holder: str
    renew_time: str | None
    observed_at: float


class LeaderElector:
    """Leader election with one Lease: only the holder works.

    `identity` differs between processes and survives a restart: a restarted holder acquires its Lease immediately. The
    Lease of another holder is taken over when it was not renewed for its duration.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        identity: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._observed: _ObservedLease | None = None
        self._last_error = ""

    async def acquire_lease(self) -> None:
        """Wait until this process holds the Lease. A Lease that it already holds is not written.

        Raises LeaseTaken, ApiError.
        """
        while not await self._try_acquire_or_renew(renew=False):
            await self._clock.sleep(_RETRY_SECONDS)

    async def renew_lease(self) -> None:
        """Renew the Lease until cancelled. Raises LeaseTaken if another process took over.

        An unreachable server or a refused request does not end the leadership: the process retries.
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
            await self._clock.sleep(_RENEW_SECONDS if held else _RETRY_SECONDS)

    async def _try_acquire_or_renew(self, *, renew: bool) -> bool:
        """Try to acquire or `renew` the Lease. Return False while another holder's Lease has not expired."""
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
        """Return whether the Lease has no holder or has expired. Raises LeaseTaken if the holder renewed the Lease."""
        if not spec.holder_identity:
            return True
        if self._observed is None:
            self._observed = _ObservedLease(spec.holder_identity, spec.renew_time, self._clock.monotonic())
            log.info(
                "another process holds the lease; it is taken over after its expiry",
                lease=self._name,
                holder=spec.holder_identity,
                renewed=spec.renew_time,
                seconds=spec.lease_duration_seconds,
            )
        if (spec.holder_identity, spec.renew_time) != (self._observed.holder, self._observed.renew_time):
            raise LeaseTaken(
                f"{spec.holder_identity} holds the Lease {self._namespace}/{self._name}, and renewed it at "
                f"{spec.renew_time}"
            )
        return self._clock.monotonic() >= self._observed.observed_at + max(spec.lease_duration_seconds, 1)

    async def _get_lease(self) -> Lease | None:
        try:
            body = await self._client.get(LEASES, self._name, namespace=self._namespace, timeout=_RENEW_SECONDS)
        except errors.NotFound:
            return None
        try:
            return _decode_lease(body)
        except msgspec.DecodeError as error:  # a proxy answered instead of the server
            what = f"GET {LEASES.path(self._namespace, self._name)} at {self._client.name}"
            raise errors.ServerError(f"{what}: {error}", status=500) from error

    async def _create_lease(self) -> bool:
        metadata = {"name": self._name, "namespace": self._namespace}
        document = _lease_document(metadata, self._lease_spec(transitions=0))
        try:
            await self._client.create(LEASES, document, namespace=self._namespace, timeout=_RENEW_SECONDS)
        except errors.AlreadyExists:
            return False
        return True

    async def _update_lease(self, lease: Lease) -> bool:
        """Write the Lease with this identity. Return False after a conflict (possibly with an own earlier request)."""
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
                timeout=_RENEW_SECONDS,
            )
        except errors.Conflict:
            return False
        return True

    def _lease_spec(self, *, transitions: int) -> LeaseSpec:
        now = render_micro_time(self._clock.now())
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=_DURATION_SECONDS,
            acquire_time=now,
            renew_time=now,
            lease_transitions=transitions,
        )


def _lease_document(metadata: dict[str, Any], spec: LeaseSpec) -> dict[str, Any]:
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
