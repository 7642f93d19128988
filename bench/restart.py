"""restart: the gateway is killed, objects change on both sides, and it is started again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from bench import load
from bench.flows import constant_place, warm_up
from bench.light import pod_tenant
from bench.outcome import Cell, Outcome, Target
from bench.pods import PodKind, running_status, spread_pods
from bench.session import Session
from bench.timeline import Key, Mark, Timeline, now
from bench.watching import watch_pods
from vkgateway.api import times
from vkgateway.kube.resources import PODS

TITLE: Final = "From the start of a killed gateway to the repair of the last difference"
COLUMNS: Final = ["pods", "change while it was down", "pods changed", "repaired after, s"]
_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Pods with a change, and the mark that shows the repair."""

    what: str
    keys: list[Key]
    timeline: Timeline
    mark: Mark

    def first_repair_time(self) -> float:
        """Return when the first pod was repaired."""
        return min(self._repair_times())

    def repair_time(self) -> float:
        """Return when the last pod was repaired."""
        return max(self._repair_times())

    def _repair_times(self) -> list[float]:
        marks = self.timeline.times_of(self.mark)
        return [marks[key] for key in self.keys]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """When the killed gateway was started, when it was ready, and the differences that it repaired."""

    started: float
    ready: float
    differences: list[Difference]

    def first_repair_seconds(self) -> float:
        """Return the seconds from the start to the first repaired pod."""
        return min(difference.first_repair_time() for difference in self.differences) - self.started

    def last_repair_seconds(self) -> float:
        """Return the seconds from the start to the last repaired pod."""
        return max(difference.repair_time() for difference in self.differences) - self.started


async def run(session: Session) -> Outcome:
    """Kill and start the gateway with every number of pods."""
    await session.ensure_tenants()
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for pods in session.settings.pod_counts(2500):
        places = session.platform.tenant_places(session.settings.tenants)
        restart = await restart_gateway(session, places, pods=pods, changed=max(1, pods // 50))
        rows += [
            [pods, difference.what, len(difference.keys), round(difference.repair_time() - restart.started, 2)]
            for difference in restart.differences
        ]
        seconds = round(restart.last_repair_seconds(), 2)
        targets.append(Target(what=f"everything repaired, {pods} pods", seen=seconds, limit=_SECONDS, unit="s"))
    note = (
        "The time includes the start of Python and all lists. The benchmark kills the gateway after it has processed"
        " all events of the pods' start."
    )
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=[note])


async def restart_gateway(session: Session, places: list[load.Place], *, pods: int, changed: int) -> Restart:
    """Kill the gateway, change `changed` of `pods` pods in each of three ways, start it, and wait for the repairs.

    The pods are created before and deleted afterwards.
    """
    platform = session.platform
    kind = PodKind(run="restart")
    tenant_timeline, compute_timeline = Timeline(), Timeline()
    watches = [(place.client, constant_place(place.name)) for place in places]
    async with (
        watch_pods(watches, run=kind.run, timeline=tenant_timeline),
        watch_pods([(platform.compute, pod_tenant)], run=kind.run, timeline=compute_timeline),
    ):
        await warm_up(places, kind, timeline=tenant_timeline)
        idle = await platform.used_cores()
        wanted = spread_pods(pods, len(places))
        keys: list[Key] = [(places[index].name, name) for index, name in wanted]
        session.report(f"{pods} pods before the gateway is killed")
        await load.create_all(places, wanted, kind, timeline=tenant_timeline)
        await tenant_timeline.wait_for("ready", keys)
        await platform.wait_calm(idle)
        await platform.kill_gateway()
        differences = await _make_differences(
            session,
            places,
            keys,
            kind,
            changed=changed,
            tenant_timeline=tenant_timeline,
            compute_timeline=compute_timeline,
        )
        session.report("restarting the gateway")
        started = now()
        await platform.start_gateway()
        ready = asyncio.create_task(platform.wait_gateway_ready())
        for difference in differences:
            await difference.timeline.wait_for(difference.mark, difference.keys)
        remaining_keys = [key for key in [*keys, *differences[-1].keys] if key not in tenant_timeline.times_of("gone")]
        await load.delete_all(places, remaining_keys)
        await tenant_timeline.wait_for("gone", remaining_keys)
    return Restart(started=started, ready=await ready, differences=differences)


async def _make_differences(
    session: Session,
    places: list[load.Place],
    keys: list[Key],
    kind: PodKind,
    *,
    changed: int,
    tenant_timeline: Timeline,
    compute_timeline: Timeline,
) -> list[Difference]:
    """Change this number of the pods in each of three ways."""
    by_name = {place.name: place for place in places}
    ended, removed = keys[:changed], keys[changed : 2 * changed]
    succeeded = running_status(times.render_time(datetime.now(UTC)), ready=False) | {"phase": "Succeeded"}

    async def end(key: Key) -> None:
        tenant, name = key
        await session.platform.compute.patch(
            PODS, name, {"status": succeeded}, namespace=f"{tenant}--default", subresource="status"
        )

    async def remove(key: Key) -> None:
        await by_name[key[0]].delete_pod(key[1], grace=0)

    await load.for_each(ended, end)
    await load.for_each(removed, remove)
    fresh = [(index, f"new-{name}") for index, name in spread_pods(changed, len(places))]
    new: list[Key] = [(places[index].name, name) for index, name in fresh]
    await load.create_all(places, fresh, kind, timeline=tenant_timeline)
    await tenant_timeline.wait_for("bound", new)
    return [
        Difference("ended in the compute cluster", ended, tenant_timeline, "ended"),
        Difference("deleted by force in the tenant", removed, compute_timeline, "gone"),
        Difference("created and bound in the tenant", new, tenant_timeline, "ready"),
    ]
