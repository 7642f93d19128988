"""What a tenant can do about a gang that waits, by pending reason and band."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import LOW

_RUN_LIMIT: Final = "With a run limit (annotation vkgateway.io/gang-run-limit)"
_NO_GUARANTEE: Final = "Low-priority pods do not use the guarantee"

ADVICE: Final[Mapping[str, str]] = {
    PendingReason.QUOTA: "The tenant's limit stops the gang. It starts when other pods of the tenant end, or when an "
    "admin raises the limit in the Tenant. A gang that requests more than the whole limit needs a higher limit. A pool "
    "without a quota must be added to the Tenant.",
    PendingReason.BUDGET: "The tenant's monthly budget is used up, and the gang does not fit the guarantee now. It "
    "starts when enough pods inside the guarantee end, when an admin raises the guarantee or spec.budget of the "
    "Tenant, or when a budget of the next month is available.",
    PendingReason.ROOM: "Nodes must become free. Smaller pods start sooner. A gang that fits the guarantee starts by "
    f"eviction of borrowing pods, if there are any. {_RUN_LIMIT}, the gang can be backfilled.",
    PendingReason.MEMBERS: "The gang is incomplete: pods are missing, or the object with the number of pods, or a "
    "scheduler that binds the pods. Check their controller (a Job, an operator, a quota) and their events.",
    PendingReason.EVICTION: "Pods on its nodes terminate for this gang. No action is needed.",
    PendingReason.RESERVATION: "The capacity is reserved for a gang ahead in the queue. If the start of that gang is "
    f"known: {_RUN_LIMIT[0].lower()}{_RUN_LIMIT[1:]} that ends before it, this gang can start now. A higher "
    "priority puts it ahead of the tenant's other gangs of the same band.",
    PendingReason.MAXIMUM: "The gang has reached its maximum size. Raise the annotation "
    "vkgateway.io/gang-elastic-max on its pods, or create fewer pods.",
    PendingReason.INFEASIBLE: (
        "The gang can never start in this form. Request less in each pod, fewer pods, or another pool."
    ),
    PendingReason.INVALID: "The marks of the gang are not valid. Correct them on its pods (kubectl annotate "
    "--overwrite) and in the pod template.",
}
"""What a tenant can do, by pending reason. It is true for both bands, except where `_LOW_ADVICE` differs."""
_LOW_ADVICE: Final[Mapping[str, str]] = {
    PendingReason.BUDGET: f"The tenant's monthly budget is used up. {_NO_GUARANTEE}: the gang starts when an admin "
    "raises spec.budget of the Tenant, or when a budget of the next month is available. Without a low priority class, "
    "it could start inside the guarantee.",
    PendingReason.ROOM: f"Nodes must become free. {_NO_GUARANTEE}, and evict no pods of other tenants. Smaller pods "
    f"start sooner. {_RUN_LIMIT}, the gang can be backfilled.",
}


def advice_for(code: str, band: str = "") -> str:
    """Return what a tenant can do about a gang of a band (empty: unknown); empty: the code is no pending reason."""
    if band == LOW and code in _LOW_ADVICE:
        return _LOW_ADVICE[code]
    return ADVICE.get(code, "")
