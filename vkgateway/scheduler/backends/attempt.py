"""What the scheduler of a pool knows of a gang: one attempt to start it, in the terms of every scheduling mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import PoolKey


class AttemptState(StrEnum):
    """State of an attempt at the scheduler."""

    PENDING = "pending"
    ADMITTED = "admitted"
    """The scheduler reserves the resources of all its pods, and lets them start."""
    EVICTED = "evicted"
    """The scheduler wants its pods to terminate. It reserves their resources until the attempt is deleted."""
    DELETING = "deleting"
    """The object is deleted and still exists."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why an attempt is pending."""

    code: PendingReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt to start a gang, or one more pod of it, as the scheduler's object shows it."""

    name: str
    """Name of the object. A gang has one name, so that two attempts of it never exist at the same time."""
    namespace: str = SYSTEM_NAMESPACE
    uid: str
    """Empty: the scheduler has no object for a gang, and no queue of gangs."""
    resource_version: str
    tenant: str
    pool: PoolKey
    digest: str
    """Digest of what the attempt asks for."""
    state: AttemptState
    created: float = 0.0
    """Seconds since the epoch."""
    priority: int = 0
    slots: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Number of pods by node, for each pod set. An empty node name: the scheduler assigns no nodes."""
    returned: Mapping[str, int] = field(default_factory=dict)
    """Number of slots by pod set that the scheduler got back, because their pods have ended."""
    wait: Wait | None = None
    """Pending: why."""
    is_ready: bool = False
    """Whether the scheduler knows that all pods run."""
    preemptor: str = ""
    """Evicted: UID of the attempt that needs its resources, if the scheduler names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Pods of one shape that an attempt asks for."""

    name: str
    """Name that depends on the shape only, so that each pod finds its pod set after a restart."""
    count: int


@dataclass(frozen=True, slots=True)
class Breach:
    """Eviction of single pods of a gang by the scheduler, which leaves the gang incomplete."""

    attempt: str
    """UID of the gang's attempt at that time."""
    last_pod: float
    """When a pod of the attempt existed last, in seconds since the epoch."""
