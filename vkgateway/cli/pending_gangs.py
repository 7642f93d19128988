"""Pending gangs as listed by `queue`, from the gateway's state or from a tenant's pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from vkgateway.api import times
from vkgateway.api.errors import NotFoundError
from vkgateway.api.objects import Object
from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.kinds.pods.translation.conditions import ADMITTED_CONDITION
from vkgateway.kinds.pods.translation.to_compute import pod_band
from vkgateway.scheduler.core.reasons.report_types import (
    ArbiterReport,
    GangReport,
    ShareReport,
    gangs_waiting_in,
)
from vkgateway.scheduler.gangs import FoundObjects, MarkError, read_marks
from vkgateway.scheduler.governed import governed_requests, has_gate, is_governed
from vkgateway.scheduler.pending_message import PendingMessage, parse_message, render_expected_start

SINGLE_POD = "pod"
"""Gang source of a pod without a gang."""


class PendingGang(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Gang with waiting pods, or a waiting pod without a gang."""

    pool: str
    """Virtual node of the pool in whose queue the gang is, or where it runs; empty: none."""
    place: int
    tenant: str
    """Empty if the list comes from the tenant's pods."""
    namespace: str
    name: str
    way: str
    band: str
    pods: int
    """Number of waiting pods."""
    running: int = 0
    """Number of running or starting pods of the gang."""
    asks: str
    """Sum of the waiting pods' requests for resources that the arbiter allocates."""
    code: str
    message: str
    expected: str
    """Expected start; empty if there is no forecast."""
    since: str
    """RFC 3339; empty if unknown."""
    behind: str = ""
    """For admins: the gang ahead with a reservation."""
    share: ShareReport | None = None
    """For admins: the fair share that orders it, if past shares count."""


def pending_in_state(
    state: ArbiterReport, *, tenant: str = "", pool: str = "", namespace: str = ""
) -> list[PendingGang]:
    """Return the pending gangs in the gateway's state. Raises NotFoundError for an unknown tenant or pool."""
    tenants = {tenant.tenant for tenant in state.tenants} | {gang.tenant for gang in state.gangs}
    nodes = {pool.node for pool in state.pools}.union(*(gang.pools for gang in state.gangs))
    _require_known("tenant", tenant, tenants)
    _require_known("pool", pool.partition(".")[0], {node.partition(".")[0] for node in nodes})
    units = {found.node: found.resource for found in reversed(state.pools)}
    return [
        _from_gang_state(gang, units, now=state.time, share=state.share_of(gang))
        for gang in gangs_waiting_in(state, tenant, pool)
        if namespace in ("", gang.namespace)
    ]


def _require_known(kind: str, name: str, known: set[str]) -> None:
    if name and name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise NotFoundError(
            f"{kind} {name!r} does not exist or has no extended resources", hint=f"Available {kind}s: {names}."
        )


def share_text(share: ShareReport) -> str:
    """Return both parts of a fair share, such as `0.250 + 0.313 past`, with a weight other than 1."""
    parts = f"{share.now:.3f} + {share.past:.3f} past"
    return parts if share.weight == 1 else f"({parts}) / {share.weight:g}"


def _from_gang_state(
    gang: GangReport, units: Mapping[str, str], *, now: float, share: ShareReport | None
) -> PendingGang:
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
        share=share,
    )


def pending_from_pods(
    pods: Iterable[Object], *, companions: FoundObjects | None = None, pool: str = ""
) -> list[PendingGang]:
    """Return the pending gangs from the conditions of a tenant's pods and from their companion objects.

    Running pods count if other pods of their gang wait.
    """
    gangs: dict[str, list[Object]] = {}
    started: dict[str, list[Object]] = {}
    for pod in pods:
        if pending_condition(pod) is not None:
            gangs.setdefault(gang_of(pod, companions), []).append(pod)
        elif _has_started(pod):
            started.setdefault(gang_of(pod, companions), []).append(pod)
    pending = [_from_pods(group, members, started.get(group, [])) for group, members in gangs.items()]
    selected = [gang for gang in pending if not pool or pool in (gang.pool, gang.pool.partition(".")[0])]
    return sorted(selected, key=_sort_key)


def _sort_key(gang: PendingGang) -> tuple[object, ...]:
    """Return the sort key: queued gangs first, then other waiting gangs, then running gangs that can grow."""
    return (
        gang.running > 0 and not gang.place,
        not gang.place,
        gang.pool,
        gang.place,
        gang.since,
        gang.namespace,
        gang.name,
    )


def namespaces_with_gangs(pods: Iterable[Object]) -> set[str]:
    """Return the namespaces with waiting pods that may belong to gangs, from the pods' marks alone."""
    groups = (gang_of(pod).split("/", 2) for pod in pods if pending_condition(pod) is not None)
    return {namespace for namespace, source, _ in groups if source != SINGLE_POD}


def _has_started(pod: Object) -> bool:
    """Return whether the pod was admitted and has not ended."""
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    return phase in ("Pending", "Running") and is_governed(pod) and not has_gate(pod)


def pending_condition(pod: Object) -> Object | None:
    """Return the condition with the pending reason; None if the pod does not wait or has none yet."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    found = next((entry for entry in conditions if entry["type"] == ADMITTED_CONDITION), None)
    return found if found is not None and found["status"] == "False" else None


def parse_pending(pod: Object) -> PendingMessage:
    """Return the parsed message of a waiting pod's condition."""
    return parse_message((pending_condition(pod) or {}).get("message") or "")


def gang_of(pod: Object, companions: FoundObjects | None = None) -> str:
    """Return a pod's gang as `namespace/source/name`, from its marks and companion objects.

    A pod with invalid marks is a separate gang.
    """
    try:
        return read_marks(pod, companions or {}).group
    except MarkError:
        metadata = pod["metadata"]
        return f"{metadata['namespace']}/{SINGLE_POD}/{metadata.get('uid', '')}"


def requested_resources(pods: Iterable[Object]) -> str:
    """Return the sum of the pods' requests for resources that the arbiter allocates."""
    total: MilliResources = {}
    for pod in pods:
        for name, value in governed_requests(pod).items():
            total[name] = total.get(name, 0) + value
    return render_milli(total)


def _from_pods(group: str, waiting: list[Object], started: list[Object]) -> PendingGang:
    first = waiting[0]
    namespace, source, name = group.split("/", 2)
    pending = parse_pending(first)
    return PendingGang(
        pool=pending.pool or next(filter(None, map(_node_name, started)), ""),
        place=pending.queue_position,
        tenant="",
        namespace=namespace,
        name=first["metadata"]["name"] if source == SINGLE_POD else name,
        way="" if source == SINGLE_POD else source,
        band=pod_band(first.get("spec") or {}),
        pods=len(waiting),
        running=len(started),
        asks=requested_resources(waiting),
        code=(pending_condition(first) or {}).get("reason") or "",
        message=pending.reason,
        expected=pending.expected_start,
        since=min(pod["metadata"].get("creationTimestamp") or "" for pod in waiting),
    )


def _node_name(pod: Object) -> str:
    return (pod.get("spec") or {}).get("nodeName") or ""
