"""Reconcile requests: their kinds, and the part of the workers' queue that belongs to one tenant."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.workqueue import FairQueue

K = TypeVar("K", bound=Hashable)

BATCH_SECONDS: Final = 0.02
"""Seconds within which changes of one Service and its slices, or of one volume, are gathered."""


class ReconcileRequest(NamedTuple):
    """A request to reconcile one object of a tenant."""

    kind: str
    key: Hashable


RequestQueue = FairQueue[ReconcileRequest]


@dataclass(frozen=True)
class RequestKind(Generic[K]):
    """A kind of reconcile request, with keys of one type.

    The module of the reconciler declares its kind; kinds that lower packages request, too, are declared here.
    """

    name: str
    """Also the value of the metric label `sort`."""
    delay: float = 0.0
    """Seconds within which changes of one object are gathered before it is reconciled."""


POD: Final = RequestKind[Key]("pod")
"""A tenant pod and its compute pod."""
GATE: Final = RequestKind[Key]("gate")
"""A tenant pod that waits for admission, or that must be read for the arbiter."""


class WorkQueue:
    """The reconcile requests of one tenant."""

    def __init__(self, tenant: str, queue: RequestQueue) -> None:
        self._tenant = tenant
        self._queue = queue

    def enqueue(self, kind: RequestKind[K], key: K, after: float | None = None) -> None:
        """Request a reconcile within `after` seconds; without it, within the delay of the kind."""
        self._queue.add(self._tenant, ReconcileRequest(kind.name, key), delay=kind.delay if after is None else after)
