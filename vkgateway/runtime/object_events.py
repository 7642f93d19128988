"""Kubernetes events about Tenants and ComputeClusters in the management cluster."""

from __future__ import annotations

from typing import Literal

import structlog

from vkgateway.api import times
from vkgateway.api.objects import Meta
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import EVENTS, Resource

log = structlog.get_logger(__name__)

# Kubernetes stores the events of cluster-scoped objects there.
EVENT_NAMESPACE = "default"
MAX_MESSAGE_LENGTH = 1024


class EventRecorder:
    """Recorder of events; a failed write is only logged."""

    def __init__(self, client: Client, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._clock = clock

    async def emit(
        self,
        resource: Resource,
        metadata: Meta,
        *,
        reason: str,
        message: str,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Write an event about a cluster-scoped object; `reason` is one CamelCase word."""
        stamp = times.render_time(self._clock.now())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata.name}.", "namespace": EVENT_NAMESPACE},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": metadata.name,
                "uid": metadata.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message[:MAX_MESSAGE_LENGTH],
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": "vkgateway"},
            "reportingComponent": "vkgateway",
        }
        try:
            await self._client.create(EVENTS, event, namespace=EVENT_NAMESPACE)
        except errors.ApiError as error:
            log.warning("event not written", object=metadata.name, reason=reason, error=str(error))
