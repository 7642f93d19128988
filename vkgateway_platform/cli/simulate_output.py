"""Output of `vkgateway simulate`: tables for people, json and yaml for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from vkgateway.cli.output import Column, print_table, serialize
from vkgateway_platform.simulate.result import BudgetMonth, LateGang, SimulationResult, WaitStatistics

_ONLY_PLOTTED = ("samples", "firstWaits")

METRICS: tuple[tuple[str, Callable[[SimulationResult], str]], ...] = (
    ("gangs", lambda result: str(result.gangs)),
    ("ended", lambda result: str(result.ended)),
    ("allocation", lambda result: f"{result.allocation:.1%}"),
    ("borrowed", lambda result: f"{result.borrowed:.1%}"),
    ("fragmentation", lambda result: f"{result.fragmentation:.1%}"),
    ("entitled gangs", lambda result: str(result.entitled)),
    ("their wait p99", lambda result: _format_duration(result.entitled_p99)),
    ("late", lambda result: str(len(result.late))),
    (
        "late, not behind an older gang of the tenant",
        lambda result: str(sum(not gang.behind_own for gang in result.late)),
    ),
    ("lateness p99", lambda result: _format_duration(result.late_p99)),
    ("evictions", lambda result: str(result.evictions)),
    ("lost GPU-hours", lambda result: f"{result.lost_gpu_hours:.1f}"),
    ("sharing anomalies", lambda result: "-" if result.anomalies is None else str(len(result.anomalies))),
    ("longest wait", lambda result: _format_duration(result.longest_wait)),
    ("fairness (Jain)", lambda result: f"{result.fairness:.3f}"),
    ("makespan", lambda result: _format_duration(result.makespan)),
    ("cycles", lambda result: str(result.cycles)),
    ("cycle p99", lambda result: "-" if result.cycle_p99 is None else f"{1000 * result.cycle_p99:.0f} ms"),
)
WAITS: tuple[tuple[str, Callable[[WaitStatistics], str]], ...] = (
    ("band", lambda waits: waits.band),
    ("gpus", lambda waits: waits.size or "all"),
    ("gangs", lambda waits: str(waits.gangs)),
    ("mean", lambda waits: _format_duration(waits.mean)),
    ("p50", lambda waits: _format_duration(waits.p50)),
    ("p95", lambda waits: _format_duration(waits.p95)),
    ("p99", lambda waits: _format_duration(waits.p99)),
    ("max", lambda waits: _format_duration(waits.max)),
)
LATE: tuple[tuple[str, Callable[[LateGang], str]], ...] = (
    ("gang", lambda gang: gang.gang),
    ("tenant", lambda gang: gang.tenant),
    ("gpus", lambda gang: f"{gang.gpus:g}"),
    ("submitted", lambda gang: _format_duration(gang.submitted)),
    ("started", lambda gang: _format_duration(gang.started)),
    ("late", lambda gang: _format_duration(gang.late)),
    ("reason", lambda gang: gang.reason),
    ("behind", lambda gang: gang.behind),
)

BUDGETS: tuple[tuple[str, Callable[[BudgetMonth], str]], ...] = (
    ("month", lambda use: use.month),
    ("tenant", lambda use: use.tenant),
    ("resource", lambda use: use.resource),
    ("pool", lambda use: use.pool or "-"),
    ("used", lambda use: f"{use.used:.1f}"),
    ("budget", lambda use: f"{use.budget:.15g}"),
    ("used up after", lambda use: _format_duration(use.used_up)),
)


def print_results(results: Sequence[SimulationResult], *, output: str, late: bool) -> None:
    """Print results; `late` adds a table of late gangs."""
    if output != "table":
        click.echo(serialize([result_to_dict(result) for result in results], output=output), nl=False)
        return
    columns = [Column("", str), *(Column(result.scheduler, str, "right") for result in results)]
    print_table([[name, *(read(result) for result in results)] for name, read in METRICS], columns=columns)
    click.echo("\nWaits from submission to the first start:\n")
    _print_fields(WAITS, [(result.scheduler, waits) for result in results for waits in result.waits])
    budgets = [(result.scheduler, use) for result in results for use in result.budgets]
    if budgets:
        click.echo("\nMonthly budgets, in hours:\n")
        _print_fields(BUDGETS, budgets)
    if late:
        click.echo("\nEntitled gangs that started after the bound:\n")
        _print_fields(LATE, [(result.scheduler, gang) for result in results for gang in result.late])


def result_to_dict(result: SimulationResult) -> dict[str, Any]:
    """Return a result as plain data, without the data of plots."""
    found: dict[str, Any] = msgspec.to_builtins(result)
    return {name: value for name, value in found.items() if name not in _ONLY_PLOTTED}


def _print_fields(fields: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[tuple[str, Any]]) -> None:
    left = ("band", "gpus", "gang", "tenant", "month", "resource", "pool")
    columns = [Column(name, str, "left" if name in left else "right") for name, _ in fields]
    cells = [[scheduler, *(read(row) for _, read in fields)] for scheduler, row in rows]
    print_table(cells, columns=[Column("scheduler", str), *columns])


def _format_duration(seconds: float | None) -> str:
    """Return a duration such as `90s`, `12m` or `3.5h`."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.1f}h"
