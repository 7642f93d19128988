"""failover: the leading gateway is killed, stopped or frozen, and the time until the next pod is forwarded."""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

from bench.load import Place
from bench.outcome import Cell, Outcome, Target
from bench.platform import POOL
from bench.pods import PodKind
from bench.replicas import Replica, start_replicas
from bench.session import Session
from bench.timeline import now
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import TENANT_LABEL, UID_ANNOTATION
from vkgateway.api.objects import decode_object
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS

TITLE: Final = "From the end of the leading gateway to the first pod that its standby forwards"
COLUMNS: Final = ["what happens to the leader", "tries", "median, s", "slowest, s", "pods created twice"]
_EVENTS: Final = (("SIGTERM", signal.SIGTERM, 2.0), ("kill -9", signal.SIGKILL, 8.0), ("frozen", signal.SIGSTOP, 8.0))
_WITHIN: Final = 60.0
_POLL: Final = 0.02
_HANDLED: Final = 0.1
"""Seconds from the signal to the creation of the pod."""
_KIND: Final = PodKind(run="failover", node=f"{POOL}.local")


async def run(session: Session) -> Outcome:
    """End the leader in each way, `--turns` times."""
    await session.ensure_tenants()
    places = session.platform.tenant_places(session.settings.tenants)
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    async with start_replicas(session.platform) as replicas:
        leader, standby = replicas
        for what, number, limit in _EVENTS:
            seconds: list[float] = []
            for turn in range(session.settings.turns):
                words = f"{what}, {turn + 1} of {session.settings.turns}"
                session.report(words)
                seconds.append(await _end_leader(session, leader, standby, number, name=f"f-{number}-{turn}"))
                session.report.done(f"{words}: {seconds[-1]:.2f} s")
                leader, standby = standby, leader
            twice = await _count_doubled(session.platform.compute)
            median, slowest = round(statistics.median(seconds), 2), round(max(seconds), 2)
            rows.append([what, len(seconds), median, slowest, twice])
            targets.append(Target(what=f"{what}: next pod forwarded", seen=slowest, limit=limit, unit="s"))
            targets.append(Target(what=f"{what}: pods created twice", seen=twice, limit=0))
    await _delete_pods(places)
    note = (
        f"{session.settings.tenants} tenants. A frozen leader continues {session.settings.seconds:g} s later, and pods"
        " are created meanwhile. The pod is created 0.1 s after the signal. Leases have the default times."
    )
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=[note])


async def _end_leader(session: Session, leader: Replica, standby: Replica, number: int, *, name: str) -> float:
    """Send a signal to the leader, and return the seconds until a new pod is forwarded."""
    for replica, role in ((leader, "leadership ok: leader"), (standby, "leadership ok: standby")):
        if replica.process is None or replica.process.returncode is not None:
            await replica.start()
        await replica.wait_for(role)
    place = session.platform.tenant_places(1)[0]
    await _forward(session.platform.compute, place, f"{name}-before")
    started = now()
    leader.send_signal(number)
    await asyncio.sleep(_HANDLED)  # otherwise a leader that stops still forwards the pod
    await _forward(session.platform.compute, place, name)
    seconds = now() - started
    if number == signal.SIGSTOP:
        await _continue_leader(leader, place, name=name, at=started + session.settings.seconds)
    await leader.wait_ended()
    return seconds


async def _continue_leader(leader: Replica, place: Place, *, name: str, at: float) -> None:
    """Create pods until a frozen leader continues, and a second longer."""
    count, is_frozen = 0, True
    while now() < at + 1.0:
        if is_frozen and now() >= at:
            is_frozen = False
            leader.send_signal(signal.SIGCONT)
        await place.create_pod(f"{name}-{count}", _KIND)
        count += 1
        await asyncio.sleep(0.2)


async def _forward(compute: Client, place: Place, name: str) -> None:
    """Create a pod, and wait until its compute pod exists."""
    await place.create_pod(name, _KIND)
    deadline = now() + _WITHIN
    while not await _exists(compute, name, namespace=f"{place.name}--{place.namespace}"):
        if now() > deadline:
            raise UnavailableError(f"pod {name} was not forwarded within {_WITHIN:.0f} s")
        await asyncio.sleep(_POLL)


async def _exists(compute: Client, name: str, *, namespace: str) -> bool:
    try:
        await compute.get(PODS, name, namespace=namespace)
    except errors.NotFound:
        return False
    return True


async def _count_doubled(compute: Client) -> int:
    """Return the number of tenant pods with more than one compute pod."""
    page = await compute.list_all(PODS, label_selector=TENANT_LABEL)
    counts = Counter(decode_object(item).metadata.annotations.get(UID_ANNOTATION) for item in page.items)
    return sum(count > 1 for count in counts.values())


async def _delete_pods(places: Sequence[Place]) -> None:
    for place in places:
        page = await place.client.list_all(PODS, namespace=place.namespace)
        for item in page.items:
            await place.delete_pod(decode_object(item).metadata.name, grace=0)
