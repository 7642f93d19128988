"""Controller of one virtual node in its tenant: its Node object and its Lease."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.objects import Condition, Meta, Object, Taint, decode_object, set_condition
from vkgateway.api.quantity import parse_quantity
from vkgateway.api.times import render_time
from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff, add_jitter, random_part
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.leader_election import NODE_LEASE_NAMESPACE, renew_node_lease
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import LEASES, NODES
from vkgateway.scheduler.governed import CORDON_TAINT

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

    `build` returns the desired Node (`NodeSource.build_node`); the times of its conditions are ignored. It is called
    after `trigger_reconcile`, after the tenant changed or deleted the object, and every `report_every` seconds.
    It writes differences only, by server-side apply, so that labels, taints and annotations of others stay.

    If the node has the desired state at the start, the first write follows after `first_write_after` seconds or up to
    twice that, to spread the load. This write removes fields of an earlier gateway.

    The Lease is renewed every `renew_every` seconds and valid for `lease_seconds`, also while the node is NotReady: a
    NotReady node is not lost. `on_registered` is called each time the node reached its desired state, `on_seen` with
    its labels and taints (`labels_and_taints`) each time it was observed.
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
            self._on_seen(*labels_and_taints(new.body))
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
                if unknown := undeclared_fields(error.message) - self._undeclared:
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
        wanted = without_fields(without_times(self._build()), self._undeclared)
        if stored is not None and not self._written and matches_wanted(stored.body, wanted):
            self._record_written(stored, wanted, until=self._clock.monotonic() + add_jitter(self._first_write_after))
        if stored is not None and not self._needs_write(wanted, stored):
            return
        current = stored.body if stored is not None else None
        writes = build_documents(wanted, current, now=self._clock.now())
        answer = await self._client.patch(NODES, self.name, writes.main, kind="apply")
        answer = await self._client.patch(NODES, self.name, writes.status, kind="apply", subresource="status")
        self._record_written(_decode_node(answer), wanted, until=self._clock.monotonic() + self._report_every)

    def _record_written(self, stored: _Node, wanted: Object, *, until: float) -> None:
        self._written, self._observed = wanted, project_node(stored.body, wanted)
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
        return not self._is_outdated(stored) and project_node(stored.body, wanted) != self._observed

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


_CONDITION_TAINT_PREFIX = "node.kubernetes.io/"
_CONDITION_TIMES = frozenset(("lastHeartbeatTime", "lastTransitionTime"))
_QUANTITY_FIELDS: Final = frozenset(("capacity", "allocatable"))
_UNDECLARED_FIELD: Final = re.compile(r"\.status\.(\w+)[^\n]*?: field not declared in schema")
"""Error of server-side apply for a field that the server's release does not know."""


@dataclass(frozen=True, slots=True)
class ApplyDocuments:
    """The two documents of a server-side apply: the object and its status."""

    main: Object
    status: Object


def without_times(node: Mapping[str, Any]) -> Object:
    """Return the Node without the times of its conditions, for comparisons."""
    status = node.get("status", {})
    entries = [
        {key: value for key, value in entry.items() if key not in _CONDITION_TIMES}
        for entry in status.get("conditions", ())
    ]
    return {**node, "status": {**status, "conditions": entries}}


def build_documents(wanted: Mapping[str, Any], current: Mapping[str, Any] | None, *, now: datetime) -> ApplyDocuments:
    """Return the documents for server-side apply. The times of conditions in `wanted` are ignored.

    A transition time stays while `current` has the same status. The heartbeat time is `now`.
    """
    identity = {"apiVersion": "v1", "kind": "Node"}
    metadata = wanted["metadata"]
    status = dict(wanted.get("status", {}))
    status["conditions"] = stamp_conditions(status.get("conditions", ()), _current_conditions(current), now=now)
    main = {**identity, "metadata": metadata, "spec": wanted.get("spec", {})}
    return ApplyDocuments(main, {**identity, "metadata": {"name": metadata["name"]}, "status": status})


def undeclared_fields(refusal: str) -> frozenset[str]:
    """Return the status fields that an API server does not know. Other than apply, writes would drop them silently."""
    return frozenset(_UNDECLARED_FIELD.findall(refusal))


def without_fields(node: Mapping[str, Any], fields: Collection[str]) -> Object:
    """Return the Node without some fields of its status."""
    status = node.get("status", {})
    return {**node, "status": {key: value for key, value in status.items() if key not in fields}}


def labels_and_taints(node: Mapping[str, Any]) -> tuple[dict[str, str], tuple[Taint, ...]]:
    """Return the labels of a Node and the taints that users set, including a cordon.

    Taints that Kubernetes derives from conditions are skipped.
    """
    spec = node.get("spec") or {}
    taints = msgspec.convert(spec.get("taints") or (), tuple[Taint, ...])
    taints = tuple(taint for taint in taints if not taint.key.startswith(_CONDITION_TAINT_PREFIX))
    return dict(node["metadata"].get("labels") or {}), (*taints, CORDON_TAINT) if spec.get("unschedulable") else taints


def stamp_conditions(wanted: Any, current: Any, *, now: datetime) -> list[Object]:
    """Return the wanted conditions with heartbeat and transition times."""
    before = msgspec.convert(list(current), list[Condition])
    placed = []
    for entry in msgspec.convert(list(wanted), list[Condition]):
        new = msgspec.structs.replace(entry, last_heartbeat_time=render_time(now))
        merged = set_condition(before, new, now=now)
        placed.append(next(found for found in merged if found.type == new.type))
    return [msgspec.to_builtins(entry) for entry in placed]


def _current_conditions(node: Mapping[str, Any] | None) -> Any:
    return (node or {}).get("status", {}).get("conditions") or ()


def project_node(node: Mapping[str, Any], wanted: Mapping[str, Any]) -> Object:
    """Return the fields of a Node that `wanted` contains, to detect changes of other clients.

    The server normalizes some values (quantities), so only its responses are comparable with each other. To compare a
    Node with `wanted`, use `matches_wanted`.
    """
    projection: Object = _project_value({key: node.get(key) for key in ("metadata", "spec", "status")}, wanted)
    return projection


def matches_wanted(node: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a Node has all wanted fields. Quantities are compared by value."""
    return _parse_quantities(project_node(node, wanted)) == _parse_quantities(project_node(wanted, wanted))


def _parse_quantities(node: Object) -> Object:
    status = dict(node.get("status") or {})
    for name in _QUANTITY_FIELDS & status.keys():
        status[name] = {resource: parse_quantity(amount) for resource, amount in (status[name] or {}).items() if amount}
    return {**node, "status": status}


def _project_value(value: Any, shape: Any) -> Any:
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        return {key: _project_value(value.get(key), part) for key, part in shape.items()}
    if _is_conditions(shape) and isinstance(value, list):
        by_type = {entry.get("type"): entry for entry in value}
        return [_project_value(by_type.get(part["type"]), part) for part in shape]
    return value


def _is_conditions(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(
        isinstance(part, Mapping) and "type" in part and "status" in part for part in shape
    )
