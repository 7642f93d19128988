"""Tests of the output and errors of `vkgateway simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.gateway import Cli
from tests.unit.simulate.test_traces import NODES, PODS, recorded
from tests.unit.usage.records import used
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.service.decisionlog import DecisionLog
from vkgateway.tenants.usage.log import UsageLog

SMALL = ("simulate", "--nodes", "4x8", "--tenants", "2", "--duration", "1h", "--run", "5m", "--sizes", "1=1,8=1")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


async def test_table_has_metrics_and_waits(cli: Cli) -> None:
    assert await cli(*SMALL) == 0, cli.err
    assert "allocation" in cli.out
    assert any(line.split()[:3] == ["vkgateway", "guaranteed", "all"] for line in cli.out.splitlines())
    assert "vkgateway: done" in cli.err


async def test_json_is_the_same_for_the_same_seed(cli: Cli) -> None:
    found = []
    for seed in ("5", "5", "6"):
        assert await cli(*SMALL, "--seed", seed, "-o", "json") == 0, cli.err
        (one,) = json.loads(cli.out)
        found.append({name: value for name, value in one.items() if not name.startswith("cycle")})
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert found[0]["gangs"] == found[0]["ended"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "64"), "Use 64x8"),
        (("--duration", "soon"), "Use a number with ms, s, m, h, d or w"),
        (("--sizes", "8"), "Example: 1=35,8=50,64=15"),
        (("--policy", "best"), "Available: vkgateway"),
        (("--policy", "nothing.here:At"), "cannot be loaded"),
        (("--run", "0s"), "is not above zero"),
        (("--run-limits", "low=soon"), "Use none, declared, or limits like guaranteed=72h,low=12h"),
        (("--run-limits", "all"), "is not a band with its limit"),
    ],
)
async def test_errors_name_value_and_way_out(cli: Cli, options: tuple[str, ...], message: str) -> None:
    assert await cli(*SMALL, *options) == 2
    assert message in " ".join(cli.err.split())
    assert options[1] in cli.err or options[1] == "0s"


async def test_report_is_one_file_with_plots(cli: Cli) -> None:
    file = cli.folder / "report.html"
    assert await cli(*SMALL, "--policy", "vkgateway", "--policy", "fifo", "--report", str(file)) == 0, cli.err
    text = file.read_text()
    assert text.count("Plotly.newPlot(") >= 8
    assert "<script src" not in text
    assert "Allocation over time" in text


async def test_saved_simulation_resumes_only_with_same_options(cli: Cli) -> None:
    file = cli.folder / "saved.json"
    assert await cli(*SMALL, "--save", str(file), "-o", "json") == 0, cli.err
    first = json.loads(cli.out)
    assert await cli(*SMALL, "--save", str(file), "--resume", "-o", "json") == 0, cli.err
    assert json.loads(cli.out) == first
    assert await cli(*SMALL, "--seed", "9", "--save", str(file), "--resume") == 2
    assert "belongs to another cluster, trace or settings" in cli.err
    assert await cli(*SMALL, "--resume") == 2
    assert "Add --save FILE" in cli.err
    file.write_text("{}")
    assert await cli(*SMALL, "--save", str(file), "--resume") == 2
    assert "is not a saved simulation" in cli.err


async def test_decision_log_replays_with_other_guarantees(cli: Cli) -> None:
    log = cli.folder / "decisions.jsonl"
    writing = DecisionLog(log)
    for now, snapshot in recorded():
        writing.write_cycle(snapshot, decide(snapshot, now), now)
    cli.configure(arbiter={"decisionLog": str(log)})
    assert await cli("simulate", "--replay", "-o", "json") == 0, cli.err
    (found,) = json.loads(cli.out)
    assert (found["gangs"], found["evictions"]) == (2, 1)
    others = cli.folder / "tenants.yaml"
    others.write_text(yaml.safe_dump([{"name": "a"}, {"name": "b", "pools": [{"guarantee": {"nvidia.com/gpu": 8}}]}]))
    assert await cli("simulate", "--replay", "--tenants-file", str(others), "-o", "json") == 0, cli.err
    (found,) = json.loads(cli.out)
    assert [each["guarantee"] for each in found["tenants"]] == [0.0, 8.0]


async def test_budgets_stop_borrowing_and_are_reported(cli: Cli) -> None:
    tenants = cli.folder / "tenants.yaml"
    pools = [{"guarantee": {"nvidia.com/gpu": 8}}]
    budget = [{"resource": "nvidia.com/gpu", "hours": 20}]
    tenants.write_text(yaml.safe_dump([{"name": "a", "pools": pools, "budget": budget}, {"name": "b", "pools": pools}]))
    assert await cli(*SMALL, "--tenants-file", str(tenants), "-o", "json") == 0, cli.err
    (found,) = json.loads(cli.out)
    first = found["budgets"][0]
    assert (first["month"], first["tenant"], first["budget"]) == ("1970-01", "a", 20)
    assert first["used"] >= 20
    assert first["usedUp"] > 0
    report = cli.folder / "report.html"
    assert await cli(*SMALL, "--tenants-file", str(tenants), "--report", str(report)) == 0, cli.err
    assert "USED UP AFTER" in cli.out
    assert "Monthly budgets, in hours" in report.read_text()
    tenants.write_text(yaml.safe_dump([{"name": "a", "budget": [{"resource": "nvidia.com/gpu", "hours": -1}]}]))
    assert await cli(*SMALL, "--tenants-file", str(tenants)) == 2
    assert "tenant a: budget[0].hours: -1 is not a number of hours" in cli.err


async def test_replay_knows_the_hours_before_the_decision_log(cli: Cli) -> None:
    log, usage_log = cli.folder / "decisions.jsonl", cli.folder / "usage.jsonl"
    writing = DecisionLog(log)
    cycles = recorded()
    for now, snapshot in cycles:
        writing.write_cycle(snapshot, decide(snapshot, now), now)
    begin = cycles[0][0]
    UsageLog(usage_log).write_records(
        used("deleted", begin - 1800, begin, tenant="b", tenantUid="first"),
        used("before", begin - 900, begin + 3600, tenant="b", tenantUid="next"),
    )
    tenants = cli.folder / "tenants.yaml"
    budget = [{"resource": "nvidia.com/gpu", "hours": 1000}]
    pools = [{"guarantee": {"nvidia.com/gpu": 8}}]
    tenants.write_text(yaml.safe_dump([{"name": "a"}, {"name": "b", "pools": pools, "budget": budget}]))
    given = ("simulate", "--trace", str(log), "--tenants-file", str(tenants), "-o", "json")
    assert await cli(*given) == 0, cli.err
    without = sum(use["used"] for use in json.loads(cli.out)[0]["budgets"])
    assert await cli(*given, "--usage-log", str(usage_log)) == 0, cli.err
    assert sum(use["used"] for use in json.loads(cli.out)[0]["budgets"]) == pytest.approx(without + 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nodes.yaml", "a: 1", "contains no list of nodes"),
        ("nodes.csv", "sn,gpu\na,0\n", "contains no nodes with GPUs"),
        ("nodes.json", '{"items": []}', "contains no nodes with GPUs"),
        ("nodes.csv", "sn,gpu\na,some\n", "node a: gpu 'some' is not a number"),
    ],
)
async def test_invalid_nodes_files_are_errors(cli: Cli, name: str, text: str, message: str) -> None:
    (cli.folder / name).write_text(text)
    assert await cli("simulate", "--nodes-file", str(cli.folder / name)) == 2
    assert message in cli.err


async def test_trace_file_with_nodes_file(cli: Cli) -> None:
    (cli.folder / "pods.csv").write_text(PODS)
    (cli.folder / "nodes.csv").write_text(NODES)
    files = ("--trace", str(cli.folder / "pods.csv"), "--nodes-file", str(cli.folder / "nodes.csv"))
    assert await cli("simulate", *files, "--tenants", "2", "-o", "json") == 0, cli.err
    (found,) = json.loads(cli.out)
    assert (found["gangs"], found["ended"]) == (3, 3)
    assert await cli("simulate", *files, "--start", "9d") == 2
    assert "has no job in this time" in cli.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("trace.txt", "", "cannot tell the format of trace"),
        ("trace.json", "[1]", "not a cluster_job_log"),
        ("trace.yaml", "a: [", "is neither YAML nor JSON"),
        ("trace.csv", "name\nx\n", "pod 1 has no cpu_milli"),
        ("trace.jsonl", "", "no cycle"),
        ("missing.csv", None, "cannot read file"),
    ],
)
async def test_invalid_traces_are_errors(cli: Cli, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (cli.folder / name).write_text(text)
    assert await cli("simulate", "--trace", str(cli.folder / name)) == 2
    assert message in cli.err
