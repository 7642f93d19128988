"""decide: one cycle of the arbiter over a large pool, from scratch and with what changed only; needs no platform."""

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
from vkgateway.arbiter.cache import Cache
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.outcome import apply_decisions
from vkgateway.arbiter.snapshot import Band, Gang, Node, Pod, PodState, Pool, Quota, Shape, Snapshot
from vkgateway.gateway.decisionlog import BYTES_PER_SECOND, DecisionLog

TITLE: Final = "A cycle of the arbiter: 10,000 nodes, 100,000 pods that run and 100,000 that wait"
COLUMNS: Final = ["what", "seen", "unit"]
NODES: Final = 10_000
_KEY: Final = ("compute", "pool")
_GPU: Final = "nvidia.com/gpu"
_PER_NODE: Final = 16
"""GPUs of a node."""
_TENANTS: Final = 100
_CYCLES: Final = 5
_ENDED: Final = 0.05
"""The part of the running pods that ends between two cycles."""
_SHAPES: Final = tuple(
    Shape.from_requests({_GPU: gpus * 1000, "cpu": gpus * 4000, "memory": gpus << 43, "pods": 1000}) for gpus in (1, 2)
)


class Seen(msgspec.Struct, kw_only=True):
    """What one run in a process of its own came to: seconds of CPU, pods a second of CPU, MiB."""

    scratch: float
    idle: float
    cycles: list[float]
    placed: int
    naive: float
    facts: float
    memory: float
    logged: float
    """What it takes to write a cycle down, with all that it was decided from."""
    changes: float
    """The same with what has changed since the cycle before."""
    brief: float
    """That beyond the log's budget."""
    lines: list[float]
    """MiB of the three."""


async def run(session: Session | None) -> Outcome:
    """Measure in a process of its own, so that its memory is its own; the session is not needed."""
    if session is not None:
        session.report("a cycle of the arbiter over 10,000 nodes")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.decide", str(NODES), stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    return _tell(msgspec.json.decode(answer, type=Seen))


