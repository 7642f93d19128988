"""What can be said of one pod: whether it waits, for what, with whom, and what would help. Without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.reasons.report_types import ArbiterReport, PoolReport
from vkgateway.cli.pending_gangs import SINGLE_POD, gang_of, parse_pending, pending_condition, requested_resources
from vkgateway.model.names import EVICTION_DEADLINE_ANNOTATION
from vkgateway.model.objects import Object
from vkgateway.sync.admission.verdict_store import PREEMPTED
from vkgateway.translate.conditions import DISRUPTION_CONDITION, FORWARDED_CONDITION, POOL_SCHEDULED_CONDITION
from vkgateway.translate.gangs import FoundObjects, Kind, MarkError, read_marks
from vkgateway.translate.gangs.mark_detection import has_mark
from vkgateway.translate.governed import has_gate, is_governed, other_gates, pod_band

HELP_BY_REASON: Final[Mapping[str, str]] = {
    PendingReason.QUOTA: "The tenant's limit is reached. It starts when other pods of the tenant end; what "
    "asks for more "
    "than the whole limit never does. Whoever made the tenant may raise the limit.",
    PendingReason.ROOM: "Nodes must come free. Pods that ask for less find room sooner; a declared run "
    "limit (annotation "
    "vkgateway.io/gang-run-limit) lets it run in gaps.",
    PendingReason.MEMBERS: "The gang is not complete: pods are missing, or the object that says how many "
    "there are, or a "
    "scheduler that binds them. Look at what makes them (a Job, an operator, a quota), and at their events.",
    PendingReason.EVICTION: "Room is being made: those who borrowed it were told to go. Nothing is to be done.",
    PendingReason.RESERVATION: "A larger gang that is ahead keeps room. What declares by the annotation "
    "vkgateway.io/gang-run-limit that it ends before may run in it.",
    PendingReason.MAXIMUM: "As many of the gang's pods run as it may grow to. Raise the annotation "
    "vkgateway.io/gang-elastic-max on its pods, or make fewer.",
    PendingReason.INFEASIBLE: (
        "It can never start as it is. Ask for less in each pod, for fewer pods, or for another pool."
    ),
    PendingReason.INVALID: "The marks of the gang cannot be used as they are. Put them right on its pods "
    "(kubectl annotate "
    "--overwrite), and in the template that the pods are made from.",
}
"""What a tenant can do, by the reason for which a pod waits."""


class GangFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The gang that a pod is of, as far as its pods and the objects beside them tell."""

    name: str
    way: str
    """How it was said."""
    minimum: int | None
    """None: an object beside the pods says it, which is not there or may not be read."""
    pods: int
    waiting: int
    """Those that were not told why yet, too."""
    running: int


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that is said of one pod."""

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
    code: str = ""
    message: str = ""
    place: int = 0
    pool: str = ""
    expected: str = ""
    deadline: str = ""
    help: str = ""
    behind: str = ""
    """For ops: the gang ahead for which room is kept."""
    room: str = ""
    """For ops: how the pool stands."""
    holds: str = ""
    """For ops: whether what its gang holds is inside the guarantee."""


def explain_pod(
    pod: Object,
    siblings: Iterable[Object],
    *,
    beside: FoundObjects | None = None,
    unserved: frozenset[Kind] = frozenset(),
    state: ArbiterReport | None = None,
    tenant: str = "",
) -> PodExplanation:
    """What can be said of a pod, with the other pods of its namespace, and for ops with the gateway's word.

    `beside` holds the objects beside the pod that say more about its gang, `unserved` the kinds that its marks need and
    that the tenant's API server does not serve.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    said = parse_pending(pod)
    code = (pending_condition(pod) or {}).get("reason") or ""
    governed = is_governed(pod, unserved)
    condition, summary, message = _pod_state(pod, governed=governed)
    found = _gateway_facts(pod, beside or {}, state, tenant)
    return PodExplanation(
        namespace=metadata["namespace"],
        name=metadata["name"],
        state=condition,
        phase=status.get("phase") or "",
        summary=summary,
        asks=requested_resources([pod]),
        band=pod_band(spec) if governed else "",
        node=spec.get("nodeName") or "",
        gang=_gang_facts(pod, siblings, beside or {}) if governed or not has_mark(pod) else None,
        code=code if condition == "waiting" else "",
        message=said.reason if condition == "waiting" else message,
        place=said.queue_position,
        pool=said.pool,
        expected=said.expected_start,
        deadline=(metadata.get("annotations") or {}).get(EVICTION_DEADLINE_ANNOTATION) or "",
        help=HELP_BY_REASON.get(code, "") if condition == "waiting" else "",
        behind=found[0],
        room=found[1],
        holds=found[2],
    )


