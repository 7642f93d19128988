"""Status of Tenants and ComputeClusters, computed from facts (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from vkgateway.api.objects import Condition, set_condition
from vkgateway.api.types import (
    ACCEPTED,
    CONNECTED,
    CONTROL_PLANE_READY,
    DATASTORE_WRITABLE,
    GUARANTEE_KEPT,
    IMAGES_PULLED,
    POOLS_APART,
    PUBLISHED,
    READY,
    SCHEDULERS_READY,
    SPEC_EFFECTIVE,
    VIRTUAL_NODES_READY,
    WITHIN_BUDGET,
    ApiServerStatus,
    ComputeClusterStatus,
    PoolStatus,
    TenantPoolStatus,
    TenantStatus,
)

Phase = Literal["Pending", "Provisioning", "Ready", "Degraded", "Deleting"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Content of a condition: status, a reason for programs, a sentence for people.

    `is_failure` distinguishes a failure from work in progress.
    """

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    is_failure: bool = False

    @property
    def is_true(self) -> bool:
        """Whether the status is True."""
        return self.status == "True"


def true_verdict(reason: str, message: str = "") -> Verdict:
    """Return a verdict with the status True."""
    return Verdict("True", reason, message)


def unknown_verdict(reason: str, message: str = "") -> Verdict:
    """Return a verdict with the status Unknown: work in progress, not a failure."""
    return Verdict("Unknown", reason, message)


def false_verdict(reason: str, message: str = "") -> Verdict:
    """Return a verdict with the status False that is a failure."""
    return Verdict("False", reason, message, is_failure=True)


IMPOSSIBLE_REASON = "Impossible"
"""Reason of a failure that only a changed spec can fix."""
TAKEN_REASON = "Taken"
"""Reason of a failure because a requested resource belongs to another tenant."""
QUIET_REASONS = frozenset({"NotStarted", "NotReconciled"})
"""Reasons that mean that nothing has happened yet."""

