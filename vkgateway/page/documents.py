"""What the page shows to one kind of reader, as sections of keyed rows. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from vkgateway.api.objects import Condition
from vkgateway.api.times import parse_seconds

Scope = Literal["platform", "tenant"]
Rows = Mapping[str, Any]
"""Rows of one section by key; a row is an encodable struct that compares by value."""
Sections = Mapping[str, Rows]


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reason why a request is not answered, and the way out; both for people."""

    message: str
    hint: str = ""


class Audience(msgspec.Struct, frozen=True, kw_only=True):
    """Readers who see the same: operators of the platform, a tenant, or those of some of a tenant's namespaces."""

    tenant: str = ""
    """Empty: the platform."""
    namespaces: tuple[str, ...] | None = None
    """Namespaces of the tenant; None: all of the tenant, also what belongs to no namespace."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who reads the page. `expires` is in seconds since the epoch; None: only the token's lifetime limits it."""

    user: str
    scope: Scope
    tenant: str
    namespaces: tuple[str, ...] | None
    """Namespaces of the tenant that the reader sees; None: all."""
    expires: float | None
    version: str
    documentation: str = ""
    """Address of the documentation; empty: it is not published."""


class SignedIn(SessionInfo, frozen=True, kw_only=True):
    """A new session, with the key that its requests send (`cookies.KEY_HEADER`)."""

    key: str


class ConditionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Condition of an object. `since` is in seconds since the epoch."""

    type: str
    status: str
    reason: str
    message: str
    since: float | None


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """Compute cluster."""

    version: str
    conditions: tuple[ConditionRow, ...]


class ControlPlaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """Control plane of a tenant. `driver` is that of its Tenant; empty: the gateway's default."""

    phase: str
    driver: str
    version: str
    conditions: tuple[ConditionRow, ...]


class VirtualNodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Virtual node of a tenant, for one extended resource."""

    name: str
    pool: str
    resource: str
    capacity: str
    usable: bool
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """State at one moment (seconds since the epoch). A standby (`leading` is false) knows no state of the arbiter."""

    scope: Scope
    time: float
    leading: bool
    sections: Sections = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the document as JSON."""
        return msgspec.json.encode({"scope": self.scope, "time": self.time, "leading": self.leading, **self.sections})


def condition_rows(conditions: tuple[Condition, ...]) -> tuple[ConditionRow, ...]:
    """Return the conditions of an object as rows."""
    return tuple(
        ConditionRow(
            type=each.type,
            status=each.status,
            reason=each.reason,
            message=each.message,
            since=parse_seconds(each.last_transition_time) or None,
        )
        for each in conditions
    )
