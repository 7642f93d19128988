"""reclaim: a gang within its tenant's guarantee arrives in a pool that borrowing work fills."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench import load, startmetrics
from bench.eviction import Loss, Victim, find_minimal_loss, total_loss
from bench.flows import constant_place, warm_up
from bench.light import pod_tenant
from bench.outcome import Cell, Outcome, Target
from bench.platform import GPU_NODES, GPU_POOL, GPUS_PER_NODE, Platform, Pool
from bench.pods import GPU, RUN_LABEL, PodKind, gang_marks
from bench.session import Session
from bench.stats import percentile
from bench.timeline import Key, Timeline, now
from bench.watching import SeenPod, watch_pods
from vkgateway.api.names import LOW_CLASS
from vkgateway.kube.resources import PODS
from vkgateway_platform.embedded import gateway_process

TITLE: Final = "A guaranteed gang of 64 GPUs arrives in a pool full of low-priority gangs"
COLUMNS: Final = [
    "round", "into an empty pool, s", "by eviction, s", "above the notice, s",
    "evicted, GPUs", "minimum", "work lost, GPU-s", "minimum, GPU-s",
]  # fmt: skip
_ROUNDS: Final = 5
_NODES: Final = 8
"""Nodes of the guaranteed gang, one pod on each."""
_OVER: Final = 2.0
_LOW: Final = ((1, 8), (2, 8), (3, 8), (2, 8), (4, 8), (2, 4), (2, 4), (2, 8))
"""Gangs that fill the pool: pods and GPUs per pod."""
_START_INTERVAL: Final = 0.5
"""Seconds between the starts of two gangs, so that some have more work to lose."""
_SETTLE: Final = 1.0
_OWNER: Final = "reclaim-owner"
_GUEST: Final = "reclaim-guest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Figures of one round: seconds from the first request for the gang to its last pod Running, in an empty pool and
    by eviction, and the actual and the minimal loss.
    """

    empty: float
    full: float
    evicted: Loss
    least: Loss
    terms: Mapping[str, float] = field(default_factory=dict)
    """Parts of the start by eviction in seconds, from the gateway's metrics."""


async def run(session: Session) -> Outcome:
    """Run all rounds with two tenants, one with a guarantee and one without."""
    platform = session.platform
    notice = gateway_process.gateway_settings(platform.paths, record=platform.record).arbiter.notice_seconds
    pools: dict[str, Pool] = {
        _OWNER: {"name": GPU_POOL, "guarantee": {GPU: str(_NODES * GPUS_PER_NODE)}},
        _GUEST: {"name": GPU_POOL},
    }
    rounds: list[Round] = []
    async with platform.temporary_tenants(pools) as (owner, guest):
        await _warm_up(owner, guest)
        for number in range(_ROUNDS):
            session.report(f"round {number + 1} of {_ROUNDS}")
            rounds.append(await _run_round(platform, owner, guest, run=f"reclaim-{number}"))
            over = rounds[-1].full - notice
            session.report.done(f"round {number + 1}: {over:.2f} s above the notice of {notice:g} s")
    return build_outcome(rounds, notice=notice)


async def _warm_up(*places: load.Place) -> None:
    """Create and delete a pod of each tenant, so that one-time costs are not part of the rounds."""
    kind = PodKind(run="reclaim-warm", gpus=1, restart="Never")
    timeline = Timeline()
    async with watch_pods(
        [(place.client, constant_place(place.name)) for place in places], run=kind.run, timeline=timeline
    ):
        await warm_up(places, kind, timeline=timeline)


async def _run_round(platform: Platform, owner: load.Place, guest: load.Place, *, run: str) -> Round:
    tenant_timeline, compute_timeline = Timeline(), Timeline()
    watches = [(place.client, constant_place(place.name)) for place in (owner, guest)]
    async with (
        watch_pods(watches, run=run, timeline=tenant_timeline),
        watch_pods([(platform.compute, pod_tenant)], run=run, timeline=compute_timeline),
    ):
        empty = await _start_gang(owner, "first", run=run, timeline=tenant_timeline)
        await _delete_pods([owner, guest], tenant_timeline, compute_timeline)
        gangs = await _fill_pool(guest, run=run, timeline=tenant_timeline)
        nodes = await _pod_nodes(platform, guest, run=run)
        socket = platform.paths.data_dir / "run/gateway.sock"
        before = await startmetrics.read_terms(socket)
        full = await _start_gang(owner, "second", run=run, timeline=tenant_timeline)
        await asyncio.sleep(_SETTLE)
        terms = startmetrics.mean_terms(before, await startmetrics.read_terms(socket))
        victims, evicted = _find_evicted(gangs, nodes, tenant_timeline)
        await _delete_pods([owner, guest], tenant_timeline, compute_timeline)
    return Round(
        empty=empty,
        full=full,
        evicted=total_loss(victims, evicted),
        least=find_minimal_loss(victims, nodes=_NODES),
        terms=terms,
    )


async def _start_gang(place: load.Place, name: str, *, run: str, timeline: Timeline) -> float:
    """Create the guaranteed gang, all pods concurrently. Return the seconds until the last one runs."""
    kind = PodKind(run=run, gpus=GPUS_PER_NODE, restart="Never", annotations=gang_marks(name, _NODES))
    pods = [f"{name}-{index}" for index in range(_NODES)]
    keys: list[Key] = [(place.name, pod) for pod in pods]
    await load.create_all([place], [(0, pod) for pod in pods], kind, timeline=timeline)
    await timeline.wait_for("ready", keys)
    sent, ready = timeline.times_of("sent"), timeline.times_of("ready")
    return max(ready[key] for key in keys) - min(sent[key] for key in keys)


