"""What kubelets tell of compute pods, told again of the tenants' pods: cleaned, counted, bounded.

Only kubelets are heard: what schedulers and controllers of a compute cluster say of a pod is about other tenants and
about machines, and the tenant has a scheduler of its own.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model import times
from vkgateway.model.names import COMPUTE_ROOT_CA, TENANT_ROOT_CA
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute.eventviews import EventView
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key, owned_by
from vkgateway.sync.pods.views import ComputePodView, TenantPodView
from vkgateway.translate.cleaning import Cleaner

log = structlog.get_logger(__name__)

_BURST: Final = 20.0
"""Writes that a pod's events may take at once: a start takes three a container."""
_EVERY: Final = 15.0
"""Seconds until a pod's events may take one more write; kubelets count what repeats, so nothing is lost by waiting."""
_OLD: Final = 300.0
"""Seconds after which an event that was not seen before is left alone: after a start all of them are seen anew."""
_FRESH: Final = 10.0
_SOON: Final = 1.0
_REMEMBERED: Final = 8192
_MESSAGE_MAX: Final = 1024


class MirroredEvents:
    """Writes one tenant's mirrored events; losing one is logged, and stops nothing."""

    def __init__(
        self, tenant: str, client: Client, pods: Reflector[TenantPodView], *, clock: Callable[[], float]
    ) -> None:
        self._tenant = tenant
        self._client = client
        self._pods = pods
        self._clock = clock
        self._written: OrderedDict[str, tuple[str, int | None]] = OrderedDict()
        """UIDs of compute events that stand above, with the name and count as they were last written."""
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Pod UIDs to the writes that they had left, and when that was."""

    async def mirror(self, link: ComputeLink, key: Key) -> float | None:
        """Bring one event up if it is of one of the tenant's pods; returns seconds to wait where it must wait."""
        event = link.events.items.get(key)
        if event is None or not self._is_news(event):
            return None
        below = link.pods.items.get((event.involved_object.namespace, event.involved_object.name))
        if below is None:
            # Two watches: the pod's own may be the slower one.
            return _SOON if self._clock() - event.seconds < _FRESH else None
        above = self._pod_of(event, below)
        if above is None:
            return None
        if (wait := self._wait(above.metadata.uid)) > 0:
            return wait
        try:
            await self._write(event, below, above)
        except errors.ApiError as error:
            if error.transient:
                raise
            log.warning("event not mirrored", tenant=self._tenant, pod=above.metadata.name, error=str(error))
        return None

    def _is_news(self, event: EventView) -> bool:
        known = self._written.get(event.metadata.uid)
        return known[1] != event.count if known is not None else self._clock() - event.seconds <= _OLD

    def _pod_of(self, event: EventView, below: ComputePodView) -> TenantPodView | None:
        """The tenant's pod that an event is about; every UID on the way must agree."""
        if below.metadata.uid != event.involved_object.uid or not owned_by(self._tenant, below.metadata):
            return None
        above = self._pods.items.get(below.tenant_key)
        return above if above is not None and above.metadata.uid == below.tenant_uid else None

    def _wait(self, uid: str) -> float:
        """Take one write of a pod's allowance; 0, or the seconds until there is one."""
        now = self._clock()
        left, since = self._spent.pop(uid, (_BURST, now))
        left = min(_BURST, left + (now - since) / _EVERY)
        allowed = left >= 1
        self._spent[uid] = (left - 1 if allowed else left), now
        while len(self._spent) > _REMEMBERED:
            self._spent.popitem(last=False)
        return 0.0 if allowed else (1 - left) * _EVERY

    async def _write(self, event: EventView, below: ComputePodView, above: TenantPodView) -> None:
        uid, namespace = event.metadata.uid, above.metadata.namespace
        document = mirrored(event, below, above)
        name = document["metadata"]["name"]
        if uid not in self._written and await self._created(document, namespace):
            self._remember(uid, name, event.count)
            return
        news = {field: document[field] for field in ("count", "lastTimestamp", "message")}
        try:
            await self._client.patch(resources.EVENTS, name, news, namespace=namespace)
        except errors.NotFound:
            await self._created(document, namespace)
        self._remember(uid, name, event.count)

    async def _created(self, document: Object, namespace: str) -> bool:
        try:
            await self._client.create(resources.EVENTS, document, namespace=namespace)
        except errors.AlreadyExists:
            return False
        return True

    def _remember(self, uid: str, name: str, count: int | None) -> None:
        self._written[uid] = name, count
        self._written.move_to_end(uid)
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)


def mirrored(event: EventView, below: ComputePodView, above: TenantPodView) -> Object:
    """The event as the tenant sees it: about its own pod, by its virtual node, named after the compute event."""
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
        "message": _cleaner(below, pod, node).clean(event.message)[:_MESSAGE_MAX],
        "type": event.type,
        "count": event.count or 1,
        "firstTimestamp": event.first_timestamp or _stamp(event.seconds),
        "lastTimestamp": event.last_timestamp or _stamp(event.seconds),
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }


class _Hosts(msgspec.Struct, rename="camel", gc=False):
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="hostIPs")


_hosts = msgspec.json.Decoder(_Hosts)


def _cleaner(below: ComputePodView, pod: Meta, node: str) -> Cleaner:
    status = _hosts.decode(below.status)
    addresses = dict.fromkeys((status.host_ip, *(entry.get("ip", "") for entry in status.host_ips)))
    pairs = (
        *((address, node) for address in addresses),
        (below.metadata.namespace, pod.namespace),
        (below.metadata.uid, pod.uid),
        (below.spec.node_name, node),
        (COMPUTE_ROOT_CA, TENANT_ROOT_CA),
    )
    return Cleaner(tuple((old, new) for old, new in pairs if old and old != new))


def _stamp(seconds: float) -> str:
    return times.render(datetime.fromtimestamp(seconds, UTC))
