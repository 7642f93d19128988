"""Compute PodDisruptionBudgets, with an absolute number of healthy pods that the tenant cluster computes.

A compute cluster cannot evaluate percentages or `maxUnavailable`, because no controller owns compute pods there. The
tenant cluster's disruption controller publishes the result in `status.desiredHealthy`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vkgateway.api.names import UID_ANNOTATION, compute_metadata
from vkgateway.api.objects import Condition, Meta, Object, find_condition
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.metadata import selector_to_compute

NONE_ALLOWED: Final = 2**31 - 1
"""`minAvailable` that allows no disruption, whatever the number of pods."""

_DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
_SYNC_FAILED: Final = "SyncFailed"
"""Reason of the condition `DisruptionAllowed` if the controller could not count the pods.

No disruption is allowed then.
"""


class _BudgetStatus(msgspec.Struct, rename="camel", gc=False):
    observed_generation: int = 0
    desired_healthy: int = 0
    current_healthy: int = 0
    conditions: tuple[Condition, ...] | None = None


class DisruptionBudgetView(msgspec.Struct, kw_only=True):
    """PodDisruptionBudget with its whole spec, which is small."""

    metadata: Meta
    spec: dict[str, Any] = {}
    status: _BudgetStatus = msgspec.field(default_factory=_BudgetStatus)

    @property
    def is_status_current(self) -> bool:
        """Whether the status describes the current spec."""
        return self.status.observed_generation >= max(1, self.metadata.generation)

    @property
    def required_healthy(self) -> int:
        """Number of pods that must stay healthy, as computed by the budget's cluster."""
        allowed = find_condition(self.status.conditions or (), _DISRUPTION_ALLOWED)
        if not self.is_status_current or (allowed is not None and allowed.reason == _SYNC_FAILED):
            return NONE_ALLOWED
        return max(0, min(self.status.desired_healthy, NONE_ALLOWED))


decode_budget: Final = msgspec.json.Decoder(DisruptionBudgetView).decode


def forward_budget(source: DisruptionBudgetView, *, tenant: TenantContext, healthy_elsewhere: int = 0) -> Object:
    """Return the compute PodDisruptionBudget for a tenant's budget.

    `healthy_elsewhere` is the number of healthy pods in other compute clusters. They count towards the required number.
    """
    required = source.required_healthy
    if required != NONE_ALLOWED:
        required = max(0, required - healthy_elsewhere)
    spec: Object = {"minAvailable": required}
    if source.spec.get("selector") is not None:
        spec["selector"] = selector_to_compute(source.spec["selector"], tenant.tenant_only_prefixes)
    if source.spec.get("unhealthyPodEvictionPolicy"):
        spec["unhealthyPodEvictionPolicy"] = source.spec["unhealthyPodEvictionPolicy"]
    metadata = source.metadata
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": compute_metadata(tenant.name, metadata.namespace, metadata.name, metadata.uid),
        "spec": spec,
    }


def is_up_to_date(compute_budget: DisruptionBudgetView, wanted: Mapping[str, Any]) -> bool:
    """Return whether a compute budget has the wanted spec and tenant UID."""
    same_uid = (
        compute_budget.metadata.annotations.get(UID_ANNOTATION) == wanted["metadata"]["annotations"][UID_ANNOTATION]
    )
    return same_uid and _normalize_spec(compute_budget.spec) == _normalize_spec(wanted["spec"])


def _normalize_spec(spec: Mapping[str, Any]) -> Object:
    """Return a spec with an explicit selector. API servers drop empty parts of a selector."""
    selector = {key: value for key, value in (spec.get("selector") or {}).items() if value}
    return {**spec, "selector": selector if spec.get("selector") is not None else None}
