"""decide: one cycle of the arbiter over a large pool, from scratch and incrementally, without a platform."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from typing import Final

import msgspec

from bench.outcome import Cell, Outcome, Target
from bench.session import Session
from vkgateway.kube.clock import SystemClock
from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.outcome import apply_decisions
from vkgateway.scheduler.core.snapshot import Band, Gang, Node, Pod, PodState, Pool, Quota, Shape, Snapshot
from vkgateway.scheduler.service.decisionlog import BYTES_PER_SECOND, DecisionLog

TITLE: Final = "A cycle of the arbiter: 10,000 nodes, 100,000 running and 100,000 pending pods"
COLUMNS: Final = ["figure", "value", "unit"]
NODES: Final = 10_000
_KEY: Final = ("compute", "pool")
_GPU: Final = "nvidia.com/gpu"
_PER_NODE: Final = 16
"""GPUs of a node."""
_TENANTS: Final = 100
_CYCLES: Final = 5
_ENDED: Final = 0.05
"""Share of the running pods that end between two cycles."""
_SHAPES: Final = tuple(
    Shape.from_requests({_GPU: gpus * 1000, "cpu": gpus * 4000, "memory": gpus << 43, "pods": 1000}) for gpus in (1, 2)
)


class CycleFigures(msgspec.Struct, kw_only=True):
    """Figures of one run in a separate process: seconds of CPU, pods per second of CPU, MiB."""

    scratch: float
    idle: float
    cycles: list[float]
    placed: int
    naive: float
    facts: float
    memory: float
    logged: float
    """CPU to log a cycle with the whole snapshot."""
    changes: float
    """CPU to log a cycle with the changes since the previous cycle."""
    brief: float
    """CPU to log a cycle with its changes when the log exceeds its budget."""
    lines: list[float]
    """MiB of these three log lines."""


async def run(session: Session | None) -> Outcome:
    """Measure in a separate process with its own memory. The session is not needed."""
    if session is not None:
        session.report("a cycle of the arbiter over 10,000 nodes")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.decide", str(NODES), stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    return _build_outcome(msgspec.json.decode(answer, type=CycleFigures))


def _build_outcome(figures: CycleFigures) -> Outcome:
    cycle = sorted(figures.cycles)[len(figures.cycles) // 2]
    rate = figures.placed / sum(figures.cycles)
    rows: list[list[Cell]] = [
        ["from scratch", round(figures.scratch, 2), "s"],
        ["no changes", round(figures.idle, 2), "s"],
        [f"{_ENDED:.0%} of the pods ended, median", round(cycle, 2), "s"],
        ["pods placed in such cycles", round(rate), "a second"],
        ["decision log entry: whole snapshot", round(figures.logged, 2), "s"],
        ["decision log entry: changes", round(figures.changes, 2), "s"],
        ["decision log entry: changes, over budget", round(figures.brief, 2), "s"],
        ["naive first fit", round(figures.naive), "pods a second"],
        ["the arbiter, relative to first fit", round(rate / figures.naive, 1), "times"],
        ["memory: snapshot only", round(figures.facts), "MiB"],
        ["memory: peak", round(figures.memory), "MiB"],
    ]
    return Outcome(
        columns=list(COLUMNS),
        rows=rows,
        targets=[
            Target(what="incremental cycle", seen=round(cycle, 2), limit=1.0, unit="s"),
            Target(what="pods placed", seen=round(rate), limit=5000, unit="a second", at_least=True),
            Target(what="memory", seen=round(figures.memory), limit=1024, unit="MiB"),
        ],
        notes=[
            "Seconds are of CPU, on one core. Naive first fit: for each pod the first node that fits, in a plain loop"
            " over all nodes, without quota, order, gangs or reasons. A cycle also computes the pending reason and the"
            " place of each of 100,000 gangs.",
            f"A thread writes the decision log after a cycle is carried out: at the start of a file"
            f" {figures.lines[0]:.0f} MiB of JSON in {figures.logged / cycle:.0%} of the time of a cycle, then"
            f" {figures.lines[1]:.1f} MiB in {figures.changes / cycle:.0%}. Above {BYTES_PER_SECOND / 1e6:.0f} "
            f"MB a second it omits pending reasons:"
            f" {figures.lines[2]:.1f} MiB in {figures.brief / cycle:.0%}. Every cycle is replayable.",
        ],
    )


def measure_cycles(number: int) -> CycleFigures:
    """Measure cycles over a number of nodes."""
    random = Random(1)
    snapshot, now = _full_snapshot(number, random), 100_000.0
    # As in the gateway: permanent objects are excluded from garbage collection.
    gc.freeze()
    gc.set_threshold(100_000, 10, 20)
    facts = _peak_memory()
    cache = Cache()
    scratch, decisions = _time_cycle(snapshot, now, cache)
    snapshot = apply_decisions(snapshot, decisions, now)
    idle, decisions = _time_cycle(snapshot, now + 1, cache)
    cycles, placed = [], 0
    for cycle in range(_CYCLES):
        snapshot = _end_some(apply_decisions(snapshot, decisions, now + cycle), random)
        took, decisions = _time_cycle(snapshot, now + 2 + cycle, cache)
        cycles.append(took)
        placed += sum(len(admit.nodes) for admit in decisions.admits)
    memory = _peak_memory()
    logged_cycles = [(snapshot, decisions)]
    for cycle in range(_CYCLES, _CYCLES + 2):
        snapshot = _end_some(apply_decisions(snapshot, decisions, now + cycle), random)
        decisions = decide(snapshot, now + 2 + cycle, cache)
        logged_cycles.append((snapshot, decisions))
    (logged, changes, brief), lines = _measure_log(logged_cycles)
    naive = _first_fit_rate(_end_some(snapshot, random))
    return CycleFigures(
        scratch=scratch,
        idle=idle,
        cycles=cycles,
        placed=placed,
        naive=naive,
        facts=facts,
        memory=memory,
        logged=logged,
        changes=changes,
        brief=brief,
        lines=lines,
    )


def _peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _time_cycle(snapshot: Snapshot, now: float, cache: Cache) -> tuple[float, Decisions]:
    started = process_time()
    decisions = decide(snapshot, now, cache)
    return process_time() - started, decisions


class _SetClock(SystemClock):
    """Clock whose monotonic time the benchmark sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """Return the time that was set."""
        return self.seconds


