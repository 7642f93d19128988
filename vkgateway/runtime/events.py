"""Events that the gateway writes to a cluster: repeated ones are counted, and rate-limited."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
import structlog

from vkgateway.api import times
from vkgateway.api.objects import Meta, ObjectView
from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import Resource

log = structlog.get_logger(__name__)

Severity = Literal["Normal", "Warning"]

_CLUSTER_SCOPED: Final = "default"
"""Namespace in which Kubernetes stores the events of cluster-scoped objects."""
_MAX_SERIES: Final = 4096
_QUIET_SECONDS: Final = 30.0
"""Seconds for which the same event about the same object is only counted, and not written."""
_MESSAGE_MAX: Final = 1024
"""Maximum length of an Event's message (core/v1 validation)."""


@dataclass(slots=True)
class _Series:
    """One event as it was last written; `name` is empty until the event exists in the cluster."""

    name: str
    first: str
    written: float
    count: int = 1


class EventRecorder:
    """Writer of Events about the objects of one cluster. An event that cannot be written is logged.

    `counts_repeats` needs the right to patch Events. Without it, as in the management cluster, each event is a new one.
    """

    def __init__(self, client: Client, *, clock: Clock = SYSTEM_CLOCK, counts_repeats: bool = True) -> None:
        self._client = client
        self._clock = clock
        self._counts_repeats = counts_repeats
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()

    async def emit_event(
        self,
        metadata: Meta,
        *,
        reason: str,
        message: str,
        kind: Severity = "Warning",
        about: Resource = resources.PODS,
    ) -> None:
        """Emit an event about an object; repeats with the same words are written at most once in 30 seconds.

        `reason` is a CamelCase word, `message` a sentence for the administrator, truncated to 1,024 characters.
        """
        message = message[:_MESSAGE_MAX]
        key = (metadata.uid, reason, message)
        series = self._series.get(key)
        now = self._clock.time()
        try:
            if series is None:
                await self._create_event(key, metadata, (kind, about), now)
            elif now - series.written >= _QUIET_SECONDS:
                await self._repeat_event(key, series, metadata, (kind, about), now)
            else:
                series.count += 1
        except errors.ApiError as error:
            # Support bundles show `pod` and `reason`, and a tenant can choose a part of its pods' reasons.
            place = {"namespace": metadata.namespace, "pod": metadata.name}
            fields = place if metadata.namespace else {"object": metadata.name, "reason": reason}
            log.warning("event not written", **fields, error=str(error))

    async def _create_event(
        self, key: tuple[str, str, str], metadata: Meta, sort: tuple[Severity, Resource], now: float
    ) -> None:
        stamp = times.render_time(datetime.fromtimestamp(now, UTC))
        _, reason, message = key
        kind, about = sort
        namespace = metadata.namespace or _CLUSTER_SCOPED
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata.name[:200]}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                **({"namespace": metadata.namespace} if metadata.namespace else {}),
                "name": metadata.name,
                "uid": metadata.uid,
            },
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": "vkgateway"},
            "reportingComponent": "vkgateway",
        }
        answer = await self._client.create(resources.EVENTS, event, namespace=namespace)
        if not self._counts_repeats:
            return
        name = msgspec.json.decode(answer, type=ObjectView).metadata.name
        self._series[key] = _Series(name, stamp, now)
        while len(self._series) > _MAX_SERIES:
            self._series.popitem(last=False)

    async def _repeat_event(
        self, key: tuple[str, str, str], series: _Series, metadata: Meta, sort: tuple[Severity, Resource], now: float
    ) -> None:
        series.count += 1
        series.written = now
        change = {"count": series.count, "lastTimestamp": times.render_time(datetime.fromtimestamp(now, UTC))}
        try:
            await self._client.patch(
                resources.EVENTS, series.name, change, namespace=metadata.namespace or _CLUSTER_SCOPED
            )
        except errors.NotFound:
            # API servers drop events after an hour.
            del self._series[key]
            await self._create_event(key, metadata, sort, now)
