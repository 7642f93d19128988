"""Tests of `vkgateway usage --days` and `--budgets`, which ask the gateway."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.gateway import GPU, Cli
from vkgateway.cli.usage_days import allocations, sum_days
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.tenants.usage.budgets import BudgetState, BudgetUse, UsageReport
from vkgateway.tenants.usage.ledger import DayUsage


def day_usage(day: str, hours: float, **fields: object) -> DayUsage:
    given: dict[str, object] = {
        "day": day,
        "tenant": "alpha",
        "pool": "a100",
        "computeCluster": "local",
        "band": "guaranteed",
        "resource": GPU,
        "hours": hours,
        "borrowed": 0.0,
        "lost": 0.0,
        **fields,
    }
    return msgspec.convert(given, DayUsage)


def budget_use(state: BudgetState = BudgetState.WARNING, **fields: object) -> BudgetUse:
    given = {"tenant": "alpha", "resource": GPU, "pool": "", "month": "2026-11", "budget": 100.0, "used": 84.25}
    return msgspec.convert(given | {"state": state} | fields, BudgetUse)


REPORT = UsageReport(
    days=[
        day_usage("2026-11-25", 96.0),
        day_usage("2026-11-26", 12.5, band="low", borrowed=12.5, lost=0.5),
        day_usage("2026-11-26", 3.5, pool="v100"),
        day_usage("2026-11-26", 2.0, tenant="beta", resource="example.com/nic"),
    ],
    budgets=[budget_use(), budget_use(BudgetState.EXHAUSTED, tenant="beta", pool="a100", budget=0.0)],
)


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    found = Cli(tmp_path, capsys)
    asked: list[str] = []

    def usage(tenant: str, days: int) -> bytes:
        asked.append(f"{days}{tenant}")
        return msgspec.json.encode(REPORT)

    async with found.gateway(ArbiterReport(), usage=usage):
        yield found
    assert set(asked) <= {"31", "1"}


async def test_table_by_day(cli: Cli) -> None:
    assert await cli("usage", "--days", "31") == 0, cli.err
    rows = [line.split() for line in cli.out.splitlines()]
    assert rows[0] == ["DAY", "TENANT", "BAND", "POOL", "RESOURCE", "HOURS", "BORROWED", "LOST"]
    assert rows[1:] == [
        ["2026-11-25", "alpha", "guaranteed", "a100", GPU, "96.0", "0.0", "0.0"],
        ["2026-11-26", "alpha", "guaranteed", "v100", GPU, "3.5", "0.0", "0.0"],
        ["2026-11-26", "alpha", "low", "a100", GPU, "12.5", "12.5", "0.5"],
        ["2026-11-26", "beta", "guaranteed", "a100", "example.com/nic", "2.0", "0.0", "0.0"],
    ]


async def test_csv_and_json_are_summed_by_keys(cli: Cli) -> None:
    assert await cli("usage", "--days", "31", "--by", "tenant", "-o", "csv") == 0
    assert list(csv.DictReader(io.StringIO(cli.out))) == [
        {"tenant": "alpha", "resource": GPU, "hours": "112.0", "borrowedHours": "12.5", "lostHours": "0.5"},
        {"tenant": "beta", "resource": "example.com/nic", "hours": "2.0", "borrowedHours": "0.0", "lostHours": "0.0"},
    ]
    assert await cli("usage", "--days", "31", "--by", "day,computeCluster", "-o", "json") == 0
    assert json.loads(cli.out)[0] == {
        "day": "2026-11-25",
        "computeCluster": "local",
        "resource": GPU,
        "hours": 96,
        "borrowedHours": 0,
        "lostHours": 0,
    }


async def test_opencost_output_has_a_set_for_each_day(cli: Cli) -> None:
    assert await cli("usage", "--days", "31", "-o", "opencost", "--price", f"{GPU}=2.5") == 0
    answer = json.loads(cli.out)
    assert (answer["code"], [len(each) for each in answer["data"]]) == (200, [1, 3])
    (first,) = answer["data"][0].values()
    assert first["window"] == {"start": "2026-11-25T00:00:00Z", "end": "2026-11-26T00:00:00Z"}
    assert (first["gpuHours"], first["gpuCount"], first["minutes"]) == (96, 4, 1440)
    assert (first["gpuCost"], first["totalCost"], first["cpuCost"]) == (240, 240, 0)
    assert (first["properties"]["cluster"], first["properties"]["namespace"]) == ("local", "alpha")


def test_current_day_ends_now_and_other_devices_have_external_cost() -> None:
    now = datetime(2026, 11, 26, 6, tzinfo=UTC)
    answer = allocations(REPORT.days, prices={"example.com/nic": 0.5}, now=now)
    nic = next(each for each in answer["data"][1].values() if "nic" in each["name"])
    assert (nic["end"], nic["minutes"]) == ("2026-11-26T06:00:00Z", 360)
    assert (nic["gpuHours"], nic["gpuCost"], nic["externalCost"], nic["totalCost"]) == (0, 0, 1, 1)


def test_tenants_of_one_name_have_sums_of_their_own() -> None:
    usage = [day_usage("2026-11-26", hours, tenantUid=uid) for hours, uid in ((8.0, "0a-1"), (4.0, "0b-1"))]
    assert [(row["tenant"], row["hours"]) for row in sum_days(usage, by=["tenant"])] == [
        ("alpha (0a)", 8.0),
        ("alpha (0b)", 4.0),
    ]
    (day,) = allocations(usage, prices={}, now=datetime(2026, 11, 27, tzinfo=UTC))["data"]
    assert [(each["properties"]["namespace"], each["gpuHours"]) for each in day.values()] == [
        ("alpha (0a)", 8.0),
        ("alpha (0b)", 4.0),
    ]


async def test_budgets_are_listed(cli: Cli) -> None:
    assert await cli("usage", "--budgets") == 0, cli.err
    rows = [line.split() for line in cli.out.splitlines()]
    assert rows[0] == ["TENANT", "RESOURCE", "POOL", "MONTH", "USED", "BUDGET", "PERCENT", "STATE"]
    assert rows[1] == ["alpha", GPU, "-", "2026-11", "84.2", "100", "84", "warning"]
    assert rows[2][-2:] == ["-", "exhausted"]
    assert await cli("usage", "--budgets", "-o", "json") == 0
    assert json.loads(cli.out)[0]["used"] == 84.25


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("--days", "31", "--since", "2h"), "exclude each other"),
        (("--budgets", "--log", "x.jsonl"), "exclude each other"),
        (("--days", "3", "--budgets"), "exclude each other"),
        (("-o", "opencost"), "needs whole days"),
        (("--days", "3", "--by", "pod"), "'pod' is not a key"),
        (("--days", "3", "--price", f"{GPU}=1"), "without -o opencost"),
        (("--days", "3", "-o", "opencost", "--price", "gpu"), "is not a price"),
        (("--days", "3", "-o", "opencost", "--price", f"{GPU}=-1"), "is not a price"),
        (("--days", "32"), "32"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(cli: Cli, line: tuple[str, ...], words: str) -> None:
    assert await cli("usage", *line) == 2
    assert words in cli.err
