"""Tests of `vkgateway replay`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.clock import FakeClock
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota
from tests.unit.cli.gateway import Cli
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.service.decisionlog import DecisionLog


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    found = Cli(tmp_path, capsys)
    found.configure(arbiter={"decisionLog": str(tmp_path / "decisions.jsonl")})
    return found


def logged(file: Path) -> int:
    """Log a reclaim and return the number of its cycles."""
    there = Cluster([make_node("n0")], [make_quota("a", 8), make_quota("b")])
    there.add(make_gang("b/ns/gang/low", "b", [8], band=LOW))
    log, count = DecisionLog(file), 0
    for second in range(30):
        if second == 3:
            there.add(make_gang("a/ns/gang/in", "a", [8]))
        snapshot = there.snapshot()
        count += log.write_cycle(snapshot, decide(snapshot, there.now), there.now)
        there.cycle()
        there.advance(1)
    return count


async def test_replay_has_same_decisions(cli: Cli) -> None:
    count = logged(cli.folder / "decisions.jsonl")
    assert await cli("replay") == 0, cli.err
    assert len(cli.out.splitlines()) == count + 1
    assert f"All {count} cycles have the same decisions" in cli.err
    assert await cli("replay", "-o", "json") == 0
    cycles = json.loads(cli.out)
    assert sum(one["evicts"] for one in cycles) == 1
    assert all(one["same"] for one in cycles)


async def test_different_decisions_are_reported(cli: Cli) -> None:
    there = Cluster([make_node("n0")], [make_quota("a", 8)], [make_gang("a/ns/gang/in", "a", [8])])
    right = decide(there.snapshot(), there.now)
    log = DecisionLog(cli.folder / "other.jsonl")
    log.write_cycle(there.snapshot(), replace(right, admits=(replace(right.admits[0], borrowed=True),)), there.now)
    log.write_cycle(there.snapshot(), right, there.now)
    with (cli.folder / "other.jsonl").open("ab") as file:
        file.write(b"nonsense\n")
    assert await cli("replay", str(cli.folder / "other.jsonl")) == 1
    assert "2 of 3 cycles have different decisions" in cli.err
    assert "admits: a/ns/gang/in" in cli.out
    assert "line 3 is unreadable" in cli.out


async def test_cycle_without_snapshot_is_no_failure(cli: Cli) -> None:
    file = cli.folder / "decisions.jsonl"
    count = logged(file)
    there = Cluster([make_node("n0")], [make_quota("a", 8)], [make_gang("a/ns/gang/in", "a", [8])])
    DecisionLog(file).write_cycle(None, decide(there.snapshot(), there.now), there.now)
    assert await cli("replay") == 0, cli.err
    assert "not replayable: no snapshot" in cli.out.splitlines()[-1]
    assert f"All {count} cycles have the same decisions. 1 more cannot be replayed" in cli.err
    assert await cli("replay", "-o", "json") == 0
    last = json.loads(cli.out)[-1]
    assert (last["admits"], last["same"]) == (1, None)


async def test_incomplete_last_line_is_ignored_with_note(cli: Cli) -> None:
    file = cli.folder / "decisions.jsonl"
    count = logged(file)
    with file.open("ab") as more:
        more.write(b'{"time": 2')
    assert await cli("replay") == 0, cli.err
    assert "Ignored the incomplete last line" in cli.err
    assert f"All {count} cycles have the same decisions" in cli.err


async def test_cycles_without_pending_reasons_are_replayed(cli: Cli) -> None:
    there = Cluster(
        [make_node("n0")], [make_quota("a", 8)], [make_gang("a/in", "a", [8]), make_gang("a/waits", "a", [8])]
    )
    decisions = decide(there.snapshot(), there.now)
    assert decisions.holds
    log = DecisionLog(cli.folder / "decisions.jsonl", burst=1, clock=FakeClock())
    assert [log.write_cycle(there.snapshot(), decisions, there.now) for _ in range(2)] == [True, True]
    assert await cli("replay") == 0, cli.err
    assert "All 2 cycles have the same decisions" in cli.err


async def test_missing_decision_log_is_an_error(cli: Cli) -> None:
    assert await cli("replay") == 5
    assert "decisions.jsonl does not exist" in cli.err
    cli.configure(arbiter={"decisionLog": ""})
    assert await cli("replay") == 5
    assert "give a FILE" in cli.err
    DecisionLog(cli.folder / "empty.jsonl").write_cycle(Cluster([], []).snapshot(), Decisions(), 1.0)
    (cli.folder / "empty.jsonl").touch()
    assert await cli("replay", str(cli.folder / "empty.jsonl")) == 0
    assert "contains no decisions" in cli.err
