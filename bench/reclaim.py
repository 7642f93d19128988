"""reclaim: a gang within its tenant's guarantee arrives in a pool that is full of lent-out work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench import load, startterms
from bench.eviction import Loss, Victim, least, loss
from bench.flows import always, warm_up
from bench.light import tenant_of
from bench.outcome import Cell, Outcome, Target
from bench.platform import GPU_NODES, GPU_POOL, GPUS_PER_NODE, Platform, Pool
from bench.pods import GPU, RUN_LABEL, PodKind, gang_marks
from bench.session import Session
from bench.stats import percentile
from bench.timeline import Key, Timeline, now
from bench.watching import SeenPod, watching
from vkgateway.kube.resources import PODS
from vkgateway.local import gateway_process
from vkgateway.model.names import LOW_CLASS

TITLE: Final = "A guaranteed gang of 64 GPUs arrives in a pool full of low-priority gangs"
COLUMNS: Final = [
    "round", "into an empty pool, s", "by eviction, s", "above the notice, s",
    "evicted, GPUs", "least possible", "work lost, GPU-s", "least possible, GPU-s",
]  # fmt: skip
_ROUNDS: Final = 5
_NODES: Final = 8
"""Nodes of the guaranteed gang, one pod on each."""
_OVER: Final = 2.0
_LOW: Final = ((1, 8), (2, 8), (3, 8), (2, 8), (4, 8), (2, 4), (2, 4), (2, 8))
"""The gangs that fill the pool: pods and GPUs a pod."""
_APART: Final = 0.5
"""Seconds between the starts of two of them, so that some have more to lose."""
_SETTLE: Final = 1.0
_OWNER: Final = "reclaim-owner"
_GUEST: Final = "reclaim-guest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Seconds from the first request for the gang to its last pod Running, in an empty pool and by eviction; what was
    evicted for it, and what had to be."""

    empty: float
    full: float
    evicted: Loss
    least: Loss
    terms: Mapping[str, float] = field(default_factory=dict)
    """Parts of the start by eviction as the gateway's metrics tell them, in seconds."""


async def run(session: Session) -> Outcome:
    """Run all rounds with two tenants, one that owns a guarantee and one that owns none."""
    platform = session.platform
    notice = gateway_process.gateway_settings(platform.paths, record=platform.record).arbiter.notice_seconds
    pools: dict[str, Pool] = {
        _OWNER: {"name": GPU_POOL, "guarantee": {GPU: str(_NODES * GPUS_PER_NODE)}},
        _GUEST: {"name": GPU_POOL},
    }
    rounds: list[Round] = []
    async with platform.tenants_with(pools) as (owner, guest):
        await _warm_up(owner, guest)
        for number in range(_ROUNDS):
            session.report(f"round {number + 1} of {_ROUNDS}")
            rounds.append(await _round(platform, owner, guest, run=f"reclaim-{number}"))
            over = rounds[-1].full - notice
            session.report.done(f"round {number + 1}: {over:.2f} s above the notice of {notice:g} s")
    return tell(rounds, notice=notice)


async def _warm_up(*places: load.Place) -> None:
    """What happens only with a tenant's first pod is none of the rounds."""
    kind = PodKind(run="reclaim-warm", gpus=1, restart="Never")
    timeline = Timeline()
    async with watching([(place.client, always(place.name)) for place in places], run=kind.run, timeline=timeline):
        await warm_up(places, kind, timeline=timeline)


async def _round(platform: Platform, owner: load.Place, guest: load.Place, *, run: str) -> Round:
    above, below = Timeline(), Timeline()
    watches = [(place.client, always(place.name)) for place in (owner, guest)]
    async with (
        watching(watches, run=run, timeline=above),
        watching([(platform.compute, tenant_of)], run=run, timeline=below),
    ):
        empty = await _start_gang(owner, "first", run=run, timeline=above)
        await _clear([owner, guest], above, below)
        gangs = await _fill(guest, run=run, timeline=above)
        nodes = await _nodes(platform, guest, run=run)
        socket = platform.paths.data_dir / "run/gateway.sock"
        before = await startterms.read(socket)
        full = await _start_gang(owner, "second", run=run, timeline=above)
        await asyncio.sleep(_SETTLE)
        terms = startterms.means(before, await startterms.read(socket))
        victims, evicted = _look(gangs, nodes, above)
        await _clear([owner, guest], above, below)
    return Round(
        empty=empty,
        full=full,
        evicted=loss(victims, evicted),
        least=least(victims, nodes=_NODES),
        terms=terms,
    )


