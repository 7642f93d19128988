"""Output of `vkgateway simulate`: tables for people, json and yaml for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from vkgateway.cli.output import Column, print_table, serialize
from vkgateway.simulate.result import LateGang, SimulationResult, WaitStatistics

_ONLY_PLOTTED = ("samples", "firstWaits")

METRICS: tuple[tuple[str, Callable[[SimulationResult], str]], ...] = (
    ("gangs", lambda one: str(one.gangs)),
    ("ended", lambda one: str(one.ended)),
    ("allocation", lambda one: f"{one.allocation:.1%}"),
    ("borrowed", lambda one: f"{one.borrowed:.1%}"),
    ("fragmentation", lambda one: f"{one.fragmentation:.1%}"),
    ("entitled gangs", lambda one: str(one.entitled)),
    ("their wait p99", lambda one: _format_duration(one.entitled_p99)),
    ("late", lambda one: str(len(one.late))),
    ("late, not behind an older gang of the tenant", lambda one: str(sum(not each.behind_own for each in one.late))),
    ("lateness p99", lambda one: _format_duration(one.late_p99)),
    ("evictions", lambda one: str(one.evictions)),
    ("lost GPU-hours", lambda one: f"{one.lost_gpu_hours:.1f}"),
    ("sharing anomalies", lambda one: "-" if one.anomalies is None else str(len(one.anomalies))),
    ("longest wait", lambda one: _format_duration(one.longest_wait)),
    ("fairness (Jain)", lambda one: f"{one.fairness:.3f}"),
    ("makespan", lambda one: _format_duration(one.makespan)),
    ("cycles", lambda one: str(one.cycles)),
    ("cycle p99", lambda one: "-" if one.cycle_p99 is None else f"{1000 * one.cycle_p99:.0f} ms"),
)
WAITS: tuple[tuple[str, Callable[[WaitStatistics], str]], ...] = (
    ("band", lambda one: one.band),
    ("gpus", lambda one: one.size or "all"),
    ("gangs", lambda one: str(one.gangs)),
    ("mean", lambda one: _format_duration(one.mean)),
    ("p50", lambda one: _format_duration(one.p50)),
    ("p95", lambda one: _format_duration(one.p95)),
    ("p99", lambda one: _format_duration(one.p99)),
    ("max", lambda one: _format_duration(one.max)),
)
LATE: tuple[tuple[str, Callable[[LateGang], str]], ...] = (
    ("gang", lambda one: one.gang),
    ("tenant", lambda one: one.tenant),
    ("gpus", lambda one: f"{one.gpus:g}"),
    ("submitted", lambda one: _format_duration(one.submitted)),
    ("started", lambda one: _format_duration(one.started)),
    ("late", lambda one: _format_duration(one.late)),
    ("reason", lambda one: one.reason),
    ("behind", lambda one: one.behind),
)


def print_results(results: Sequence[SimulationResult], *, output: str, late: bool) -> None:
    """Print results; `late` adds a table of late gangs."""
    if output != "table":
        click.echo(serialize([result_to_dict(one) for one in results], output=output), nl=False)
        return
    columns = [Column("", str), *(Column(one.scheduler, str, "right") for one in results)]
    print_table([[name, *(read(one) for one in results)] for name, read in METRICS], columns=columns)
    click.echo("\nWaits from submission to the first start:\n")
    _print_fields(WAITS, [(one.scheduler, waits) for one in results for waits in one.waits])
    if late:
        click.echo("\nEntitled gangs that started after the bound:\n")
        _print_fields(LATE, [(one.scheduler, gang) for one in results for gang in one.late])


def result_to_dict(result: SimulationResult) -> dict[str, Any]:
    """Return a result as plain data, without the data of plots."""
    found: dict[str, Any] = msgspec.to_builtins(result)
    return {name: value for name, value in found.items() if name not in _ONLY_PLOTTED}


def _print_fields(fields: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[tuple[str, Any]]) -> None:
    left = ("band", "gpus", "gang", "tenant")
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
