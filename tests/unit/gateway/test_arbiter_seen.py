"""What is seen of the arbiter at work: low work makes room, and state, logs and conditions tell the same story."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.sync import world as worlds
from tests.unit.sync.admission.platform import gated, start, told
from tests.unit.sync.world import World, until
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.state import GangState, State
from vkgateway.cli import explanation, waiting
from vkgateway.gateway.arbiter_watch import ArbiterWatch
from vkgateway.gateway.config import Arbiter
from vkgateway.gateway.decisionlog import Entry
from vkgateway.gateway.decisionlog import read as read_decisions
from vkgateway.gateway.usagelog import read, total
from vkgateway.kube.resources import PODS
from vkgateway.sync.admission.arbiter import Arbitration

LOW: dict[str, Any] = {"priorityClassName": "vkgateway-low", "priority": -1000}


@pytest.fixture
def watch(tmp_path: Path) -> ArbiterWatch:
    return ArbiterWatch(
        Arbiter(decision_log=str(tmp_path / "decisions.jsonl"), usage_log=str(tmp_path / "usage.jsonl"))
    )


@pytest.fixture
async def here(watch: ArbiterWatch, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A node of 8 GPUs, all guaranteed to the tenant, and a watch of what is decided there."""

    def arbitration(*args: Any, **settings: Any) -> Arbitration:
        made = Arbitration(*args, observer=watch, **settings)
        watch.names = made.names
        return made

    monkeypatch.setattr(worlds, "Arbitration", arbitration)
    async with worlds.world() as made:
        made.limit = made.limit | {"nvidia.com/gpu": 16_000}
        made.guarantee = {"nvidia.com/gpu": 8000}
        made.notice = 1.5
        yield made


def state(watch: ArbiterWatch) -> State:
    return msgspec.json.decode(watch.state(), type=State)


def gang(watch: ArbiterWatch, name: str) -> GangState | None:
    return next((found for found in state(watch).gangs if found.name == name), None)


async def test_a_reclaim_is_seen_from_all_sides(here: World, watch: ArbiterWatch, tmp_path: Path) -> None:
    async with here.gateway():
        gated(here, "low", gpus=8, **LOW)
        await start(here, "low")
        await until(lambda: (found := gang(watch, "low")) is not None and found.state == "running")
        (pool,) = state(watch).pools
        assert (pool.node, pool.borrowed, pool.lent, pool.free) == ("a100.local", 8, 8, 0)

        gated(here, "high", gpus=8)
        await told(here, "WaitingForEviction", "high")
        (waits,) = waiting.of_state(state(watch))
        assert (waits.name, waits.code, waits.place, waits.pool) == ("high", "WaitingForEviction", 1, "a100.local")
        (seen,) = waiting.of_pods(here.above.store.all(PODS))
        assert (seen.name, seen.code, seen.place, seen.pool) == ("high", "WaitingForEviction", 1, "a100.local")
        assert seen.expected
        low, high = (here.above.store.get(PODS, name, "default") for name in ("low", "high"))
        leaving = explanation.explain(low, [low, high])
        assert (leaving.state, bool(leaving.deadline)) == ("leaving", True)
        assert explanation.explain(high, [low, high], state=state(watch), tenant="alpha").room.startswith("a100.local")

        await until(lambda: "deletionTimestamp" in (here.compute_pod("low") or {"metadata": {}})["metadata"])
        here.end("low", code=137)
        await until(lambda: here.phase("low") == "Failed")
        await start(here, "high")
        assert (found := gang(watch, "high")) is not None
        assert not found.borrowed

    (used,) = [one for one in read(tmp_path / "usage.jsonl") if one.why]
    assert (used.tenant, used.pod, used.band, used.borrowed, used.units) == ("alpha", "low", "low", True, 8.0)
    assert used.why == "PreemptionByVkgateway"
    (whole,) = total(read(tmp_path / "usage.jsonl"), since=0.0, until=used.end, by=["pod"])
    assert whole.lost_hours == pytest.approx(whole.hours)
    entries = list(read_decisions(tmp_path / "decisions.jsonl"))
    assert len(entries) >= 3
    for entry in entries:
        assert isinstance(entry, Entry)
        assert decide(entry.snapshot, entry.time) == entry.decisions
