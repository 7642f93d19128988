"""Gangs that wait, as `queue` lists them: out of the gateway's state, or out of a tenant's pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from vkgateway.arbiter.reasons.report_types import ArbiterReport, GangReport, gangs_waiting_in
from vkgateway.model import times
from vkgateway.model.errors import NotFoundError
from vkgateway.model.objects import Object
from vkgateway.model.requests import MilliResources, render_milli
from vkgateway.translate.conditions import ADMITTED_CONDITION
from vkgateway.translate.gangs import FoundObjects, MarkError, read_marks
from vkgateway.translate.governed import governed_requests, has_gate, is_governed, pod_band
from vkgateway.translate.pending_message import PendingMessage, parse_message, render_expected_start

SINGLE_POD = "pod"
"""Stands for the way in which a gang was said where a pod is in none."""


class PendingGang(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A gang, or a pod that is in none, of which something waits."""

    pool: str
    """Virtual node in whose line it stands, or where it runs; empty: in none."""
    place: int
    tenant: str
    """Empty where only the tenant itself was asked."""
    namespace: str
    name: str
    way: str
    band: str
    pods: int
    """Those that wait."""
    running: int = 0
    """Others of the gang that run already, or start; 0: it has not started."""
    asks: str
    """What those that wait ask for together, of what is handed out."""
    code: str
    message: str
    expected: str
    """When it may start; empty where that is no question of time."""
    since: str
    """RFC 3339; empty: not known."""
    behind: str = ""
    """For ops: the gang ahead for which room is kept."""


def pending_in_state(
    state: ArbiterReport, *, tenant: str = "", pool: str = "", namespace: str = ""
) -> list[PendingGang]:
    """By the gateway's word. Raises NotFoundError for a tenant or a pool that it does not know."""
    tenants = {each.tenant for each in state.tenants} | {gang.tenant for gang in state.gangs}
    nodes = {each.node for each in state.pools}.union(*(gang.pools for gang in state.gangs))
    _require_known("tenant with a pool of devices", tenant, tenants)
    _require_known("pool of devices", pool.partition(".")[0], {node.partition(".")[0] for node in nodes})
    units = {found.node: found.resource for found in reversed(state.pools)}
    return [
        _from_gang_state(gang, units, now=state.time)
        for gang in gangs_waiting_in(state, tenant, pool)
        if namespace in ("", gang.namespace)
    ]


def _require_known(what: str, name: str, known: set[str]) -> None:
    if name and name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise NotFoundError(f"there is no {what} called {name!r}", hint=f"There are: {there}.")


def _from_gang_state(gang: GangReport, units: Mapping[str, str], *, now: float) -> PendingGang:
    resource = units.get(gang.pool, "")
    return PendingGang(
        pool=gang.pool if gang.place or gang.placed else "",
        place=gang.place,
        tenant=gang.tenant,
        namespace=gang.namespace,
        name=gang.name,
        way=gang.way,
        band=gang.band,
        pods=gang.pods - gang.placed,
        running=gang.placed,
        asks=f"{resource} {gang.waiting_units:.10g}" if resource else "",
        code=gang.code,
        message=gang.message,
        expected=render_expected_start(gang.earliest, gang.likely, now=now) if gang.place else "",
        since="" if gang.since is None or gang.placed else times.render_time(datetime.fromtimestamp(gang.since, UTC)),
        behind=gang.behind,
    )


def pending_from_pods(
    pods: Iterable[Object], *, beside: FoundObjects | None = None, pool: str = ""
) -> list[PendingGang]:
    """By the conditions that stand on a tenant's own pods, and by the objects beside them.

    Pods that run are counted with those of their gang that wait.
    """
    gangs: dict[str, list[Object]] = {}
    started: dict[str, list[Object]] = {}
    for pod in pods:
        if pending_condition(pod) is not None:
            gangs.setdefault(gang_of(pod, beside), []).append(pod)
        elif _has_started(pod):
            started.setdefault(gang_of(pod, beside), []).append(pod)
    found = [_from_pods(group, members, started.get(group, [])) for group, members in gangs.items()]
    chosen = [one for one in found if not pool or pool in (one.pool, one.pool.partition(".")[0])]
    return sorted(chosen, key=_sort_key)


def _sort_key(one: PendingGang) -> tuple[object, ...]:
    """In line, then what stands in none, and at the end what runs and waits for more room."""
    return (one.running > 0 and not one.place, not one.place, one.pool, one.place, one.since, one.namespace, one.name)


def namespaces_with_gangs(pods: Iterable[Object]) -> set[str]:
    """The namespaces in which pods wait that may be of gangs, as far as they tell by themselves."""
    groups = (gang_of(pod).split("/", 2) for pod in pods if pending_condition(pod) is not None)
    return {namespace for namespace, way, _ in groups if way != SINGLE_POD}


def _has_started(pod: Object) -> bool:
    """Whether it has what it asked for."""
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    return phase in ("Pending", "Running") and is_governed(pod) and not has_gate(pod)


def pending_condition(pod: Object) -> Object | None:
    """The condition that says why a pod waits; None: it does not, or nothing was said yet."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    found = next((entry for entry in conditions if entry["type"] == ADMITTED_CONDITION), None)
    return found if found is not None and found["status"] == "False" else None


def parse_pending(pod: Object) -> PendingMessage:
    """What the condition of a pod that waits says."""
    return parse_message((pending_condition(pod) or {}).get("message") or "")


def gang_of(pod: Object, beside: FoundObjects | None = None) -> str:
    """A pod's gang, `namespace/way/name`, as far as the pod and what is known beside it tell; one whose marks make no
    sense stands alone."""
    try:
        return read_marks(pod, beside or {}).group
    except MarkError:
        metadata = pod["metadata"]
        return f"{metadata['namespace']}/{SINGLE_POD}/{metadata.get('uid', '')}"


def requested_resources(pods: Iterable[Object]) -> str:
    """What pods ask for together, of what is handed out."""
    total: MilliResources = {}
    for pod in pods:
        for name, value in governed_requests(pod).items():
            total[name] = total.get(name, 0) + value
    return render_milli(total)


def _from_pods(group: str, members: list[Object], started: list[Object]) -> PendingGang:
    first = members[0]
    namespace, way, name = group.split("/", 2)
    said = parse_pending(first)
    return PendingGang(
        pool=said.pool or next(filter(None, map(_node_name, started)), ""),
        place=said.queue_position,
        tenant="",
        namespace=namespace,
        name=first["metadata"]["name"] if way == SINGLE_POD else name,
        way="" if way == SINGLE_POD else way,
        band=pod_band(first.get("spec") or {}),
        pods=len(members),
        running=len(started),
        asks=requested_resources(members),
        code=(pending_condition(first) or {}).get("reason") or "",
        message=said.reason,
        expected=said.expected_start,
        since=min(pod["metadata"].get("creationTimestamp") or "" for pod in members),
    )


def _node_name(pod: Object) -> str:
    return (pod.get("spec") or {}).get("nodeName") or ""
