"""Usage record: what a pod used of a resource, from one time to another; and how readers tell tenants apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

TenantKey = tuple[str, str]
"""Name and UID: a tenant of the same name as a deleted one has another UID, and usage of its own."""

KEY_FIELDS: Final = {"computeCluster": "compute_cluster", "tenantUid": "tenant_uid"}
"""By key of a group: the field that has its value, if it has another name."""


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Use of a resource by a pod from `start` to `end` (seconds since the epoch).

    A long-running pod has several records with the same start and later ends, so that each record is
    self-contained. Time covered by an earlier record is counted once, as in that record.
    """

    tenant: str
    tenant_uid: str = ""
    """UID of the Tenant: a later tenant of the same name is another one. Empty: not recorded."""
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


def tenant_labels(tenants: Iterable[TenantKey]) -> dict[TenantKey, str]:
    """Return a text for each tenant: its name, with the first part of its UID if several tenants had the name.

    Usage without a UID is that of the only tenant of the name, or else has the name alone.
    """
    uids: dict[str, set[str]] = defaultdict(set)
    for name, uid in tenants:
        uids[name].add(uid)
    return {
        (name, uid): f"{name} ({uid.partition('-')[0]})" if uid and len(found - {""}) > 1 else name
        for name, found in uids.items()
        for uid in found
    }