NOT_RECONCILED = unknown_verdict("NotReconciled", "not reconciled yet")
BEFORE_ACCEPTANCE = unknown_verdict("NotStarted", "waiting for acceptance")
BEFORE_CONTROL_PLANE = unknown_verdict("NotStarted", "waiting for the control plane")


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """Known state of a tenant."""

    accepted: Verdict = NOT_RECONCILED
    control_plane: Verdict = BEFORE_ACCEPTANCE
    virtual_nodes: Verdict = BEFORE_CONTROL_PLANE
    guarantee: Verdict | None = None
    """Whether the nodes can hold the guarantee; None while unknown."""
    budget: Verdict | None = None
    """How much of the budgets is used; None without a budget."""
    datastore: Verdict | None = None
    """Whether the API server may write; None if it was never blocked."""
    published: Verdict | None = None
    """Whether clients outside the management cluster reach the API server; None if they need not."""
    effect: Verdict | None = None
    """Which parts of the spec have no effect now; None if all have one."""
    api_server: ApiServerStatus | None = None
    pools: tuple[TenantPoolStatus, ...] = ()
    deleting: Verdict | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True."""
        return self.condition_verdicts()[READY].is_true

    def condition_verdicts(self) -> dict[str, Verdict]:
        """Return conditions by type, in the order in which they become True; Ready summarizes those before it."""
        parts = {
            ACCEPTED: self.accepted,
            CONTROL_PLANE_READY: self.control_plane,
            VIRTUAL_NODES_READY: self.virtual_nodes,
        }
        optional = {
            GUARANTEE_KEPT: self.guarantee,
            WITHIN_BUDGET: self.budget,
            DATASTORE_WRITABLE: self.datastore,
            PUBLISHED: self.published,
            SPEC_EFFECTIVE: self.effect,
        }
        known = {kind: verdict for kind, verdict in optional.items() if verdict is not None}
        return parts | {READY: self.deleting or _ready_verdict(list(parts.values()))} | known


def _ready_verdict(parts: Sequence[Verdict]) -> Verdict:
    missing = next((part for part in parts if not part.is_true), None)
    if missing is None:
        return true_verdict("Ready", "the control plane and all virtual nodes are ready")
    return Verdict("False", missing.reason, missing.message, is_failure=missing.is_failure)


def tenant_status(facts: TenantFacts, *, old: TenantStatus, generation: int, now: datetime) -> TenantStatus:
    """Return the status for the facts; unchanged conditions keep the transition times of `old`."""
    verdicts = facts.condition_verdicts()
    return TenantStatus(
        observed_generation=generation,
        phase=_tenant_phase(facts, ready=verdicts[READY].is_true, old=old.phase),
        conditions=_update_conditions(verdicts, old=old.conditions, generation=generation, now=now),
        api_server=facts.api_server,
        pools=facts.pools,
    )


def _tenant_phase(facts: TenantFacts, *, ready: bool, old: Phase) -> Phase:
    if facts.deleting is not None:
        return "Deleting"
    if ready:
        return "Ready"
    if old in {"Ready", "Degraded"}:
        return "Degraded"
    return "Provisioning" if facts.accepted.is_true else "Pending"


@dataclass(frozen=True, slots=True)
class ComputeFacts:
    """Known state of a compute cluster."""

    connected: Verdict
    ready: Verdict
    version: str = ""
    pools: tuple[PoolStatus, ...] = ()
    shared_nodes: Verdict | None = None
    """Verdict that pools share nodes; None if they do not."""
    schedulers: Verdict | None = None
    """Verdict on the schedulers of pools; None if the arbiter schedules all pools."""
    images: Verdict | None = None
    """Verdict on the images that pools keep; None if no pool keeps images."""


def compute_status(
    facts: ComputeFacts, *, old: ComputeClusterStatus, generation: int, now: datetime
) -> ComputeClusterStatus:
    """Return the status for the facts; unchanged conditions keep the transition times of `old`."""
    ready = facts.ready if facts.connected.is_true else facts.connected
    verdicts = {CONNECTED: facts.connected, READY: ready}
    if facts.shared_nodes is not None:
        verdicts[POOLS_APART] = facts.shared_nodes
    if facts.schedulers is not None:
        verdicts[SCHEDULERS_READY] = facts.schedulers
    if facts.images is not None:
        verdicts[IMAGES_PULLED] = facts.images
    return ComputeClusterStatus(
        observed_generation=generation,
        version=facts.version or old.version,
        conditions=_update_conditions(verdicts, old=old.conditions, generation=generation, now=now),
        pools=facts.pools,
    )


def _update_conditions(
    verdicts: dict[str, Verdict], *, old: Sequence[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    conditions = [condition for condition in old if condition.type in verdicts]
    for kind, verdict in verdicts.items():
        new = Condition(
            type=kind,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message,
            observed_generation=generation,
        )
        conditions = set_condition(conditions, new, now=now)
    return tuple(conditions)


_EXPECTED_REASONS = frozenset({"Kept", "WithinBudget"})
"""Reasons of conditions that are worth an event only after another reason."""
_DETAILED = frozenset({GUARANTEE_KEPT, WITHIN_BUDGET})
"""Conditions whose messages name what is affected."""


def changed_conditions(
    old: Sequence[Condition], new: Sequence[Condition], *, quiet: Collection[str] = ()
) -> list[Condition]:
    """Return the new conditions that deserve an event, because their status or reason changed.

    Ready repeats other conditions, so only its status counts. For guarantees and budgets, the message counts as well.
    Reasons in `quiet` get no event, and neither does the first report of a guarantee or budget without a problem.
    """
    previous = {condition.type: _comparison_key(condition) for condition in old}
    return [
        condition
        for condition in new
        if (condition.reason not in _EXPECTED_REASONS or condition.type in previous)
        and previous.get(condition.type) != _comparison_key(condition)
        and condition.reason not in quiet
        and _is_worth_event(condition)
    ]


def _comparison_key(condition: Condition) -> tuple[str, str, str]:
    reason = "" if condition.type == READY else condition.reason
    return condition.status, reason, condition.message if condition.type in _DETAILED else ""


def _is_worth_event(condition: Condition) -> bool:
    return condition.type != READY or condition.status == "True" or condition.reason.startswith("Delet")


def verdict_from_condition(conditions: Sequence[Condition], kind: str) -> Verdict | None:
    """Return a stored condition as a verdict; None if the condition does not exist."""
    found = next((one for one in conditions if one.type == kind), None)
    if found is None:
        return None
    return {"True": true_verdict, "False": false_verdict}.get(found.status, unknown_verdict)(
        found.reason, found.message
    )


AnyStatus = TypeVar("AnyStatus", TenantStatus, ComputeClusterStatus)


def status_patch(old: AnyStatus, new: AnyStatus) -> dict[str, object]:
    """Return the top-level fields in which two statuses differ, for a merge patch.

    If no status was written before, return all fields: `old` then holds only defaults.
    """
    written = old.observed_generation > 0
    before, after = msgspec.to_builtins(old) if written else {}, msgspec.to_builtins(new)
    return {key: value for key, value in after.items() if key not in before or before[key] != value}
