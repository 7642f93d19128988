"""`vkgateway usage`: GPU-hours by tenant, band, pool and day, and the use of budgets."""

from __future__ import annotations

import asyncio
import csv
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option, get_usage, load_gateway_settings
from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import Column, output_option_of, print_table, serialize
from vkgateway.cli.usage_days import DAY_KEYS, parse_prices, print_budgets, print_days

if TYPE_CHECKING:
    from vkgateway.tenants.usage.log import UsageTotal


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions:
    """Options of both commands; None: not given."""

    since: str | None
    until: str | None
    days: int | None
    budgets: bool
    by: str | None
    prices: tuple[str, ...]
    output: str

    def check(self, *, file: Path | None = None) -> None:
        """Refuse options that do not go together; `file` is a usage log. Raises InputError."""
        log_options = (("--since", self.since), ("--until", self.until), ("--log", file))
        from_log = [name for name, value in log_options if value is not None]
        if from_log and (self.days is not None or self.budgets):
            other = "--days" if self.days is not None else "--budgets"
            raise InputError(f"{from_log[0]} and {other} exclude each other", hint=f"{other} reads no log.")
        if self.output == "opencost" and self.days is None:
            raise InputError("-o opencost needs whole days", hint="Set --days, for example --days 31.")
        if self.days is not None and self.budgets:
            raise InputError("--days and --budgets exclude each other", hint="Budgets are for the current month.")
        if self.prices and self.output != "opencost":
            raise InputError("--price has no effect without -o opencost", hint="Add -o opencost, or remove --price.")

    def period(self) -> tuple[float, float]:
        """Return start and end in seconds since the epoch; the default is the last day. Raises InputError."""

        now = datetime.now(UTC).timestamp()
        since, until = self.since or "24h", self.until or "0s"
        start, end = parse_moment(since, what="--since", now=now), parse_moment(until, what="--until", now=now)
        if end <= start:
            raise InputError(f"--until {until} is not after --since {since}", hint="Set --since to an earlier time.")
        return start, end