def _measure_log(cycles: Sequence[tuple[Snapshot, Decisions]]) -> tuple[list[float], list[float]]:
    """Return CPU seconds and MiB of three log entries: a whole snapshot, changes, and changes beyond the budget."""
    with TemporaryDirectory() as folder:
        file, clock, seconds = Path(folder, "decisions.jsonl"), _SetClock(), []
        log = DecisionLog(file, max_bytes=1 << 40, burst=1.0, clock=clock)
        for number, (snapshot, decisions) in enumerate(cycles):
            clock.seconds = 1e3 * min(number, 1)
            started = process_time()
            log.write_cycle(snapshot, decisions, float(number))
            seconds.append(process_time() - started)
        with file.open("rb") as lines:
            sizes = [len(line) / (1 << 20) for line in lines]
    return seconds, sizes


def _full_snapshot(number: int, random: Random) -> Snapshot:
    """Return a snapshot with ten running pods on each node, and the same number of pending pods."""
    allocatable = {_GPU: _PER_NODE * 1000, "cpu": 256_000, "memory": 1 << 51, "pods": 250_000}
    nodes = tuple(
        Node(name=f"n{index:05}", allocatable=allocatable, labels={"rack": f"r{index // 40:03}"})
        for index in range(number)
    )
    quotas = tuple(
        Quota(tenant=f"t{index:03}", pool=_KEY, guarantee={_GPU: number * _PER_NODE // 2 // _TENANTS // 16 * 16_000})
        for index in range(_TENANTS)
    )
    gangs = [_make_gang(random, index, nodes[index // 10].name) for index in range(10 * number)]
    gangs += [_make_gang(random, index, "") for index in range(10 * number, 20 * number)]
    pool = Pool(key=_KEY, nodes=nodes, governed=(_GPU,), levels=("rack",))
    return Snapshot(pools=(pool,), quotas=quotas, gangs=tuple(sorted(gangs, key=lambda gang: gang.id)))


def _make_gang(random: Random, number: int, node: str) -> Gang:
    tenant = f"t{random.randrange(_TENANTS):03}"
    pod = Pod(uid=f"u{number}", shape=random.choice(_SHAPES))
    created = 100_000 - 3000 * random.random()
    if node:
        # Ten pods of two GPUs exceed a node's GPUs.
        shape = _SHAPES[number % 10 < 6]
        pod = replace(pod, shape=shape, state=PodState.PLACED, pool=_KEY, node=node, borrowed=True, since=created)
    return Gang(
        id=f"{tenant}/ns/pod/{number:06}",
        tenant=tenant,
        pods=(pod,),
        pools=(_KEY,),
        band=Band.LOW,
        created=created,
        run_limit=random.choice((None, 20_000.0)),
    )


def _end_some(snapshot: Snapshot, random: Random) -> Snapshot:
    running = [gang.id for gang in snapshot.gangs if gang.pods[0].node]
    ended = set(random.sample(running, int(len(running) * _ENDED)))
    return replace(snapshot, gangs=tuple(gang for gang in snapshot.gangs if gang.id not in ended))


def _first_fit_rate(snapshot: Snapshot) -> float:
    """Return pods per second of a first-fit loop, over a sample of the pending pods."""
    free = {node.name: dict(node.allocatable) for node in snapshot.pools[0].nodes}
    for gang in snapshot.gangs:
        for name, amount in gang.pods[0].shape.requests if gang.pods[0].node else ():
            free[gang.pods[0].node][name] -= amount
    waiting = [gang.pods[0].shape.requests for gang in snapshot.gangs if not gang.pods[0].node][:1000]
    started = process_time()
    for requests in waiting:
        for room in free.values():
            if all(room[name] >= amount for name, amount in requests):
                for name, amount in requests:
                    room[name] -= amount
                break
    return len(waiting) / (process_time() - started)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(measure_cycles(int(sys.argv[1]))).decode())
