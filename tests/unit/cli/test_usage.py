"""Tests of `vkgateway usage`."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.gateway import Cli
from vkgateway.api.errors import InputError
from vkgateway.cli import usage
from vkgateway.tenants.usage.log import UsageLog
from vkgateway.tenants.usage.records import UsageRecord

HOUR = 3600.0


def used(pod: str, *, hours_ago: float, hours: float = 1.0, units: float = 8.0, **fields: object) -> UsageRecord:
    now = datetime.now(UTC).timestamp()
    start = now - hours_ago * HOUR
    given: dict[str, object] = {
        "tenant": "alpha",
        "namespace": "ns",
        "pod": pod,
        "gang": "alpha/ns/gang/x",
        "band": "guaranteed",
        "borrowed": False,
        "pool": "a100",
        "computeCluster": "local",
        "resource": "nvidia.com/gpu",
        "units": units,
        "start": start,
        "end": start + hours * HOUR,
        **fields,
    }
    return msgspec.convert(given, UsageRecord)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    found = Cli(tmp_path, capsys)
    log = tmp_path / "usage.jsonl"
    found.configure(arbiter={"usageLog": str(log)})
    UsageLog(log).write_records(
        used("p", hours_ago=5, hours=2),
        used("q", hours_ago=3, band="low", borrowed=True, lost=900.0),
        used("r", hours_ago=100, hours=50, tenant="beta"),
        used("s", hours_ago=2, units=1, resource="example.org/nic", tenant="beta"),
    )
    return found


async def test_table_has_rounded_hours(cli: Cli) -> None:
    assert await cli("usage", "--since", "24h") == 0, cli.err
    rows = [line.split() for line in cli.out.splitlines()]
    assert rows[0] == ["TENANT", "BAND", "POOL", "RESOURCE", "HOURS", "BORROWED", "LOST", "PODS"]
    assert rows[1:] == [
        ["alpha", "guaranteed", "a100", "nvidia.com/gpu", "16.0", "0.0", "0.0", "1"],
        ["alpha", "low", "a100", "nvidia.com/gpu", "8.0", "8.0", "2.0", "1"],
        ["beta", "guaranteed", "a100", "example.org/nic", "1.0", "0.0", "0.0", "1"],
    ]


async def test_csv_and_json_have_full_numbers(cli: Cli) -> None:
    assert await cli("usage", "--since", "5d", "--by", "tenant,resource", "-o", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(cli.out)))
    assert [(row["tenant"], row["resource"]) for row in rows] == [
        ("alpha", "nvidia.com/gpu"),
        ("beta", "example.org/nic"),
        ("beta", "nvidia.com/gpu"),
    ]
    assert [float(row["hours"]) for row in rows] == pytest.approx([24, 1, 400])
    assert await cli("usage", "--by", "band", "-o", "json") == 0
    rows_by_band = json.loads(cli.out)
    assert [one["by"]["band"] for one in rows_by_band] == ["guaranteed", "guaranteed", "low"]
    assert rows_by_band[2]["lostHours"] == pytest.approx(2)
    assert rows_by_band[2]["borrowedHours"] == pytest.approx(8)


async def test_log_option_selects_log(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert await cli("usage", "--log", str(tmp_path / "empty.jsonl")) == 0
    assert (cli.out, "No usage in this period" in cli.err) == ("", True)
    assert await cli("usage", "--log", str(tmp_path / "empty.jsonl"), "-o", "json") == 0
    assert json.loads(cli.out) == []


async def test_missing_log_file_is_an_input_error(cli: Cli, tmp_path: Path) -> None:
    """Otherwise the command would report no usage."""
    assert await cli("usage", "--log", str(tmp_path / "none.jsonl"), "-o", "json") == 2
    assert (cli.out, "none.jsonl does not exist" in cli.err) == ("", True)


async def test_disabled_usage_log_is_an_error(cli: Cli) -> None:
    cli.configure(arbiter={"usageLog": ""})
    assert await cli("usage") == 5
    assert "--log" in cli.err


@pytest.mark.parametrize(
    "line", [("--since", "yesterday"), ("--since", "1h", "--until", "2h"), ("--by", "colour"), ("--until", "24hours")]
)
async def test_invalid_options_are_refused(cli: Cli, line: tuple[str, ...]) -> None:
    assert await cli("usage", *line) == 2
    assert line[1] in cli.err


def test_times_are_ages_or_timestamps() -> None:
    assert usage.parse_moment("90m", what="--since", now=10_000.0) == 10_000 - 5400
    assert usage.parse_moment("1970-01-01T01:00:00Z", what="--since", now=0.0) == HOUR
    with pytest.raises(InputError, match="--since '1y'"):
        usage.parse_moment("1y", what="--since", now=0.0)


async def test_log_is_grouped_by_utc_day(cli: Cli, tmp_path: Path) -> None:
    log, midnight = tmp_path / "days.jsonl", datetime(2026, 11, 26, tzinfo=UTC).timestamp()
    UsageLog(log).write_records(
        msgspec.structs.replace(
            used("p", hours_ago=0), start=midnight - HOUR, end=midnight + 2 * HOUR, lost=2.5 * HOUR, borrowed=True
        )
    )
    line = ("usage", "--log", str(log), "--since", "2026-11-01T00:00:00Z", "--until", "2026-12-01T00:00:00Z")
    assert await cli(*line, "--by", "day", "-o", "json") == 0, cli.err
    assert [
        (each["by"]["day"], each["hours"], each["borrowedHours"], each["lostHours"]) for each in json.loads(cli.out)
    ] == [("2026-11-25", 8, 8, 4), ("2026-11-26", 16, 16, 16)]
    assert await cli(*line, "-o", "json") == 0
    (total,) = json.loads(cli.out)
    assert (total["hours"], total["lostHours"]) == (24, 20)
