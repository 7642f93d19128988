"""What is seen of the arbiter at work: low work makes room, and state, logs and conditions tell the same story."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.sync import world as worlds
from tests.unit.sync.admission.platform import cordon, gated, start, told
from tests.unit.sync.world import World, until
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.reasons.report_types import ArbiterReport, GangReport
from vkgateway.cli import explanation, pending_gangs
from vkgateway.gateway.arbiter_observer import ArbiterObserver
from vkgateway.gateway.config import Arbiter
from vkgateway.gateway.decisionlog import LogEntry
from vkgateway.gateway.decisionlog import read_entries as read_decisions
from vkgateway.gateway.usagelog import read_usage, sum_usage
from vkgateway.kube.resources import PODS
from vkgateway.sync.admission.arbitration import Arbitration

pytestmark = pytest.mark.usefixtures("told_soon")

LOW: dict[str, Any] = {"priorityClassName": "vkgateway-low", "priority": -1000}


@pytest.fixture
def watch(tmp_path: Path) -> ArbiterObserver:
    return ArbiterObserver(
        Arbiter(decision_log=str(tmp_path / "decisions.jsonl"), usage_log=str(tmp_path / "usage.jsonl"))
    )


@pytest.fixture
async def here(watch: ArbiterObserver, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A node of 8 GPUs, all guaranteed to the tenant, and a watch of what is decided there."""

    def arbitration(*args: Any, **settings: Any) -> Arbitration:
        made = Arbitration(*args, observer=watch, **settings)
        watch.pod_names = made.pod_names
        return made

    monkeypatch.setattr(worlds, "Arbitration", arbitration)
    async with worlds.world() as made:
        made.limit = made.limit | {"nvidia.com/gpu": 16_000}
        made.guarantee = {"nvidia.com/gpu": 8000}
        made.notice = 1.5
        yield made


def state(watch: ArbiterObserver) -> ArbiterReport:
    return msgspec.json.decode(watch.encode_state(), type=ArbiterReport)


def gang(watch: ArbiterObserver, name: str) -> GangReport | None:
    return next((found for found in state(watch).gangs if found.name == name), None)


async def test_a_reclaim_is_seen_from_all_sides(here: World, watch: ArbiterObserver, tmp_path: Path) -> None:
    async with here.gateway():
        gated(here, "low", gpus=8, **LOW)
        await start(here, "low")
        await until(lambda: (found := gang(watch, "low")) is not None and found.state == "running")
        (pool,) = state(watch).pools
        assert (pool.node, pool.borrowed, pool.lent, pool.free) == ("a100.local", 8, 8, 0)

        gated(here, "high", gpus=8)
        await told(here, "WaitingForEviction", "high")
        (waits,) = pending_gangs.pending_in_state(state(watch))
        assert (waits.name, waits.code, waits.place, waits.pool) == ("high", "WaitingForEviction", 1, "a100.local")
        (seen,) = pending_gangs.pending_from_pods(here.above.store.all(PODS))
        assert (seen.name, seen.code, seen.place, seen.pool) == ("high", "WaitingForEviction", 1, "a100.local")
        assert seen.expected
        low, high = (here.above.store.get(PODS, name, "default") for name in ("low", "high"))
        leaving = explanation.explain_pod(low, [low, high])
        assert (leaving.state, bool(leaving.deadline)) == ("leaving", True)
        for_ops = explanation.explain_pod(high, [low, high], state=state(watch), tenant="alpha")
        assert (for_ops.room.partition(":")[0], for_ops.holds) == ("a100.local", "")
        lent = explanation.explain_pod(low, [low, high], state=state(watch), tenant="alpha")
        assert lent.holds.startswith("borrowed")

        await until(lambda: "deletionTimestamp" in (here.compute_pod("low") or {"metadata": {}})["metadata"])
        here.end("low", code=137)
        await until(lambda: here.phase("low") == "Failed")
        await start(here, "high")
        assert (found := gang(watch, "high")) is not None
        assert not found.borrowed

    (used,) = [one for one in read_usage(tmp_path / "usage.jsonl") if one.why]
    assert (used.tenant, used.pod, used.band, used.borrowed, used.units) == ("alpha", "low", "low", True, 8.0)
    assert used.why == "PreemptionByVkgateway"
    (whole,) = sum_usage(read_usage(tmp_path / "usage.jsonl"), since=0.0, until=used.end, by=["pod"])
    assert whole.lost_hours == pytest.approx(whole.hours)
    entries = list(read_decisions(tmp_path / "decisions.jsonl"))
    assert len(entries) >= 3
    for entry in entries:
        assert isinstance(entry, LogEntry)
        assert entry.snapshot is not None
        assert decide(entry.snapshot, entry.time) == entry.decisions


async def test_no_decision_waits_for_the_log(
    here: World, watch: ArbiterObserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, write = threading.Event(), watch.log_cycle

    def slowly(*cycle: Any) -> None:
        assert free.wait(30)
        write(*cycle)

    monkeypatch.setattr(watch, "log_cycle", slowly)
    async with here.gateway():
        gated(here, "high", gpus=8)
        await start(here, "high")
        assert not (tmp_path / "decisions.jsonl").exists()
        free.set()
    entries = [entry for entry in read_decisions(tmp_path / "decisions.jsonl") if isinstance(entry, LogEntry)]
    assert sum(len(entry.decisions.admits) for entry in entries) == 1


async def test_a_node_that_is_cordoned_cuts_the_guarantee_until_it_is_open_again(
    here: World, watch: ArbiterObserver
) -> None:
    def status() -> str:
        verdict = watch.guarantees.verdict_for("alpha")
        return verdict.status if verdict is not None else ""

    heard: list[str] = []
    watch.guarantees.on_change = heard.append
    async with here.gateway():
        await until(lambda: status() == "True")
        cordon(here)
        await until(lambda: status() == "False")
        gated(here, "high", gpus=8)
        message = await told(here, "WaitingForRoom", "high")
        assert "missing nodes cut its guarantee in a100.local: 8 -> none" in message
        assert [(part.guarantee, part.kept) for part in state(watch).tenants] == [(8, 0)]
        cordon(here, closed=False)
        await start(here, "high")
        await until(lambda: status() == "True")
    assert heard == ["alpha"] * 3
