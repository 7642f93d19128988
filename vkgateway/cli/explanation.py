"""Explanation of one pod: whether and why it waits, and what helps (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from vkgateway.api import times
from vkgateway.api.names import EVICTION_DEADLINE_ANNOTATION
from vkgateway.api.objects import Object
from vkgateway.cli.pending_gangs import (
    SINGLE_POD,
    gang_of,
    parse_pending,
    pending_condition,
    requested_resources,
    share_text,
)
from vkgateway.kinds.pods.translation.conditions import (
    DISRUPTION_CONDITION,
    FORWARDED_CONDITION,
    POOL_SCHEDULED_CONDITION,
    PREEMPTED,
    RUN_LIMIT_REACHED,
)
from vkgateway.kinds.pods.translation.to_compute import pod_band
from vkgateway.scheduler.core.reasons.advice import advice_for
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, PoolReport
from vkgateway.scheduler.gangs import FoundObjects, Kind, MarkError, read_marks
from vkgateway.scheduler.gangs.mark_detection import has_mark
from vkgateway.scheduler.governed import has_gate, is_governed, other_gates


class GangFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Gang of a pod, from the marks on its pods and its companion objects."""

    name: str
    way: str
    """Gang source."""
    minimum: int | None
    """Min members; None if a companion object holds it that is missing or not readable."""
    pods: int
    waiting: int
    """Waiting pods, including those without a pending reason yet."""
    running: int


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Explanation of one pod."""

    namespace: str
    name: str
    state: str
    """waiting, starting, running, leaving, ended or ungoverned."""
    phase: str
    summary: str
    asks: str
    band: str
    node: str
    gang: GangFacts | None
    start: str = ""
    """Duration of each phase of the start, and the current one."""
    code: str = ""
    message: str = ""
    place: int = 0
    pool: str = ""
    expected: str = ""
    deadline: str = ""
    help: str = ""
    behind: str = ""
    """For admins: the gang ahead with a reservation."""
    room: str = ""
    """For admins: the capacity of the pool."""
    share: str = ""
    """For admins: the fair share that orders its gang, if past shares count."""
    holds: str = ""
    """For admins: whether the capacity of its gang is inside the guarantee."""


def explain_pod(
    pod: Object,
    siblings: Iterable[Object],
    *,
    companions: FoundObjects | None = None,
    unserved: frozenset[Kind] = frozenset(),
    state: ArbiterReport | None = None,
    tenant: str = "",
    start: str = "",
) -> PodExplanation:
    """Return the explanation of a pod from the pods of its namespace, and for admins from the gateway's state.

    `companions` are the companion objects of its gang. `unserved` are the kinds that its marks need and that the
    tenant's API server does not serve. `start` describes the phases of the start.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    pending = parse_pending(pod)
    code = (pending_condition(pod) or {}).get("reason") or ""
    governed = is_governed(pod, unserved)
    condition, summary, message = _pod_state(pod, governed=governed)
    behind, room, holds = _gateway_facts(pod, companions or {}, state, tenant)
    return PodExplanation(
        namespace=metadata["namespace"],
        name=metadata["name"],
        state=condition,
        phase=status.get("phase") or "",
        summary=summary,
        asks=requested_resources([pod]),
        band=pod_band(spec) if governed else "",
        node=spec.get("nodeName") or "",
        gang=_gang_facts(pod, siblings, companions or {}) if governed or not has_mark(pod) else None,
        start=start,
        code=code if condition == "waiting" else "",
        message=pending.reason if condition == "waiting" else message,
        place=pending.queue_position,
        pool=pending.pool,
        expected=pending.expected_start,
        deadline=(metadata.get("annotations") or {}).get(EVICTION_DEADLINE_ANNOTATION) or "",
        help=advice_for(code, pod_band(spec)) if condition == "waiting" else "",
        behind=behind,
        room=room,
        holds=holds,
        share=_explain_share(pod, companions or {}, state, tenant) if condition == "waiting" and state else "",
    )


_PodState = tuple[str, str, str]
"""State, its meaning, and a message from the pod."""


def _pod_state(pod: Object, *, governed: bool) -> _PodState:
    phase = (pod.get("status") or {}).get("phase") or ""
    found = _ended_state(pod, phase) or _terminating_state(pod) or _pending_state(pod, governed=governed)
    if found is not None:
        return found
    return ("running", "The pod is running.", "") if phase == "Running" else _starting_state(pod, governed=governed)


def _ended_state(pod: Object, phase: str) -> _PodState | None:
    if phase not in ("Succeeded", "Failed"):
        return None
    disrupted = _find_condition(pod, DISRUPTION_CONDITION)
    if disrupted is not None and disrupted.get("reason") == PREEMPTED:
        return "ended", "The arbiter evicted the pod: its capacity was reclaimed.", _condition_message(disrupted)
    if disrupted is not None and disrupted.get("reason") == RUN_LIMIT_REACHED:
        return "ended", "The arbiter evicted the pod: its gang reached its run limit.", _condition_message(disrupted)
    return "ended", f"The pod has terminated: {phase}.", pod["status"].get("message") or ""


