"""Kueue's messages about pending Workloads, as pending reasons of tenants.

The text of a message never reaches a tenant: it names queues, nodes and Workloads of other tenants.
"""

from __future__ import annotations

from typing import Final

from vkgateway.scheduler.backends.attempt import Wait
from vkgateway.scheduler.core.decisions import PendingReason

NOT_CONSIDERED: Final = Wait(PendingReason.ROOM, "the scheduler of the pool has not considered it yet")

_WAITS: Final = (
    ("Pending the preemption of", Wait(PendingReason.EVICTION, "starts when pods that were notified have terminated")),
    ("maximum capacity", Wait(PendingReason.INFEASIBLE, "requests more than the pool or your limit ever offers")),
    ("exceeds nominal + borrowing", Wait(PendingReason.QUOTA, "its start would exceed your limit")),
    ("borrowing limit", Wait(PendingReason.QUOTA, "its start would exceed your limit")),
    ("doesn't allow to fit", Wait(PendingReason.ROOM, "no set of nodes has enough capacity for all of its pods now")),
    ("allows to fit only", Wait(PendingReason.ROOM, "no set of nodes has enough capacity for all of its pods now")),
    ("insufficient unused quota", Wait(PendingReason.ROOM, "other pods use the capacity that it needs")),
    ("insufficient quota", Wait(PendingReason.ROOM, "other pods use the capacity that it needs")),
    ("unavailable in ClusterQueue", Wait(PendingReason.INFEASIBLE, "requests a resource that the pool does not offer")),
    ("LocalQueue", Wait(PendingReason.ROOM, "the queue of the pool does not exist or is stopped")),
    ("ClusterQueue", Wait(PendingReason.ROOM, "the queue of the pool does not exist or is stopped")),
    ("Waiting for all admitted workloads", Wait(PendingReason.ROOM, "waits until earlier gangs of the pool are ready")),
)
"""By a part of Kueue's message; the first one that matches counts."""
_OTHER: Final = Wait(PendingReason.ROOM, "the scheduler of the pool has no capacity for it now")


def find_wait(message: str) -> Wait:
    """Return why a Workload with this message in its condition QuotaReserved is pending."""
    if not message:
        return NOT_CONSIDERED
    return next((wait for part, wait in _WAITS if part in message), _OTHER)
