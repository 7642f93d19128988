"""Usage record: what a pod used of a resource, from one time to another."""

from __future__ import annotations

import msgspec


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Use of a resource by a pod from `start` to `end` (seconds since the epoch).

    A long-running pod has several records with the same start and later ends, so that each record is
    self-contained. Time covered by an earlier record is counted once, as in that record.
    """

    tenant: str
    namespace: str
    pod: str
    gang: str
    band: str
    """guaranteed or low."""
    borrowed: bool
    """Used outside the tenant's guarantee."""
    pool: str
    compute_cluster: str
    resource: str
    units: float
    """Amount of the resource (GPUs)."""
    start: float
    end: float
    lost: float = 0.0
    """Seconds of work at the end of the interval that a preemption lost."""
    why: str = ""
    """Why the pod ended; empty while it runs."""
