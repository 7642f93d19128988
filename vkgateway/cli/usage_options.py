"""Options of the commands that sum GPU-hours: their declaration, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from vkgateway.api.errors import InputError
from vkgateway.cli.output import output_option_of

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
        from vkgateway.cli.usage import parse_moment

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
