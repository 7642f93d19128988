"""restart: the gateway is killed, things change above and below, and it is started again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from bench import load
from bench.flows import always, warm_up
from bench.light import tenant_of
from bench.outcome import Cell, Outcome, Target
from bench.pods import PodKind, running_status, spread
from bench.session import Session
from bench.timeline import Key, Mark, Timeline, now
from bench.watching import watching
from vkgateway.kube.resources import PODS
from vkgateway.model import times

TITLE: Final = "From the start of a killed gateway to the last difference repaired"
COLUMNS: Final = ["pods", "difference made while it was down", "how many", "repaired after, s"]
_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Pods to which something happened, and the mark that shows it repaired."""

    what: str
    keys: list[Key]
    timeline: Timeline
    mark: Mark

    def repaired(self) -> float:
        """When the last one was repaired."""
        marks = self.timeline.of(self.mark)
        return max(marks[key] for key in self.keys)


async def run(session: Session) -> Outcome:
    """Kill and start it with every size."""
    await session.tenants()
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for pods in session.settings.sizes(2500):
        started, differences = await _restart(session, pods)
        rows += [[pods, one.what, len(one.keys), round(one.repaired() - started, 2)] for one in differences]
        seconds = round(max(one.repaired() for one in differences) - started, 2)
        targets.append(Target(what=f"everything repaired, {pods} pods", seen=seconds, limit=_SECONDS, unit="s"))
    note = (
        "The time includes the start of Python and all lists. The benchmark kills the gateway after it has processed"
        " all events of the pods' start."
    )
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=[note])


async def _restart(session: Session, pods: int) -> tuple[float, list[Difference]]:
    platform = session.platform
    places = platform.places(session.settings.tenants)
    kind = PodKind(run="restart")
    above, below = Timeline(), Timeline()
    watches = [(place.client, always(place.name)) for place in places]
    async with (
        watching(watches, run=kind.run, timeline=above),
        watching([(platform.compute, tenant_of)], run=kind.run, timeline=below),
    ):
        await warm_up(places, kind, timeline=above)
        idle = await platform.cores()
        wanted = spread(pods, len(places))
        keys: list[Key] = [(places[index].name, name) for index, name in wanted]
        session.report(f"{pods} pods, then the gateway is killed")
        await load.create_all(places, wanted, kind, timeline=above)
        await above.until("ready", keys)
        await platform.until_calm(idle)
        await platform.kill_gateway()
        differences = await _make(session, places, keys, kind, above=above, below=below)
        session.report("the gateway is started again")
        started = now()
        await platform.start_gateway()
        for one in differences:
            await one.timeline.until(one.mark, one.keys)
        left = [key for key in [*keys, *differences[-1].keys] if key not in above.of("gone")]
        await load.delete_all(places, left)
        await above.until("gone", left)
    return started, differences


async def _make(
    session: Session, places: list[load.Place], keys: list[Key], kind: PodKind, *, above: Timeline, below: Timeline
) -> list[Difference]:
    """Change a fiftieth of the pods in each way."""
    share = max(1, len(keys) // 50)
    by_name = {place.name: place for place in places}
    ended, removed = keys[:share], keys[share : 2 * share]
    succeeded = running_status(times.render_time(datetime.now(UTC)), ready=False) | {"phase": "Succeeded"}

    async def end(key: Key) -> None:
        tenant, name = key
        await session.platform.compute.patch(
            PODS, name, {"status": succeeded}, namespace=f"{tenant}--default", subresource="status"
        )

    async def remove(key: Key) -> None:
        await by_name[key[0]].delete(key[1], grace=0)

    await load.each(ended, end)
    await load.each(removed, remove)
    fresh = [(index, f"new-{name}") for index, name in spread(share, len(places))]
    new: list[Key] = [(places[index].name, name) for index, name in fresh]
    await load.create_all(places, fresh, kind, timeline=above)
    await above.until("bound", new)
    return [
        Difference("ended in the compute cluster", ended, above, "ended"),
        Difference("deleted by force in the tenant", removed, below, "gone"),
        Difference("created and bound in the tenant", new, above, "ready"),
    ]