_PodState = tuple[str, str, str]
"""State, what it means, and a message that stands on the pod."""


def _pod_state(pod: Object, *, governed: bool) -> _PodState:
    phase = (pod.get("status") or {}).get("phase") or ""
    found = _ended_state(pod, phase) or _terminating_state(pod) or _pending_state(pod, governed=governed)
    if found is not None:
        return found
    return ("running", "It runs.", "") if phase == "Running" else _starting_state(pod, governed=governed)


def _ended_state(pod: Object, phase: str) -> _PodState | None:
    if phase not in ("Succeeded", "Failed"):
        return None
    disrupted = _find_condition(pod, DISRUPTION_CONDITION)
    if disrupted is not None and disrupted.get("reason") == PREEMPTED:
        return "ended", "It was evicted: others who come first needed its room.", _condition_message(disrupted)
    return "ended", f"It has ended: {phase}.", pod["status"].get("message") or ""


def _terminating_state(pod: Object) -> _PodState | None:
    if pod["metadata"].get("deletionTimestamp"):
        return "leaving", "It is being deleted.", ""
    disrupted = _find_condition(pod, DISRUPTION_CONDITION)
    if disrupted is None or disrupted["status"] != "True":
        return None
    return "leaving", "It was told to go: others who come first need its room.", _condition_message(disrupted)


def _pending_state(pod: Object, *, governed: bool) -> _PodState | None:
    if pending_condition(pod) is not None:
        return "waiting", "It waits for the arbiter.", ""
    if not (governed and has_gate(pod)):
        return None
    gates = other_gates(pod)
    others = f" It also carries gates of others: {', '.join(gates)}." if gates else ""
    return "waiting", f"It waits for the arbiter, which has said nothing of it yet.{others}", ""


def _starting_state(pod: Object, *, governed: bool) -> _PodState:
    for kind in (FORWARDED_CONDITION, POOL_SCHEDULED_CONDITION):
        trouble = _find_condition(pod, kind)
        if trouble is not None and trouble["status"] == "False":
            return "starting", "It may start, and cannot yet.", _condition_message(trouble)
    if not governed:
        mark = "the mark of a gang whose kind this cluster does not serve" if has_mark(pod) else "no gang's mark"
        return "ungoverned", f"It asks for no device and carries {mark}: it starts as in any cluster.", ""
    bound = (pod.get("spec") or {}).get("nodeName")
    if bound:
        return "starting", "It was admitted, and is being started.", ""
    return "starting", "It was admitted; a scheduler of this cluster binds it now. If none does, see its events.", ""


def _find_condition(pod: Object, kind: str) -> dict[str, Any] | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry["type"] == kind), None)


def _condition_message(condition: Mapping[str, Any]) -> str:
    return condition.get("message") or condition.get("reason") or ""


def _gang_facts(pod: Object, siblings: Iterable[Object], beside: FoundObjects) -> GangFacts | None:
    group = gang_of(pod, beside)
    _, way, name = group.split("/", 2)
    if way == SINGLE_POD:
        return None
    try:
        marks = read_marks(pod, beside)
    except MarkError:
        return None
    phases = [
        ((one.get("status") or {}).get("phase") or "", _pod_state(one, governed=is_governed(one))[0] == "waiting")
        for one in siblings
        if gang_of(one, beside) == group and (one.get("status") or {}).get("phase") != "Failed"
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
    """How a pool stands, in a sentence."""
    return (
        f"{pool.node}: of {pool.allocatable:.10g} {pool.resource} {pool.used:.10g} used inside guarantees, "
        f"{pool.borrowed:.10g} borrowed, {pool.free:.10g} free, at most {pool.largest:.10g} of them on one node"
    )


def _gateway_facts(pod: Object, beside: FoundObjects, state: ArbiterReport | None, tenant: str) -> tuple[str, str, str]:
    """The gang ahead for which room is kept, how the pool stands, and whether its gang borrows; empty: not known."""
    if state is None:
        return "", "", ""
    group = f"{tenant}/{gang_of(pod, beside)}"
    gang = next((one for one in state.gangs if one.id == group), None)
    node = gang.pool if gang is not None else (pod.get("spec") or {}).get("nodeName") or parse_pending(pod).pool
    nodes = (gang.spread if gang is not None else ()) or (node,)
    pools = (next((one for one in state.pools if one.node == name), None) for name in nodes)
    room = "; ".join(pool_capacity_text(pool) for pool in pools if pool is not None)
    if gang is None:
        return "", room, ""
    holds = "borrowed, at least in part: may be called in" if gang.borrowed else "all inside the tenant's guarantee"
    return gang.behind, room, holds if gang.placed else ""