def _terminating_state(pod: Object) -> _PodState | None:
    if pod["metadata"].get("deletionTimestamp"):
        return "leaving", "The pod is being deleted.", ""
    disrupted = _find_condition(pod, DISRUPTION_CONDITION)
    if disrupted is None or disrupted["status"] != "True":
        return None
    why = (
        "its gang reaches its run limit"
        if disrupted.get("reason") == RUN_LIMIT_REACHED
        else "its capacity is reclaimed"
    )
    return "leaving", f"The arbiter evicts the pod: {why}.", _condition_message(disrupted)


def _pending_state(pod: Object, *, governed: bool) -> _PodState | None:
    if pending_condition(pod) is not None:
        return "waiting", "The pod waits for the arbiter.", ""
    if not (governed and has_gate(pod)):
        return None
    gates = other_gates(pod)
    others = f" It also has other scheduling gates: {', '.join(gates)}." if gates else ""
    return "waiting", f"The pod waits for the arbiter, which has not decided yet.{others}", ""


def _starting_state(pod: Object, *, governed: bool) -> _PodState:
    for kind in (FORWARDED_CONDITION, POOL_SCHEDULED_CONDITION):
        condition = _find_condition(pod, kind)
        if condition is not None and condition["status"] == "False":
            return "starting", "The pod was admitted, but cannot start yet.", _condition_message(condition)
    if not governed:
        mark = "the gang mark of a kind that this cluster does not serve" if has_mark(pod) else "no gang mark"
        return "ungoverned", f"The pod requests no extended resource and has {mark}. It starts without the arbiter.", ""
    bound = (pod.get("spec") or {}).get("nodeName")
    if bound:
        return "starting", "The pod was admitted and is starting.", ""
    return "starting", "The pod was admitted; the tenant's scheduler binds it now. If it does not, see its events.", ""


def _find_condition(pod: Object, kind: str) -> dict[str, Any] | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry["type"] == kind), None)


def _condition_message(condition: Mapping[str, Any]) -> str:
    return condition.get("message") or condition.get("reason") or ""


def _gang_facts(pod: Object, siblings: Iterable[Object], companions: FoundObjects) -> GangFacts | None:
    group = gang_of(pod, companions)
    _, source, name = group.split("/", 2)
    if source == SINGLE_POD:
        return None
    try:
        marks = read_marks(pod, companions)
    except MarkError:
        return None
    phases = [
        (
            (sibling.get("status") or {}).get("phase") or "",
            _pod_state(sibling, governed=is_governed(sibling))[0] == "waiting",
        )
        for sibling in siblings
        if gang_of(sibling, companions) == group and (sibling.get("status") or {}).get("phase") != "Failed"
    ]
    return GangFacts(
        name=name,
        way=marks.integration,
        minimum=marks.minimum if marks.missing_reference is None else None,
        pods=len(phases),
        waiting=sum(waits for _, waits in phases),
        running=sum(phase == "Running" for phase, _ in phases),
    )


def pool_capacity_text(pool: PoolReport) -> str:
    """Return the capacity of a pool in a sentence."""
    return (
        f"{pool.node}: {pool.allocatable:.10g} {pool.resource}, {pool.used:.10g} used inside guarantees, "
        f"{pool.borrowed:.10g} borrowed, {pool.free:.10g} free (at most {pool.largest:.10g} on one node)"
    )


def _explain_share(pod: Object, companions: FoundObjects, state: ArbiterReport, tenant: str) -> str:
    """Return the fair share of a waiting gang, and when half of its past part will be forgiven; empty: unknown."""
    group = f"{tenant}/{gang_of(pod, companions)}"
    gang = next((each for each in state.gangs if each.id == group), None)
    share = state.share_of(gang) if gang is not None else None
    if gang is None or share is None:
        return ""
    ahead = [each for each in state.shares if each.pool == share.pool and each.key < share.key]
    lower = f"; {len(ahead)} of {sum(each.pool == share.pool for each in state.shares) - 1} other tenants have less"
    if not share.past:
        return f"{share_text(share)}{lower}"
    total = share.now + share.past
    half = times.render_time(datetime.fromtimestamp(share.at + state.half_life, UTC))
    return (
        f"{share_text(share)}: {share.past / total:.0%} of it is from the past; half of that is forgiven by {half} if "
        f"the tenant borrows nothing until then{lower}"
    )


def _gateway_facts(
    pod: Object, companions: FoundObjects, state: ArbiterReport | None, tenant: str
) -> tuple[str, str, str]:
    """Return the gang ahead with a reservation, the pool's capacity, and whether the gang borrows; empty: unknown."""
    if state is None:
        return "", "", ""
    group = f"{tenant}/{gang_of(pod, companions)}"
    gang = next((gang_state for gang_state in state.gangs if gang_state.id == group), None)
    node = gang.pool if gang is not None else (pod.get("spec") or {}).get("nodeName") or parse_pending(pod).pool
    nodes = (gang.spread if gang is not None else ()) or (node,)
    pools = (next((pool for pool in state.pools if pool.node == name), None) for name in nodes)
    room = "; ".join(pool_capacity_text(pool) for pool in pools if pool is not None)
    if gang is None:
        return "", room, ""
    holds = "borrowed, at least in part; may be reclaimed" if gang.borrowed else "all inside the tenant's guarantee"
    return gang.behind, room, holds if gang.placed else ""
