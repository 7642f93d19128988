"""Tests of a reclaim as seen in state, logs and conditions."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.machine import patience
from tests.support.waiting import wait_until
from tests.unit.sync import world as worlds
from tests.unit.sync.admission.cluster_helpers import cordon_node, create_gated, event_messages, start_pod
from tests.unit.sync.scopes import make_arbitration
from tests.unit.sync.world import World
from vkgateway.cli import explanation, pending_gangs
from vkgateway.kube.resources import PODS
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.reasons.gang_names import Names
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, GangReport
from vkgateway.scheduler.service.arbitration import Arbitration
from vkgateway.scheduler.service.decisionlog import LogEntry
from vkgateway.scheduler.service.decisionlog import read_entries as read_decisions
from vkgateway.serve.arbiter_observer import ArbiterObserver
from vkgateway.settings.config import Arbiter
from vkgateway.tenants.guarantees import GuaranteeMonitor
from vkgateway.tenants.usage.log import read_usage, sum_usage

pytestmark = pytest.mark.usefixtures("told_soon")

LOW: dict[str, Any] = {"priorityClassName": "vkgateway-low", "priority": -1000}


@pytest.fixture
def heard() -> list[str]:
    """The tenants whose guarantees changed."""
    return []


@pytest.fixture
def guarantees(heard: list[str]) -> GuaranteeMonitor:
    return GuaranteeMonitor(on_change=heard.append)


@pytest.fixture
def arbitrations() -> list[Arbitration]:
    """Those of the gateways that were started."""
    return []


@pytest.fixture
def watch(tmp_path: Path, guarantees: GuaranteeMonitor, arbitrations: list[Arbitration]) -> ArbiterObserver:
    settings = Arbiter(decision_log=str(tmp_path / "decisions.jsonl"), usage_log=str(tmp_path / "usage.jsonl"))

    def pod_names() -> Names:
        return arbitrations[-1].tenants.pod_names()

    return ArbiterObserver(settings, guarantees=guarantees, pod_names=pod_names)


@pytest.fixture
async def world(
    watch: ArbiterObserver, arbitrations: list[Arbitration], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """Observer of a node with 8 GPUs that are guaranteed to the tenant."""

    def arbitration(*args: Any, **settings: Any) -> Arbitration:
        arbitrations.append(make_arbitration(*args, observer=watch, **settings))
        return arbitrations[-1]

    monkeypatch.setattr(worlds, "make_arbitration", arbitration)
    async with worlds.start_world() as world:
        world.limit = world.limit | {"nvidia.com/gpu": 16_000}
        world.guarantee = {"nvidia.com/gpu": 8000}
        world.notice = patience(1.5)
        yield world


def state(watch: ArbiterObserver) -> ArbiterReport:
    return msgspec.json.decode(watch.encode_state(), type=ArbiterReport)


def gang(watch: ArbiterObserver, name: str) -> GangReport | None:
    return next((found for found in state(watch).gangs if found.name == name), None)


async def test_reclaim_appears_in_state_logs_and_conditions(
    world: World, watch: ArbiterObserver, tmp_path: Path
) -> None:
    async with world.run_gateway():
        create_gated(world, "low", gpus=8, **LOW)
        await start_pod(world, "low")
        await wait_until(lambda: (found := gang(watch, "low")) is not None and found.state == "running")
        (pool,) = state(watch).pools
        assert (pool.node, pool.borrowed, pool.lent, pool.free) == ("a100.local", 8, 8, 0)

        create_gated(world, "high", gpus=8)
        await event_messages(world, "WaitingForEviction", "high")
        (waits,) = pending_gangs.pending_in_state(state(watch))
        assert (waits.name, waits.code, waits.place, waits.pool) == ("high", "WaitingForEviction", 1, "a100.local")
        (seen,) = pending_gangs.pending_from_pods(world.tenant_server.store.all(PODS))
        assert (seen.name, seen.code, seen.place, seen.pool) == ("high", "WaitingForEviction", 1, "a100.local")
        assert seen.expected
        low, high = (world.tenant_server.store.get(PODS, name, "default") for name in ("low", "high"))
        leaving = explanation.explain_pod(low, [low, high])
        assert (leaving.state, bool(leaving.deadline)) == ("leaving", True)
        for_ops = explanation.explain_pod(high, [low, high], state=state(watch), tenant="alpha")
        assert (for_ops.room.partition(":")[0], for_ops.holds) == ("a100.local", "")
        lent = explanation.explain_pod(low, [low, high], state=state(watch), tenant="alpha")
        assert lent.holds.startswith("borrowed")

        await wait_until(lambda: "deletionTimestamp" in (world.compute_pod("low") or {"metadata": {}})["metadata"])
        world.end_pod("low", code=137)
        await wait_until(lambda: world.pod_phase("low") == "Failed")
        await start_pod(world, "high")
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


async def test_decisions_do_not_wait_for_log(
    world: World, watch: ArbiterObserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, write = threading.Event(), watch.log_cycle

    def slowly(*cycle: Any) -> None:
        assert free.wait(patience(30))
        write(*cycle)

    monkeypatch.setattr(watch, "log_cycle", slowly)
    async with world.run_gateway():
        create_gated(world, "high", gpus=8)
        await start_pod(world, "high")
        assert not (tmp_path / "decisions.jsonl").exists()
        free.set()
    entries = [entry for entry in read_decisions(tmp_path / "decisions.jsonl") if isinstance(entry, LogEntry)]
    assert sum(len(entry.decisions.admits) for entry in entries) == 1


async def test_cordoned_node_reduces_guarantee_until_uncordoned(
    world: World, watch: ArbiterObserver, guarantees: GuaranteeMonitor, heard: list[str]
) -> None:
    def status() -> str:
        verdict = guarantees.verdict_for("alpha")
        return verdict.status if verdict is not None else ""

    async with world.run_gateway():
        await wait_until(lambda: status() == "True")
        cordon_node(world)
        await wait_until(lambda: status() == "False")
        create_gated(world, "high", gpus=8)
        message = await event_messages(world, "WaitingForRoom", "high")
        assert "missing nodes reduce its guarantee in a100.local: 8 -> none" in message
        assert [(part.guarantee, part.kept) for part in state(watch).tenants] == [(8, 0)]
        cordon_node(world, closed=False)
        await start_pod(world, "high")
        await wait_until(lambda: status() == "True")
    assert heard == ["alpha"] * 3
