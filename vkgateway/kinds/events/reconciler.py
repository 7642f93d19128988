"""Events of kubelets about compute pods, mirrored to the tenant pods: sanitized, counted, rate-limited.

Events of other components are not mirrored: those of schedulers and controllers of a compute cluster are about other
tenants and about machines, and the tenant has its own scheduler.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from vkgateway.api import times
from vkgateway.api.names import COMPUTE_ROOT_CA, TENANT_ROOT_CA
from vkgateway.api.objects import Meta, Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.events.views import EventView
from vkgateway.kinds.pods.translation.own_containers import is_about_another_container
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kinds.sources import COMPUTE_EVENTS, RESYNC
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.requests import RequestKind
from vkgateway.runtime.views.ownership import Key, owned_by
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView

log = structlog.get_logger(__name__)

_BURST: Final = 20.0
"""Writes for a pod's events without delay: a start takes three for each container."""
_EVERY: Final = 15.0
"""Seconds after which a pod's events may take one more write. Kubelets count repeated events, so none is lost."""
_MAX_AGE: Final = 300.0
"""Seconds after which an event that was not seen before is ignored: after a restart every event is new."""
_POD_LAG_SECONDS: Final = 10.0
_POD_LAG_RETRY: Final = 1.0
_MAX_REMEMBERED: Final = 8192
_MESSAGE_MAX: Final = 1024


EVENT: Final = RequestKind[tuple[str, Key]]("event")
"""The compute cluster, and the key of the Event there."""


class EventMirror:
    """Reconciler that mirrors Events to one tenant. An Event that cannot be written is logged."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._client = scope.client
        self._clock = scope.clock
        self._written: OrderedDict[str, tuple[str, int | None]] = OrderedDict()
        """UIDs of compute events that were mirrored, with the name and count as they were last written."""
        self._allowances: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Pod UIDs to the writes that they had left, and the time of the last write."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(EVENT, self.reconcile)
            .watches(COMPUTE_EVENTS, lambda cluster, key: self._scope.work_queue.enqueue(EVENT, (cluster, key)))
            .watches(RESYNC, self._enqueue_all)
        )

    async def reconcile(self, request: tuple[str, Key]) -> float | None:
        """Mirror one event of a compute cluster; return the seconds after which to retry."""
        cluster, key = request
        link = self._scope.links.get(cluster)
        return await self._mirror_event(link, key) if link is not None else None

    def _enqueue_all(self) -> None:
        for name, link in self._scope.links.items():
            for key in link.events.of_tenant(self._scope.name):
                self._scope.work_queue.enqueue(EVENT, (name, key))

    async def _mirror_event(self, link: ComputeLink, key: Key) -> float | None:
        event = link.events.store.get(key)
        if event is None or not self._needs_write(event):
            return None
        below = link.pods.store.get((event.involved_object.namespace, event.involved_object.name))
        if below is None:
            # Two watches: the pod's own may be the slower one.
            return _POD_LAG_RETRY if self._clock.time() - event.last_seen < _POD_LAG_SECONDS else None
        above = self._find_tenant_pod(event, below)
        if above is None or is_about_another_container(event.involved_object.field_path, above.containers):
            return None
        if (wait := self._take_allowance(above.metadata.uid)) > 0:
            return wait
        try:
            await self._write_event(event, below, above)
        except errors.ApiError as error:
            if error.is_transient:
                raise
            log.warning("event not mirrored", tenant=self._scope.name, pod=above.metadata.name, error=str(error))
        return None

    def _needs_write(self, event: EventView) -> bool:
        known = self._written.get(event.metadata.uid)
        return known[1] != event.count if known is not None else self._clock.time() - event.last_seen <= _MAX_AGE

    def _find_tenant_pod(self, event: EventView, below: ComputePodView) -> TenantPodView | None:
        """Return the tenant pod that an event is about; all UIDs must agree."""
        if below.metadata.uid != event.involved_object.uid or not owned_by(self._scope.name, below.metadata):
            return None
        above = self._scope.cache.pods.store.get(below.tenant_key)
        return above if above is not None and above.metadata.uid == below.tenant_uid else None

    def _take_allowance(self, uid: str) -> float:
        """Take one write of a pod's allowance; return 0, or the seconds until the pod has one."""
        now = self._clock.time()
        left, since = self._allowances.pop(uid, (_BURST, now))
        left = min(_BURST, left + (now - since) / _EVERY)
        allowed = left >= 1
        self._allowances[uid] = (left - 1 if allowed else left), now
        while len(self._allowances) > _MAX_REMEMBERED:
            self._allowances.popitem(last=False)
        return 0.0 if allowed else (1 - left) * _EVERY

    async def _write_event(self, event: EventView, below: ComputePodView, above: TenantPodView) -> None:
        uid, namespace = event.metadata.uid, above.metadata.namespace
        document = translate_event(event, below, above)
        name = document["metadata"]["name"]
        if uid not in self._written and await self._create_event(document, namespace):
            self._remember_event(uid, name, event.count)
            return
        news = {field: document[field] for field in ("count", "lastTimestamp", "message")}
        try:
            await self._client.patch(resources.EVENTS, name, news, namespace=namespace)
        except errors.NotFound:
            await self._create_event(document, namespace)
        self._remember_event(uid, name, event.count)

    async def _create_event(self, document: Object, namespace: str) -> bool:
        try:
            await self._client.create(resources.EVENTS, document, namespace=namespace)
        except errors.AlreadyExists:
            return False
        return True

    def _remember_event(self, uid: str, name: str, count: int | None) -> None:
        self._written[uid] = name, count
        self._written.move_to_end(uid)
        while len(self._written) > _MAX_REMEMBERED:
            self._written.popitem(last=False)


def translate_event(event: EventView, below: ComputePodView, above: TenantPodView) -> Object:
    """Return the event as the tenant sees it: about its own pod, by its virtual node, named after the compute event."""
    mark = hashlib.sha256(event.metadata.uid.encode()).hexdigest()[:16]
    pod, node = above.metadata, above.spec.node_name
    involved = event.involved_object
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod.name[:200]}.{mark}", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            **({"fieldPath": involved.field_path} if involved.field_path else {}),
        },
        "reason": event.reason,
        "message": _event_cleaner(below, pod, node).sanitize_text(event.message)[:_MESSAGE_MAX],
        "type": event.type,
        "count": event.count or 1,
        "firstTimestamp": event.first_timestamp or _render_seconds(event.last_seen),
        "lastTimestamp": event.last_timestamp or _render_seconds(event.last_seen),
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }


class _Hosts(msgspec.Struct, rename="camel", gc=False):
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="hostIPs")


_hosts = msgspec.json.Decoder(_Hosts)


def _event_cleaner(below: ComputePodView, pod: Meta, node: str) -> Sanitizer:
    status = _hosts.decode(below.status)
    addresses = dict.fromkeys((status.host_ip, *(entry.get("ip", "") for entry in status.host_ips)))
    pairs = (
        *((address, node) for address in addresses),
        (below.metadata.namespace, pod.namespace),
        (below.metadata.uid, pod.uid),
        (below.spec.node_name, node),
        (COMPUTE_ROOT_CA, TENANT_ROOT_CA),
    )
    return Sanitizer(tuple((old, new) for old, new in pairs if old and old != new))


def _render_seconds(seconds: float) -> str:
    return times.render_time(datetime.fromtimestamp(seconds, UTC))
