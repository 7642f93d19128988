"""Narrow view of the events that kubelets of a compute cluster emit."""

from __future__ import annotations

from typing import Final

import msgspec

from vkgateway.api import times
from vkgateway.api.objects import Meta

SELECTOR: Final = "involvedObject.kind=Pod,source=kubelet"
"""Field selector for the events that kubelets emit about pods; API servers support both fields for events (core/v1)."""


class Involved(msgspec.Struct, rename="camel", gc=False):
    """Pod that an event is about."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    field_path: str = ""


class EventView(msgspec.Struct, rename="camel", gc=False):
    """Event; `count` and the two timestamps are absent if the kubelet uses the newer API."""

    metadata: Meta
    involved_object: Involved = msgspec.field(default_factory=Involved)
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def last_seen(self) -> float:
        """Time of the last occurrence, in seconds since the epoch; 0 if the event has no timestamp."""
        stamp = self.last_timestamp or self.event_time or self.metadata.creation_timestamp
        return times.parse_time(stamp).timestamp() if stamp else 0.0


decode_event: Final = msgspec.json.Decoder(EventView).decode
