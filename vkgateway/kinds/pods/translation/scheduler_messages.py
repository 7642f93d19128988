"""Messages of an external scheduler about compute pods, reduced to what tenants may read.

Any scheduler may write anything, such as queues, gangs and pods of other tenants. Of its messages, tenants see the part
that has the form of kube-scheduler, which counts nodes and names none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from vkgateway.api.names import SCHEDULING_MODE
from vkgateway.api.objects import Object
from vkgateway.api.types import EXTERNAL
from vkgateway.kinds.pods.translation.conditions import DISRUPTION_CONDITION, POD_SCHEDULED

UNPLACED: Final = "the scheduler of the pool has not placed the pod"
EVICTED: Final = "the scheduler of the pool needs its resources for other pods"
_NODE_COUNTS: Final = re.compile(r"\b\d+/\d+ nodes are available: \d+ [^\"\n]*")
"""A plugin that refuses a pod before any node is considered writes its own words after the colon, not a count."""
_SCHEDULERS: Final = {POD_SCHEDULED: UNPLACED, DISRUPTION_CONDITION: EVICTED}
"""Conditions that schedulers write, with what tenants read instead of their messages."""
_PREEMPTION: Final = "PreemptionByScheduler"


def tenant_conditions(compute_pod: Mapping[str, Object]) -> Sequence[Object]:
    """Return the conditions of a compute pod, those by an external scheduler without its words."""
    found: Sequence[Object] = (compute_pod.get("status") or {}).get("conditions") or []
    annotations = (compute_pod.get("metadata") or {}).get("annotations") or {}
    if annotations.get(SCHEDULING_MODE) != EXTERNAL:
        return found
    return [_reduced(entry) if _is_schedulers(entry) else entry for entry in found]


def _is_schedulers(entry: Object) -> bool:
    return entry["type"] == POD_SCHEDULED or (
        entry["type"] == DISRUPTION_CONDITION and entry.get("reason") == _PREEMPTION
    )


def _reduced(entry: Object) -> Object:
    message = entry.get("message")
    if not message:
        return entry
    counts = _NODE_COUNTS.search(message)
    return {**entry, "message": counts[0].rstrip() if counts else _SCHEDULERS[entry["type"]]}