async def _start_gang(place: load.Place, name: str, *, run: str, timeline: Timeline) -> float:
    """Create the guaranteed gang, all pods at once; the seconds until the last one runs."""
    kind = PodKind(run=run, gpus=GPUS_PER_NODE, restart="Never", annotations=gang_marks(name, _NODES))
    pods = [f"{name}-{index}" for index in range(_NODES)]
    keys: list[Key] = [(place.name, pod) for pod in pods]
    await load.create_all([place], [(0, pod) for pod in pods], kind, timeline=timeline)
    await timeline.until("ready", keys)
    sent, ready = timeline.of("sent"), timeline.of("ready")
    return max(ready[key] for key in keys) - min(sent[key] for key in keys)


async def _fill(place: load.Place, *, run: str, timeline: Timeline) -> dict[str, list[Key]]:
    """Fill the pool with low gangs, one after the other; the pods of each."""
    gangs: dict[str, list[Key]] = {}
    for number, (pods, gpus) in enumerate(_LOW):
        name = f"low-{number}"
        marks = gang_marks(name, pods)
        kind = PodKind(run=run, gpus=gpus, restart="Never", priority_class=LOW_CLASS, annotations=marks)
        wanted = [(0, f"{name}-{index}") for index in range(pods)]
        gangs[name] = [(place.name, pod) for _, pod in wanted]
        await load.create_all([place], wanted, kind, timeline=timeline)
        await asyncio.sleep(_APART)
    await timeline.until("ready", [key for keys in gangs.values() for key in keys])
    return gangs


async def _nodes(platform: Platform, place: load.Place, *, run: str) -> Mapping[Key, str]:
    """The compute node of each pod."""
    page = await platform.compute.list_all(PODS, label_selector=f"{RUN_LABEL}={run}")
    pods = [msgspec.json.decode(item, type=SeenPod) for item in page.items]
    return {(place.name, pod.metadata.name): pod.spec.node_name for pod in pods if tenant_of(pod) == place.name}


def _look(
    gangs: Mapping[str, Sequence[Key]], nodes: Mapping[Key, str], timeline: Timeline
) -> tuple[dict[str, Victim], list[str]]:
    """What each gang held and would lose by now, and the names of those that were evicted."""
    ready, ended = timeline.of("ready"), timeline.of("ended")
    end = max((ended[key] for keys in gangs.values() for key in keys if key in ended), default=now())
    victims: dict[str, Victim] = {}
    for (name, keys), (_, gpus) in zip(gangs.items(), _LOW, strict=True):
        victim = victims[name] = Victim()
        for key in keys:
            victim.gpus[nodes[key]] = victim.gpus.get(nodes[key], 0) + gpus
            victim.lost += gpus * (end - ready[key])
    return victims, [name for name, keys in gangs.items() if any(key in ended for key in keys)]


async def _clear(places: Sequence[load.Place], above: Timeline, below: Timeline) -> None:
    """Remove all pods there are."""
    keys = [key for key in above.of("sent") if key not in above.of("gone")]
    await load.delete_all(places, keys)
    await above.until("gone", keys)
    await below.until("gone", [key for key in keys if key in below.of("seen")])


def tell(rounds: Sequence[Round], *, notice: float) -> Outcome:
    """A row for each round, and the middle and the worst of them."""
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
            Target(what="GPUs evicted, share of the least possible", seen=round(max(evicted), 2), limit=1.0),
        ],
        notes=[
            f"Above the notice of {notice:g} s: p50 {percentile(over, 0.5):.2f} s, slowest {max(over):.2f} s.",
            *NOTES,
            *_parts(rounds),
        ],
    )


def _parts(rounds: Sequence[Round]) -> list[str]:
    """The middle of each part of the way; the watch's is left out, for it counts from whole seconds."""
    seen = {term: [each.terms[term] for each in rounds if term in each.terms] for term in _MEANINGS}
    middle = {term: percentile(seconds, 0.5) for term, seconds in seen.items() if seconds}
    told = [f"{what} {middle[term]:.2f} s" for term, what in _MEANINGS.items() if term in middle]
    return [f"Parts by the gateway's own metrics, p50 of the rounds: {', '.join(told)}."] if told else []


_MEANINGS: Final = {
    "cycle": "decision",
    "notice": "notice",
    "grace": "from its end until those who had to go were gone",
    "bind": "from the admission of a pod to its node",
}


NOTES: Final = [
    f"{GPU_NODES} hollow nodes of {GPUS_PER_NODE} GPUs, filled with {len(_LOW)} gangs of 1 to 4 nodes of another "
    f"tenant, two of them in halves of nodes, started {_APART:g} s apart.",
    "From the first request for the gang to the watch event in its tenant that shows its last pod Running. The grace "
    "period doesn't matter: pods on hollow nodes end when they are deleted.",
    "into an empty pool: the same gang before, without victims.",
    "least possible: over all sets of whole gangs whose eviction frees eight whole nodes, the fewest GPUs and, apart "
    "from that, the least work lost; a gang's work is its GPUs times the seconds that they have run.",
]