async def _fill_pool(place: load.Place, *, run: str, timeline: Timeline) -> dict[str, list[Key]]:
    """Fill the pool with low gangs, one after the other. Return the pods of each."""
    gangs: dict[str, list[Key]] = {}
    for number, (pods, gpus) in enumerate(_LOW):
        name = f"low-{number}"
        marks = gang_marks(name, pods)
        kind = PodKind(run=run, gpus=gpus, restart="Never", priority_class=LOW_CLASS, annotations=marks)
        wanted = [(0, f"{name}-{index}") for index in range(pods)]
        gangs[name] = [(place.name, pod) for _, pod in wanted]
        await load.create_all([place], wanted, kind, timeline=timeline)
        await asyncio.sleep(_START_INTERVAL)
    await timeline.wait_for("ready", [key for keys in gangs.values() for key in keys])
    return gangs


async def _pod_nodes(platform: Platform, place: load.Place, *, run: str) -> Mapping[Key, str]:
    """Return the compute node of each pod."""
    page = await platform.compute.list_all(PODS, label_selector=f"{RUN_LABEL}={run}")
    pods = [msgspec.json.decode(item, type=SeenPod) for item in page.items]
    return {(place.name, pod.metadata.name): pod.spec.node_name for pod in pods if pod_tenant(pod) == place.name}


def _find_evicted(
    gangs: Mapping[str, Sequence[Key]], nodes: Mapping[Key, str], timeline: Timeline
) -> tuple[dict[str, Victim], list[str]]:
    """Return GPUs and current work of each gang, and the names of the evicted gangs."""
    ready, ended = timeline.times_of("ready"), timeline.times_of("ended")
    end = max((ended[key] for keys in gangs.values() for key in keys if key in ended), default=now())
    victims: dict[str, Victim] = {}
    for (name, keys), (_, gpus) in zip(gangs.items(), _LOW, strict=True):
        victim = victims[name] = Victim()
        for key in keys:
            victim.gpus[nodes[key]] = victim.gpus.get(nodes[key], 0) + gpus
            victim.lost += gpus * (end - ready[key])
    return victims, [name for name, keys in gangs.items() if any(key in ended for key in keys)]


async def _delete_pods(places: Sequence[load.Place], tenant_timeline: Timeline, compute_timeline: Timeline) -> None:
    keys = [key for key in tenant_timeline.times_of("sent") if key not in tenant_timeline.times_of("gone")]
    await load.delete_all(places, keys)
    await tenant_timeline.wait_for("gone", keys)
    await compute_timeline.wait_for("gone", [key for key in keys if key in compute_timeline.times_of("seen")])


def build_outcome(rounds: Sequence[Round], *, notice: float) -> Outcome:
    """Return a row for each round, and rows with the median and the maximum."""
    over = [each.full - notice for each in rounds]
    evicted = [each.evicted.gpus / each.least.gpus for each in rounds]
    rows: list[list[Cell]] = [
        [
            number,
            round(each.empty, 2),
            round(each.full, 2),
            round(each.full - notice, 2),
            each.evicted.gpus,
            each.least.gpus,
            round(each.evicted.lost),
            round(each.least.lost),
        ]
        for number, each in enumerate(rounds, start=1)
    ]
    return Outcome(
        columns=COLUMNS,
        rows=rows,
        targets=[
            Target(what="start above the notice, slowest round", seen=round(max(over), 2), limit=_OVER, unit="s"),
            Target(what="GPUs evicted, relative to the minimum", seen=round(max(evicted), 2), limit=1.0),
        ],
        notes=[
            f"Above the notice of {notice:g} s: p50 {percentile(over, 0.5):.2f} s, slowest {max(over):.2f} s.",
            *NOTES,
            *_part_notes(rounds),
        ],
    )


def _part_notes(rounds: Sequence[Round]) -> list[str]:
    """Return the median of each part of the start.

    The watch's is left out, because its timestamps are whole seconds.
    """
    seen = {term: [each.terms[term] for each in rounds if term in each.terms] for term in _MEANINGS}
    middle = {term: percentile(seconds, 0.5) for term, seconds in seen.items() if seconds}
    parts = [f"{what} {middle[term]:.2f} s" for term, what in _MEANINGS.items() if term in middle]
    return [f"Parts by the gateway's own metrics, p50 of the rounds: {', '.join(parts)}."] if parts else []


_MEANINGS: Final = {
    "cycle": "decision",
    "notice": "notice",
    "grace": "from its end until the victims had terminated",
    "bind": "from the admission of a pod to its node",
}


NOTES: Final = [
    f"{GPU_NODES} hollow nodes of {GPUS_PER_NODE} GPUs, filled with {len(_LOW)} gangs of 1 to 4 nodes of another "
    f"tenant, two of them in halves of nodes, started {_START_INTERVAL:g} s apart.",
    "From the first request for the gang to the watch event in its tenant that shows its last pod Running. The grace "
    "period doesn't matter: pods on hollow nodes end when they are deleted.",
    "into an empty pool: the same gang before, without victims.",
    "minimum: over all sets of whole gangs whose eviction frees eight whole nodes, the fewest GPUs and, apart "
    "from that, the least work lost; a gang's work is its GPUs times the seconds that they have run.",
]