def _tell(seen: Seen) -> Outcome:
    cycle = sorted(seen.cycles)[len(seen.cycles) // 2]
    rate = seen.placed / sum(seen.cycles)
    rows: list[list[Cell]] = [
        ["from scratch", round(seen.scratch, 2), "s"],
        ["nothing new", round(seen.idle, 2), "s"],
        [f"{_ENDED:.0%} of the pods ended, median", round(cycle, 2), "s"],
        ["pods placed in such cycles", round(rate), "a second"],
        ["the decision log, after that: all of it", round(seen.logged, 2), "s"],
        ["what has changed", round(seen.changes, 2), "s"],
        ["what has changed, beyond its budget", round(seen.brief, 2), "s"],
        ["naive first fit", round(seen.naive), "pods a second"],
        ["the arbiter beside that", round(rate / seen.naive, 1), "times"],
        ["memory: the snapshot alone", round(seen.facts), "MiB"],
        ["memory: largest", round(seen.memory), "MiB"],
    ]
    return Outcome(
        columns=list(COLUMNS),
        rows=rows,
        targets=[
            Target(what="incremental cycle", seen=round(cycle, 2), limit=1.0, unit="s"),
            Target(what="pods placed", seen=round(rate), limit=5000, unit="a second", at_least=True),
            Target(what="memory", seen=round(seen.memory), limit=1024, unit="MiB"),
        ],
        notes=[
            "Seconds are of CPU, on one core. Naive first fit: for each pod the first node that fits, in a plain loop"
            " over all nodes, without quota, order, gangs or reasons. A cycle also computes the pending reason and the"
            " place of each of 100,000 gangs.",
            f"A thread writes the decision log after a cycle is carried out: at the start of a file"
            f" {seen.lines[0]:.0f} MiB of JSON in {seen.logged / cycle:.0%} of the time of a cycle, then"
            f" {seen.lines[1]:.1f} MiB in {seen.changes / cycle:.0%}. Above {BYTES_PER_SECOND / 1e6:.0f} "
            f"MB a second it omits pending reasons:"
            f" {seen.lines[2]:.1f} MiB in {seen.brief / cycle:.0%}. Every cycle is replayable.",
        ],
    )


def measure(number: int) -> Seen:
    """One run with so many nodes."""
    random = Random(1)
    snapshot, now = _filled(number, random), 100_000.0
    # As the gateway does: what is there for good is not looked through again and again.
    gc.freeze()
    gc.set_threshold(100_000, 10, 20)
    facts = _memory()
    carry = Cache()
    scratch, decisions = _timed(snapshot, now, carry)
    snapshot = apply_decisions(snapshot, decisions, now)
    idle, decisions = _timed(snapshot, now + 1, carry)
    cycles, placed = [], 0
    for cycle in range(_CYCLES):
        snapshot = _some_ended(apply_decisions(snapshot, decisions, now + cycle), random)
        took, decisions = _timed(snapshot, now + 2 + cycle, carry)
        cycles.append(took)
        placed += sum(len(admit.nodes) for admit in decisions.admits)
    memory = _memory()
    told = [(snapshot, decisions)]
    for cycle in range(_CYCLES, _CYCLES + 2):
        snapshot = _some_ended(apply_decisions(snapshot, decisions, now + cycle), random)
        decisions = decide(snapshot, now + 2 + cycle, carry)
        told.append((snapshot, decisions))
    (logged, changes, brief), lines = _written(told)
    naive = _naive(_some_ended(snapshot, random))
    return Seen(
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


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _timed(snapshot: Snapshot, now: float, carry: Cache) -> tuple[float, Decisions]:
    started = process_time()
    decisions = decide(snapshot, now, carry)
    return process_time() - started, decisions


def _written(told: Sequence[tuple[Snapshot, Decisions]]) -> tuple[list[float], list[float]]:
    """Seconds of CPU that three cycles take in the log, and their MiB: the first with all facts, the second with what
    has changed, and so the last, beyond the log's budget."""
    with TemporaryDirectory() as folder:
        file, at, seconds = Path(folder, "decisions.jsonl"), [0.0], []
        log = DecisionLog(file, max_bytes=1 << 40, burst=1.0, clock=lambda: at[0])
        for number, (snapshot, decisions) in enumerate(told):
            at[0] = 1e3 * min(number, 1)
            started = process_time()
            log.write_cycle(snapshot, decisions, float(number))
            seconds.append(process_time() - started)
        with file.open("rb") as lines:
            sizes = [len(line) / (1 << 20) for line in lines]
    return seconds, sizes


def _filled(number: int, random: Random) -> Snapshot:
    """Nodes that ten pods each run on, and as many pods that wait."""
    allocatable = {_GPU: _PER_NODE * 1000, "cpu": 256_000, "memory": 1 << 51, "pods": 250_000}
    nodes = tuple(
        Node(name=f"n{index:05}", allocatable=allocatable, labels={"rack": f"r{index // 40:03}"})
        for index in range(number)
    )
    quotas = tuple(
        Quota(tenant=f"t{index:03}", pool=_KEY, guarantee={_GPU: number * _PER_NODE // 2 // _TENANTS // 16 * 16_000})
        for index in range(_TENANTS)
    )
    gangs = [_gang(random, index, nodes[index // 10].name) for index in range(10 * number)]
    gangs += [_gang(random, index, "") for index in range(10 * number, 20 * number)]
    pool = Pool(key=_KEY, nodes=nodes, governed=(_GPU,), levels=("rack",))
    return Snapshot(pools=(pool,), quotas=quotas, gangs=tuple(sorted(gangs, key=lambda gang: gang.id)))


def _gang(random: Random, number: int, node: str) -> Gang:
    tenant = f"t{random.randrange(_TENANTS):03}"
    pod = Pod(uid=f"u{number}", shape=random.choice(_SHAPES))
    created = 100_000 - 3000 * random.random()
    if node:
        # Ten pods of two GPUs would be more than a node has.
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


def _some_ended(snapshot: Snapshot, random: Random) -> Snapshot:
    running = [gang.id for gang in snapshot.gangs if gang.pods[0].node]
    ended = set(random.sample(running, int(len(running) * _ENDED)))
    return replace(snapshot, gangs=tuple(gang for gang in snapshot.gangs if gang.id not in ended))


def _naive(snapshot: Snapshot) -> float:
    """Pods a second by first fit, over a sample of those that wait."""
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
    sys.stdout.write(msgspec.json.encode(measure(int(sys.argv[1]))).decode())
