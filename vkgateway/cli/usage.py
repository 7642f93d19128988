"""`vkgateway usage`: GPU-hours by tenant, band, pool and day, and the use of budgets."""

from __future__ import annotations

import asyncio
import csv
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option, get_usage, load_gateway_settings
from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import Column, output_option_of, print_table, serialize
from vkgateway.cli.usage_days import DAY_KEYS, parse_prices, print_budgets, print_days
from vkgateway.model.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from vkgateway.gateway.usagelog import GroupKey, UsageTotal

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
@click.option("--since", help="Start: an age such as 90m, 24h or 7d, or an RFC 3339 time. [default: 24h]")
@click.option("--until", help="End, in the same format. [default: 0s]")
@click.option(
    "--days", type=click.IntRange(1, 31), help="Sums of the last UTC days from the gateway, instead of its usage log."
)
@click.option("--budgets", is_flag=True, help="The monthly budgets and their use, from the gateway.")
@click.option(
    "--by", help="Comma-separated keys of the groups. [default: tenant,band,pool; with --days: day,tenant,band,pool]"
)
@click.option(
    "--price", "prices", multiple=True, metavar="RESOURCE=PRICE", help="Price of an hour, for -o opencost; repeatable."
)
@click.option(
    "--log", "file", type=click.Path(path_type=Path, dir_okay=False), help="Usage log. [default: the platform's log]"
)
@gateway_option
@output_option_of("table", "csv", "json", "yaml", "opencost")
@data_dir_option
def usage(
    *,
    since: str | None,
    until: str | None,
    days: int | None,
    budgets: bool,
    by: str | None,
    prices: tuple[str, ...],
    file: Path | None,
    gateway: GatewayEndpoint,
    output: str,
    data_dir: Path,
) -> None:
    """Sum the GPU-hours of tenants' pods: total, borrowed, and lost to preemption.

    Keys: day, tenant, namespace, gang, pod, band, pool, computeCluster, resource. With --days, all but namespace, gang
    and pod. Different resources are never summed. Days are UTC days. Lost hours count from the start or the last
    checkpoint of an evicted pod.
    """
    check_options(since=since, until=until, days=days, budgets=budgets, prices=prices, file=file, output=output)
    if budgets:
        print_budgets(asyncio.run(get_usage(data_dir, gateway, days=1)).budgets, output=output)
    elif days is not None:
        keys, parsed = parse_keys(by or "day,tenant,band,pool", known=DAY_KEYS), parse_prices(prices)
        print_days(asyncio.run(get_usage(data_dir, gateway, days=days)).days, by=keys, output=output, prices=parsed)
    else:
        keys = parse_keys(by or "tenant,band,pool")
        _print_log(since or "24h", until or "0s", by=keys, file=file, output=output, data_dir=data_dir)


def check_options(
    *,
    since: str | None,
    until: str | None,
    days: int | None,
    budgets: bool,
    prices: tuple[str, ...],
    file: Path | None,
    output: str,
) -> None:
    """Refuse options that do not go together. Raises InputError."""
    from_log = [name for name, value in (("--since", since), ("--until", until), ("--log", file)) if value is not None]
    if from_log and (days is not None or budgets):
        other = "--days" if days is not None else "--budgets"
        raise InputError(f"{from_log[0]} and {other} exclude each other", hint=f"{other} reads no log.")
    if output == "opencost" and days is None:
        raise InputError("-o opencost needs whole days", hint="Set --days, for example --days 31.")
    if days is not None and budgets:
        raise InputError("--days and --budgets exclude each other", hint="Budgets are for the current month.")
    if prices and output != "opencost":
        raise InputError("--price has no effect without -o opencost", hint="Add -o opencost, or remove --price.")


def _print_log(since: str, until: str, *, by: list[GroupKey], file: Path | None, output: str, data_dir: Path) -> None:
    """Print the sums of a usage log between two times."""
    from vkgateway.gateway.usagelog import read_usage, sum_usage

    now = datetime.now(UTC).timestamp()
    start, end = parse_moment(since, what="--since", now=now), parse_moment(until, what="--until", now=now)
    if end <= start:
        raise InputError(f"--until {until} is not after --since {since}", hint="Set --since to an earlier time.")
    if file is not None and not file.exists():
        raise InputError(f"usage log {file} does not exist", hint="Give the path of an existing usage log.")
    sums = sum_usage(read_usage(file or usage_log_path(data_dir)), since=start, until=end, by=by)
    print_totals(sums, keys=by, output=output)


def parse_moment(text: str, *, what: str, now: float) -> float:
    """Return an age such as `24h`, or an RFC 3339 time, in seconds since the epoch. Raises InputError."""
    from vkgateway.model import times

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
    from vkgateway.gateway.usagelog import GroupKey

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