def usage_options(*, days: str, budgets: str, keys: str) -> Callable[[F], F]:
    """Return a decorator that adds the options; `days` and `budgets` are help texts, `keys` the default of --by."""
    options = (
        click.option("--since", help="Start: an age such as 90m, 24h or 7d, or an RFC 3339 time. [default: 24h]"),
        click.option("--until", help="End, in the same format. [default: 0s]"),
        click.option("--days", type=click.IntRange(1, 31), help=days),
        click.option("--budgets", is_flag=True, help=budgets),
        click.option("--by", help=f"Comma-separated keys of the groups. [default: {keys}]"),
        click.option(
            "--price",
            "prices",
            multiple=True,
            metavar="RESOURCE=PRICE",
            help="Price of an hour, for -o opencost; repeatable.",
        ),
        output_option_of("table", "csv", "json", "yaml", "opencost"),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


EPILOG = """\b
Examples:
  vkgateway usage --since 24h
  vkgateway usage --since 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --by tenant -o csv
  vkgateway usage --since 7d --by pool,band -o json
  vkgateway usage --days 31 --by day,tenant -o csv
  vkgateway usage --days 31 -o opencost --price nvidia.com/gpu=2.5
  vkgateway usage --budgets
"""

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION_PATTERN = re.compile(r"([0-9]{1,6})([smhdw])")


@click.command(short_help="Sum the GPU-hours of tenants.", epilog=EPILOG)
@usage_options(
    days="Sums of the last UTC days from the gateway, instead of its usage log.",
    budgets="The monthly budgets and their use, from the gateway.",
    keys="tenant,band,pool; with --days: day,tenant,band,pool",
)
@click.option(
    "--log", "file", type=click.Path(path_type=Path, dir_okay=False), help="Usage log. [default: the platform's log]"
)
@gateway_option
@data_dir_option
def usage(*, file: Path | None, gateway: GatewayEndpoint, data_dir: Path, **given: Any) -> None:
    """Sum the GPU-hours of tenants' pods: total, borrowed, and lost to preemption.

    Keys: day, tenant, tenantUid, namespace, gang, pod, band, pool, computeCluster, resource. With --days, all but
    namespace, gang and pod. Different resources are never summed, nor are tenants that had the same name: those show
    the first part of their UID. Days are UTC days. Lost hours count from the start or the last checkpoint of an
    evicted pod.
    """
    options = UsageOptions(**given)
    options.check(file=file)
    if options.budgets:
        print_budgets(asyncio.run(get_usage(data_dir, gateway, days=1)).budgets, output=options.output)
    elif options.days is not None:
        keys, prices = parse_keys(options.by or "day,tenant,band,pool", known=DAY_KEYS), parse_prices(options.prices)
        report = asyncio.run(get_usage(data_dir, gateway, days=options.days))
        print_days(report.days, by=keys, output=options.output, prices=prices)
    else:
        _print_log(options, file, data_dir)


def _print_log(options: UsageOptions, file: Path | None, data_dir: Path) -> None:
    """Print the sums of a usage log between two times."""
    from vkgateway.tenants.usage.log import read_usage, sum_usage

    keys, (start, end) = parse_keys(options.by or "tenant,band,pool"), options.period()
    if file is not None and not file.exists():
        raise InputError(f"usage log {file} does not exist", hint="Give the path of an existing usage log.")
    sums = sum_usage(read_usage(file or usage_log_path(data_dir)), since=start, until=end, by=keys)
    print_totals(sums, keys=keys, output=options.output)


def parse_moment(text: str, *, what: str, now: float) -> float:
    """Return an age such as `24h`, or an RFC 3339 time, in seconds since the epoch. Raises InputError."""
    from vkgateway.api import times

    match = _DURATION_PATTERN.fullmatch(text)
    if match is not None:
        return now - int(match[1]) * _UNIT_SECONDS[match[2]]
    try:
        return times.parse_time(text).timestamp()
    except ValueError as error:
        raise InputError(
            f"{what} {text!r} is not a time", hint="Use an age such as 90m, 24h or 7d, or 2026-11-21T00:00:00Z."
        ) from error


def parse_keys(by: str, *, known: Sequence[str] = ()) -> list[Any]:
    """Return the keys of the groups, which always include the resource. Raises InputError.

    `known`: the available keys; by default those of the usage log.
    """
    from vkgateway.tenants.usage.log import GroupKey

    known = known or get_args(GroupKey)
    keys: list[str] = []
    for name in filter(None, (part.strip() for part in by.split(","))):
        if name not in known:
            raise InputError(f"--by {name!r} is not a key", hint=f"Available keys: {', '.join(known)}.")
        if name not in keys:
            keys.append(name)
    return keys if "resource" in keys else [*keys, "resource"]


def usage_log_path(data_dir: Path) -> Path:
    """Return the path of the platform's usage log. Raises UnavailableError if it is disabled."""
    log = load_gateway_settings(data_dir).arbiter.usage_log
    if log in ("", "-"):
        raise UnavailableError(
            f"the gateway of {data_dir} writes no usage log to a file",
            hint="Set arbiter.usageLog, or give a file with --log.",
        )
    return Path(log)


def print_totals(totals: Sequence[UsageTotal], *, keys: Sequence[str], output: str) -> None:
    """Print totals, with one decimal in tables and in full otherwise."""
    import msgspec

    if output in ("json", "yaml"):
        click.echo(serialize([msgspec.to_builtins(total) for total in totals], output=output), nl=False)
        return
    if output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*keys, *_NUMBER_FIELDS])
        writer.writerows(
            [*(total.by[key] for key in keys), total.hours, total.borrowed_hours, total.lost_hours, total.pods]
            for total in totals
        )
        return
    if not totals:
        click.echo("No usage in this period.", err=True)
        return
    columns: list[Column[Any]] = [Column(key, str) for key in keys]
    columns += [Column(title, str, "right") for title in ("hours", "borrowed", "lost", "pods")]
    print_table([_table_row(total, keys) for total in totals], columns=columns)


_NUMBER_FIELDS = ("hours", "borrowedHours", "lostHours", "pods")


def _table_row(total: UsageTotal, keys: Sequence[str]) -> list[str]:
    hours = (f"{value:.1f}" for value in (total.hours, total.borrowed_hours, total.lost_hours))
    return [*(total.by[key] or "-" for key in keys), *hours, str(total.pods)]
