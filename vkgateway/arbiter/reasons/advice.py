"""What a tenant can do about a gang that waits, by pending reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vkgateway.arbiter.decisions import PendingReason

ADVICE: Final[Mapping[str, str]] = {
    PendingReason.QUOTA: "The tenant's limit is reached. The gang starts when other pods of the tenant end. A gang "
    "that requests more than the whole limit never starts; an admin can raise the limit.",
    PendingReason.BUDGET: "The tenant's monthly budget is used up, and the gang does not fit the guarantee now. It "
    "starts when pods inside the guarantee end, when an admin raises spec.budget of the Tenant, or in the next month.",
    PendingReason.ROOM: "Nodes must become free. Smaller pods start sooner. With a run limit (annotation "
    "vkgateway.io/gang-run-limit), the gang can be backfilled.",
    PendingReason.MEMBERS: "The gang is incomplete: pods are missing, or the object with the number of pods, or a "
    "scheduler that binds the pods. Check their controller (a Job, an operator, a quota) and their events.",
    PendingReason.EVICTION: "The arbiter evicts borrowing pods for this gang. No action is needed.",
    PendingReason.RESERVATION: "The capacity is reserved for a larger gang ahead in the queue. With a run limit "
    "(annotation vkgateway.io/gang-run-limit) that ends before the reservation, the gang can start now.",
    PendingReason.MAXIMUM: "The gang has reached its maximum size. Raise the annotation "
    "vkgateway.io/gang-elastic-max on its pods, or create fewer pods.",
    PendingReason.INFEASIBLE: (
        "The gang can never start in this form. Request less in each pod, fewer pods, or another pool."
    ),
    PendingReason.INVALID: "The marks of the gang are not valid. Correct them on its pods (kubectl annotate "
    "--overwrite) and in the pod template.",
}
"""What a tenant can do, by pending reason."""
