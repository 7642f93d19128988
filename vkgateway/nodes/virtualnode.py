"""Controller of one virtual node in its tenant: its Node object and its Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.objects import Meta, Object, Taint, decode_object
from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff, add_jitter, random_part
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.leases import NODE_LEASE_NAMESPACE, renew_node_lease
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import LEASES, NODES
from vkgateway.nodes import nodeobject

REPORT_SECONDS: Final = 300.0
"""Interval of condition heartbeats without other changes: a kubelet's nodeStatusReportFrequency."""
FIRST_WRITE_SECONDS: Final = 30.0
"""Delay of the first write of an unchanged node, to reduce the load at the start."""
SETTLE_SECONDS: Final = 0.2
"""Changes within this time are written together."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Node:
    metadata: Meta
    body: Object


def _decode_node(data: bytes) -> _Node:
    return _Node(decode_object(data).metadata, _decode_object(data))


_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


class VirtualNode:
    """Reconciler of one Node object and its Lease, until `run` is cancelled.

    `build` returns the desired Node (`translate.nodes`); the times of its conditions are ignored. The controller calls
    `build` after `trigger_reconcile`, after the tenant changed or deleted the object, and every `report_every` seconds.
    It writes differences only, by server-side apply, so that labels, taints and annotations of others stay.

    If the node has the desired state at the start, the first write follows after `first_write_after` seconds or up to
    twice that, to spread the load. This write removes fields of an earlier gateway.

    The Lease is renewed every `renew_every` seconds and valid for `lease_seconds`, also while the node is NotReady: a
    NotReady node is not lost. `on_registered` is called each time the node reached its desired state, `on_seen` with
    its labels and taints (`nodeobject.labels_and_taints`) each time it was observed.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        build: Callable[[], Object],
        lease_seconds: int = 40,
        renew_every: float = 10.0,
        report_every: float = REPORT_SECONDS,
        first_write_after: float = FIRST_WRITE_SECONDS,
        settle: float = SETTLE_SECONDS,
        on_registered: Callable[[], None] | None = None,
        on_seen: Callable[[Mapping[str, str], tuple[Taint, ...]], None] | None = None,
        backoff: Backoff | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name: Final = name
        self.is_registered = False
        """Whether the object reached its desired state and was not deleted since."""
        self._client = client
        self._build = build
        self._lease_seconds = lease_seconds
        self._renew_every = renew_every
        self._report_every = report_every
        self._first_write_after = min(first_write_after, report_every)
        self._settle = settle
        self._on_registered = on_registered
        self._on_seen = on_seen
        self._backoff = backoff or Backoff(base=0.2, cap=10.0)
        self._clock = clock
        self._triggered = asyncio.Event()
        self._exists = asyncio.Event()
        self._uid = ""
        self._version = 0
        self._written: Object = {}
        self._observed: Object = {}
        """The server's response to the last write, reduced to the fields of `_written`."""
        self._undeclared: frozenset[str] = frozenset()
        """Status fields that the tenant's Kubernetes release does not know."""
        self._write_at = float("-inf")
        """Monotonic time of the next unconditional write."""
        self._reflector = Reflector(
            client,
            NODES,
            decode=_decode_node,
            on_change=self._handle_change,
            field_selector=f"metadata.name={name}",
            on_complete=self._handle_sync,
        )

    def trigger_reconcile(self) -> None:
        """Note that the result of `build` may have changed."""
        self._triggered.set()

    async def run(self) -> None:
        """Reconcile node and Lease until cancelled, and retry after failures of the tenant's API server."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name=f"watch-node-{self.name}")
            group.create_task(self._run_node_loop(), name=f"keep-node-{self.name}")
            group.create_task(self._run_lease_loop(), name=f"keep-lease-{self.name}")

    async def delete_node(self) -> None:
        """Delete the node and its Lease after the end of `run`. Raises ApiError."""
        for resource, namespace in ((NODES, None), (LEASES, NODE_LEASE_NAMESPACE)):
            try:
                await self._client.delete(resource, self.name, namespace=namespace)
            except errors.NotFound:
                continue

    def _handle_change(self, _: _Node | None, new: _Node | None) -> None:
        if new is None:
            _log.info("virtual node was deleted and is re-created", node=self.name)
            self.is_registered = False
            self._exists.clear()
            self._observed = {}
        elif self._on_seen is not None:
            self._on_seen(*nodeobject.labels_and_taints(new.body))
        self._triggered.set()

    def _handle_sync(self) -> None:
        """Try all fields again: the API server may have been upgraded while it was unreachable."""
        if self._undeclared:
            self._undeclared = frozenset()
            self._triggered.set()

    async def _run_node_loop(self) -> None:
        await self._reflector.wait_until_complete()
        failures = 0
        while True:
            self._triggered.clear()
            try:
                await self._reconcile_node()
                failures = 0
            except errors.ApiError as error:
                if unknown := nodeobject.undeclared_fields(error.message) - self._undeclared:
                    _log.info("the tenant's API server does not know some fields", node=self.name, skipped=unknown)
                    self._undeclared |= unknown
                    continue
                failures += 1
                _log.warning("virtual node not written", node=self.name, error=error.message)
                await self._clock.sleep(self._backoff.delay_after(failures, at_least=error.retry_after))
                continue
            await self._wait_for_trigger()

    async def _wait_for_trigger(self) -> None:
        """Wait for a trigger or the next unconditional write, then for further changes within the settle time."""
        try:
            async with asyncio.timeout(max(0.0, self._write_at - self._clock.monotonic())):
                await self._triggered.wait()
        except TimeoutError:
            return
        await self._clock.sleep(self._settle)

    async def _reconcile_node(self) -> None:
        stored = self._reflector.store.get(("", self.name))
        wanted = nodeobject.without_fields(nodeobject.without_times(self._build()), self._undeclared)
        if stored is not None and not self._written and nodeobject.matches_wanted(stored.body, wanted):
            self._record_written(stored, wanted, until=self._clock.monotonic() + add_jitter(self._first_write_after))
        if stored is not None and not self._needs_write(wanted, stored):
            return
        current = stored.body if stored is not None else None
        writes = nodeobject.build_documents(wanted, current, now=self._clock.now())
        answer = await self._client.patch(NODES, self.name, writes.main, kind="apply")
        answer = await self._client.patch(NODES, self.name, writes.status, kind="apply", subresource="status")
        self._record_written(_decode_node(answer), wanted, until=self._clock.monotonic() + self._report_every)

    def _record_written(self, stored: _Node, wanted: Object, *, until: float) -> None:
        self._written, self._observed = wanted, nodeobject.project_node(stored.body, wanted)
        self._uid = stored.metadata.uid
        self._version = int(stored.metadata.resource_version)
        self._write_at = until
        if not self.is_registered:
            _log.info("virtual node registered", node=self.name, uid=self._uid)
        self.is_registered = True
        self._exists.set()
        if self._on_registered is not None:
            self._on_registered()

    def _needs_write(self, wanted: Object, stored: _Node) -> bool:
        """Return whether the desired state or the object changed, or a heartbeat is due."""
        if wanted != self._written or self._clock.monotonic() >= self._write_at:
            return True
        return not self._is_outdated(stored) and nodeobject.project_node(stored.body, wanted) != self._observed

    def _is_outdated(self, stored: _Node) -> bool:
        """Return whether the watch has not delivered the last write. Versions of one object are ordered numbers."""
        return stored.metadata.uid == self._uid and int(stored.metadata.resource_version) < self._version

    async def _run_lease_loop(self) -> None:
        failures = 0
        # The nodes of all tenants start at the same time, and simultaneous renewals of all would delay pods.
        delay = random_part(self._renew_every)
        while True:
            await self._exists.wait()
            try:
                await renew_node_lease(
                    self._client,
                    self.name,
                    now=self._clock.now(),
                    duration=self._lease_seconds,
                    owner_uid=self._uid,
                    timeout=self._renew_every,
                )
                failures = 0
            except errors.ApiError as error:
                failures += 1
                _log.warning("node lease not renewed", node=self.name, error=error.message)
            if failures:
                delay = self._backoff.delay_after(failures)
            await self._clock.sleep(min(delay, self._renew_every))
            delay = self._renew_every
