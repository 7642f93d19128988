"""The end time in a pod's status."""

from __future__ import annotations

import msgspec

from vkgateway.model import times


class _Terminated(msgspec.Struct, rename="camel", gc=False):
    finished_at: str | None = None


class _ContainerState(msgspec.Struct, gc=False):
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, gc=False):
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _Status(msgspec.Struct, rename="camel", gc=False):
    container_statuses: tuple[_Container, ...] = ()


_status = msgspec.json.Decoder(_Status)


def ended_at(status: bytes) -> float | None:
    """Return the end of the last container (seconds since the epoch); None if the status does not have it."""
    try:
        ends = (each.state.terminated for each in _status.decode(status).container_statuses)
        found = [times.parse_time(end.finished_at).timestamp() for end in ends if end is not None and end.finished_at]
    except (msgspec.DecodeError, ValueError, OverflowError):
        return None
    return max(found, default=None)
