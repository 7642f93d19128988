"""`vkgateway usage`: GPU-hours by tenant, band and pool, and what of them was lost to preemption."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from vkgateway.cli.gateway_state import load_gateway_settings
from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import Column, output_option_of, print_table, serialize
from vkgateway.model.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from vkgateway.gateway.usagelog import GroupKey, UsageTotal

EPILOG = """\b
Examples:
  vkgateway usage --since 24h
  vkgateway usage --since 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --by tenant -o csv
  vkgateway usage --since 7d --by pool,band -o json
"""

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION_PATTERN = re.compile(r"([0-9]{1,6})([smhdw])")


@click.command(epilog=EPILOG)
@click.option("--since", default="24h", show_default=True, help="A time like 90m, 24h, 7d ago, or an RFC 3339 time.")
@click.option("--until", default="0s", show_default=True, help="The same for the end.")
@click.option("--by", default="tenant,band,pool", show_default=True, help="What to sum by, with commas.")
@click.option(
    "--log", "file", type=click.Path(path_type=Path, dir_okay=False), help="The log. [default: the platform's]"
)
@output_option_of("table", "csv", "json", "yaml")
@data_dir_option
def usage(*, since: str, until: str, by: str, file: Path | None, output: str, data_dir: Path) -> None:
    """Sum up what tenants' pods held of GPUs and the like: hours, of them borrowed, of them lost to preemption.

    By: tenant, namespace, gang, pod, band, pool, computeCluster, resource. Different resources are never summed up
    together. What was lost is work since the start or the last checkpoint of what was evicted.
    """
    from vkgateway.gateway.usagelog import read_usage, sum_usage

    now = datetime.now(UTC).timestamp()
    first, last = parse_moment(since, what="--since", now=now), parse_moment(until, what="--until", now=now)
    if last <= first:
        raise InputError(f"--until {until} is not after --since {since}")
    keys = parse_keys(by)
    if file is not None and not file.exists():
        raise InputError(f"usage log {file} does not exist")
    sums = sum_usage(read_usage(file or usage_log_path(data_dir)), since=first, until=last, by=keys)
    print_totals(sums, keys=keys, output=output)


def parse_moment(text: str, *, what: str, now: float) -> float:
    """`24h` ago, or an RFC 3339 time, in seconds since the epoch; InputError for anything else."""
    from vkgateway.model import times

    match = _DURATION_PATTERN.fullmatch(text)
    if match is not None:
        return now - int(match[1]) * _UNIT_SECONDS[match[2]]
    try:
        return times.parse_time(text).timestamp()
    except ValueError as error:
        raise InputError(
            f"{what} {text!r} is no time", hint="Write how long ago, like 90m, 24h or 7d, or 2026-11-21T00:00:00Z."
        ) from error


def parse_keys(by: str) -> list[GroupKey]:
    """What to sum by, the resource always among it; InputError for what cannot be summed by."""
    from vkgateway.gateway.usagelog import GroupKey

    known = get_args(GroupKey)
    keys: list[GroupKey] = []
    for name in filter(None, (part.strip() for part in by.split(","))):
        if name not in known:
            raise InputError(f"--by {name!r} is not known", hint=f"There are: {', '.join(known)}.")
        if name not in keys:
            keys.append(name)  # type: ignore[arg-type] # looked up just before
    return keys if "resource" in keys else [*keys, "resource"]


def usage_log_path(data_dir: Path) -> Path:
    """Where the platform's gateway writes what was used. Raises UnavailableError where it does not."""
    log = load_gateway_settings(data_dir).arbiter.usage_log
    if not log:
        raise UnavailableError(
            f"the gateway of {data_dir} keeps no usage log", hint="Set arbiter.usageLog, or name a file with --log."
        )
    return Path(log)


def print_totals(sums: Sequence[UsageTotal], *, keys: Sequence[str], output: str) -> None:
    """Print sums: numbers in full for programs, to a tenth for people."""
    import msgspec

    if output in ("json", "yaml"):
        click.echo(serialize([msgspec.to_builtins(one) for one in sums], output=output), nl=False)
        return
    if output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*keys, *_NUMBER_FIELDS])
        writer.writerows(
            [*(one.by[key] for key in keys), one.hours, one.borrowed_hours, one.lost_hours, one.pods] for one in sums
        )
        return
    if not sums:
        click.echo("Nothing was used in that time.", err=True)
        return
    columns: list[Column[Any]] = [Column(key, str) for key in keys]
    columns += [Column(title, str, "right") for title in ("hours", "borrowed", "lost", "pods")]
    print_table([_table_row(one, keys) for one in sums], columns=columns)


_NUMBER_FIELDS = ("hours", "borrowedHours", "lostHours", "pods")


def _table_row(one: UsageTotal, keys: Sequence[str]) -> list[str]:
    hours = (f"{value:.1f}" for value in (one.hours, one.borrowed_hours, one.lost_hours))
    return [*(one.by[key] or "-" for key in keys), *hours, str(one.pods)]
