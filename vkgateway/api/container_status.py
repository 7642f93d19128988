"""Narrow view of a container's status: why it waits, and how it ended."""

from __future__ import annotations

import msgspec


class Waiting(msgspec.Struct):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, rename="camel"):
    """The end of a container; with `FallbackToLogsOnError`, the message is the end of its log."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct):
    """At most one of the states of a container; none of them while it runs."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    """Status of a container."""

    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)
