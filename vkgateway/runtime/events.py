"""Events that the gateway writes to a tenant cluster: repeated ones are counted, and rate-limited."""

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
from vkgateway.kube.clock import Clock

log = structlog.get_logger(__name__)

About = Literal["Pod", "Service", "PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget"]
"""The kind of an event's object."""
_API_VERSIONS: Final[dict[About, str]] = {
    "Pod": "v1",
    "Service": "v1",
    "PersistentVolumeClaim": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
}
Severity = Literal["Normal", "Warning"]

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
    """Writer of Events about a tenant's objects. An event that cannot be written is logged."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()

    async def emit_event(
        self,
        metadata: Meta,
        *,
        reason: str,
        message: str,
        kind: Severity = "Warning",
        about: About = "Pod",
    ) -> None:
        """Emit an event about an object, at most once in 30 seconds with the same words.

        `reason` is a CamelCase word, `message` a sentence for the tenant's administrator, truncated to 1,024
        characters.
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
            log.warning("event not written", namespace=metadata.namespace, pod=metadata.name, error=str(error))

    async def _create_event(
        self, key: tuple[str, str, str], metadata: Meta, sort: tuple[Severity, About], now: float
    ) -> None:
        stamp = times.render_time(datetime.fromtimestamp(now, UTC))
        _, reason, message = key
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata.name[:200]}.", "namespace": metadata.namespace},
            "involvedObject": {
                "apiVersion": _API_VERSIONS[sort[1]],
                "kind": sort[1],
                "namespace": metadata.namespace,
                "name": metadata.name,
                "uid": metadata.uid,
            },
            "reason": reason,
            "message": message,
            "type": sort[0],
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": "vkgateway"},
            "reportingComponent": "vkgateway",
        }
        answer = await self._client.create(resources.EVENTS, event, namespace=metadata.namespace)
        name = msgspec.json.decode(answer, type=ObjectView).metadata.name
        self._series[key] = _Series(name, stamp, now)
        while len(self._series) > _MAX_SERIES:
            self._series.popitem(last=False)

    async def _repeat_event(
        self, key: tuple[str, str, str], series: _Series, metadata: Meta, sort: tuple[Severity, About], now: float
    ) -> None:
        series.count += 1
        try:
            await self._write_count(series, metadata.namespace, now)
        except errors.NotFound:
            # API servers drop events after an hour.
            del self._series[key]
            await self._create_event(key, metadata, sort, now)

    async def _write_count(self, series: _Series, namespace: str, now: float) -> None:
        stamp = times.render_time(datetime.fromtimestamp(now, UTC))
        series.written = now
        await self._client.patch(
            resources.EVENTS,
            series.name,
            {"count": series.count, "lastTimestamp": stamp},
            namespace=namespace,
        )
