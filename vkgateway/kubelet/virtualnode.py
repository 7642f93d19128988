"""Keeps one virtual node alive in its tenant: the Node object as it should be, and its Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff, add_jitter
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.leases import NODE_LEASE_NAMESPACE, renew_node_lease
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import LEASES, NODES
from vkgateway.kubelet import nodeobject
from vkgateway.model.objects import Meta, Object, ObjectView, Taint

REPORT_SECONDS: Final = 300.0
"""How often conditions get a new heartbeat when nothing else changes: a kubelet's nodeStatusReportFrequency."""
FIRST_WRITE_SECONDS: Final = 30.0
"""When a node that was found as it should be is written: at a start there is more to do than that."""
SETTLE_SECONDS: Final = 0.2
"""Changes within this time become one write."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Node:
    metadata: Meta
    body: Object


def _decode_node(data: bytes) -> _Node:
    return _Node(_decode_view(data).metadata, _decode_object(data))


_decode_view: Final = msgspec.json.Decoder(ObjectView).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


class VirtualNode:
    """One Node object and its Lease, kept right until `run` is cancelled.

    `build` gives the Node as it should be now (`translate.nodes`); times in its conditions do not count. It is called
    when `trigger_reconcile` says that something it depends on changed, when the tenant changed or deleted the object,
    and every
    `report_every` seconds; only differences are written, by server-side apply, so that labels, taints and annotations
    of others stay. A node that is found as it should be at the start is written `found_after` seconds later or, so that
    not all are written at once, up to twice that; what an earlier gateway gave it and this one does not goes then. The
    Lease is renewed every `renew_every` seconds and valid for `lease_seconds`, also while the node is NotReady: the
    node then tells the truth about itself, it is not lost. `on_registered` is called each time the object was written
    as wanted or found so, `on_seen` with its labels and taints (`nodeobject.labels_and_taints`) each time it is seen.
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
        found_after: float = FIRST_WRITE_SECONDS,
        settle: float = SETTLE_SECONDS,
        on_registered: Callable[[], None] | None = None,
        on_seen: Callable[[Mapping[str, str], tuple[Taint, ...]], None] | None = None,
        backoff: Backoff | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name: Final = name
        self.is_registered = False
        """Whether the object was written as wanted, or found so, and has not gone since."""
        self._client = client
        self._build = build
        self._lease_seconds = lease_seconds
        self._renew_every = renew_every
        self._report_every = report_every
        self._first_write_after = min(found_after, report_every)
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
        """The server's view of `_written` after it was last written."""
        self._undeclared: frozenset[str] = frozenset()
        """Fields of the status that the tenant's Kubernetes is too old for."""
        self._write_at = float("-inf")
        """When it is to be written whatever it says."""
        self._reflector = Reflector(
            client,
            NODES,
            decode=_decode_node,
            on_change=self._handle_change,
            field_selector=f"metadata.name={name}",
            on_complete=self._handle_sync,
        )

    def trigger_reconcile(self) -> None:
        """Say that what `build` gives may have changed."""
        self._triggered.set()

    async def run(self) -> None:
        """Keep node and Lease until cancelled; failures of the tenant's API server are retried for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name=f"watch-node-{self.name}")
            group.create_task(self._run_node_loop(), name=f"keep-node-{self.name}")
            group.create_task(self._run_lease_loop(), name=f"keep-lease-{self.name}")

    async def delete_node(self) -> None:
        """Take the node and its Lease out of the tenant; `run` must have ended. Raises ApiError."""
        for resource, namespace in ((NODES, None), (LEASES, NODE_LEASE_NAMESPACE)):
            try:
                await self._client.delete(resource, self.name, namespace=namespace)
            except errors.NotFound:
                continue

    def _handle_change(self, _: _Node | None, new: _Node | None) -> None:
        if new is None:
            _log.info("virtual node is gone, making it again", node=self.name)
            self.is_registered = False
            self._exists.clear()
            self._observed = {}
        elif self._on_seen is not None:
            self._on_seen(*nodeobject.labels_and_taints(new.body))
        self._triggered.set()

    def _handle_sync(self) -> None:
        """The API server was away, and may be of another release by now."""
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
                    _log.info("the tenant's API server does not know all fields", node=self.name, left_out=unknown)
                    self._undeclared |= unknown
                    continue
                failures += 1
                _log.warning("virtual node not written", node=self.name, error=error.message)
                await self._clock.sleep(self._backoff.delay_after(failures, at_least=error.retry_after))
                continue
            await self._wait_for_trigger()

    async def _wait_for_trigger(self) -> None:
        """Wait for a reason to look again, and then for those that follow on its heels."""
        try:
            async with asyncio.timeout(max(0.0, self._write_at - self._clock.monotonic())):
                await self._triggered.wait()
        except TimeoutError:
            return
        await self._clock.sleep(self._settle)

    async def _reconcile_node(self) -> None:
        held = self._reflector.store.get(("", self.name))
        wanted = nodeobject.without_fields(nodeobject.without_times(self._build()), self._undeclared)
        if held is not None and not self._written and nodeobject.matches_wanted(held.body, wanted):
            self._record_written(held, wanted, until=self._clock.monotonic() + add_jitter(self._first_write_after))
        if held is not None and not self._needs_write(wanted, held):
            return
        current = held.body if held is not None else None
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

    def _needs_write(self, wanted: Object, held: _Node) -> bool:
        """Whether there is something to write: other wishes, another's change, or a heartbeat."""
        if wanted != self._written or self._clock.monotonic() >= self._write_at:
            return True
        return not self._is_outdated(held) and nodeobject.project_node(held.body, wanted) != self._observed

    def _is_outdated(self, held: _Node) -> bool:
        """Whether the watch has yet to tell what we wrote last; versions of one object are ordered numbers."""
        return held.metadata.uid == self._uid and int(held.metadata.resource_version) < self._version

    async def _run_lease_loop(self) -> None:
        failures = 0
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
            delay = self._backoff.delay_after(failures) if failures else self._renew_every
            await self._clock.sleep(min(delay, self._renew_every))
