"""Tests of the lanes: every end-to-end test belongs to one, and a change selects the lanes that its files need."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.lanes import __main__ as runner
from tests.lanes.table import CORE_FILES, E2E, LANES, TABLE, Lane, Step, lanes_for

ROOT = Path(__file__).parents[2]


def test_paths_of_the_table_exist() -> None:
    named = {path for lane in LANES for path in (*lane.files, *lane.folders)}
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_each_end_to_end_test_belongs_to_one_lane() -> None:
    owned = [file for lane in LANES for file in lane.files]
    assert len(owned) == len(set(owned))
    assert {f"--ignore={file}" for file in owned} == set(CORE_FILES) - {E2E}


def test_makefile_has_a_command_for_each_lane() -> None:
    for lane in LANES:
        target = {"test": "test", "site": "docs"}.get(lane.name, f"test-{lane.name}")
        command = "scripts.matrix" if lane.name == "matrix" else f"tests.lanes {lane.name}"
        printed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert f"-m {command}" in printed


@pytest.mark.parametrize(
    ("path", "lanes"),
    [
        ("docs/index.md", {"site"}),
        ("docs/how-to/simulate.md", {"docs", "site"}),
        ("vkgateway/scheduler/core/cycle.py", {"deep"}),
        ("deploy/chart/vkgateway/values.yaml", {"chart", "kubernetes"}),
        ("tests/e2e/test_volcano.py", {"volcano"}),
        (TABLE, {lane.name for lane in LANES if lane.in_all} - {"test"}),
    ],
)
def test_change_selects_its_lanes(path: str, lanes: set[str]) -> None:
    assert {lane.name for lane in lanes_for([path])} == lanes


def test_record_counts_a_test_once(tmp_path: Path) -> None:
    phases = [
        ("a", "setup", "passed"),
        ("a", "call", "passed"),
        ("a", "teardown", "passed"),
        ("b", "setup", "passed"),
        ("b", "call", "passed"),
        ("b", "teardown", "failed"),
        ("c", "setup", "skipped"),
        ("c", "teardown", "passed"),
    ]
    lines = [
        json.dumps({"name": name, "kind": kind, "outcome": outcome, "reason": "no node", "seconds": 1.0})
        for name, kind, outcome in phases
    ]
    (tmp_path / "gw0.jsonl").write_text("\n".join(lines))
    found = runner.read_record("e2e", tmp_path)
    assert (found.passed, found.failed, dict(found.skipped)) == (1, 1, {"no node": 1})
    assert found.is_failed


def test_bounds_of_end_to_end_waits_are_scaled() -> None:
    """A bound written as a literal would depend on the speed of the machine."""
    literal = re.compile(r'"--timeout=\d')
    assert [str(path) for path in (ROOT / E2E).rglob("*.py") if literal.search(path.read_text())] == []


@pytest.mark.parametrize(("script", "is_failed"), [("exit 0", False), ("exit 3", True), ("kill -9 $$", True)])
def test_lane_fails_with_any_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_failed: bool
) -> None:
    monkeypatch.setattr(runner, "RECORD", tmp_path / "record")
    monkeypatch.setattr(runner, "TIMES", tmp_path / "times.json")
    good, tried = Step("good", ("true",)), Step("tried", ("sh", "-c", script))
    lane = Lane(name="tried", about="", tracks=((good,), (tried, good)), minutes=(1, 1), prepare=())
    total, steps = runner.Runner().run_lane(lane)
    assert total.is_failed is is_failed
    assert [step.name for step in steps] == ["good", "tried", "good"]
