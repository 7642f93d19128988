"""`vkgateway replay`: replay logged scheduling cycles and compare the decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.cli.gateway_state import load_gateway_settings
from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import Column, output_option, print_objects

if TYPE_CHECKING:
    from vkgateway.scheduler.core.decisions import Decisions
    from vkgateway.scheduler.service.decisionlog import LogEntry, UnreadableLine

EPILOG = """\b
Examples:
  vkgateway replay
  vkgateway replay decisions.jsonl.1 -o json
"""


class ReplayedCycle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Replayed scheduling cycle."""

    time: str
    gangs: int
    admits: int
    evicts: int
    reprieves: int
    promotes: int
    holds: int
    left_out: int
    """Number of cycles before this one that the rate limit left out, in which only pending reasons changed."""
    same: bool | None
    """None if the cycle cannot be replayed, because the log lacks its snapshot."""
    differs: str = ""
    """Kinds of different decisions, with the first gang of each."""


COLUMNS: tuple[Column[ReplayedCycle], ...] = (
    Column("time", lambda cycle: cycle.time),
    Column("gangs", lambda cycle: cycle.gangs, "right"),
    Column("admits", lambda cycle: cycle.admits, "right"),
    Column("evicts", lambda cycle: cycle.evicts, "right"),
    Column("reprieves", lambda cycle: cycle.reprieves, "right"),
    Column("promotes", lambda cycle: cycle.promotes, "right"),
    Column("holds", lambda cycle: cycle.holds, "right"),
    Column("left out", lambda cycle: cycle.left_out or "", "right"),
    Column("same", lambda cycle: "-" if cycle.same is None else cycle.same),
    Column("differs in", lambda cycle: cycle.differs),
)


@click.command(short_help="Replay logged scheduling cycles.", epilog=EPILOG)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@output_option
@data_dir_option
def replay(*, file: Path | None, output: str, data_dir: Path) -> None:
    """Replay every scheduling cycle of FILE, a decision log (default: that of the platform's gateway).

    Exit code 1 if a cycle has different decisions or is unreadable: another version of this program wrote it, or there
    is a bug. Cycles without a snapshot, and changes after an unreadable line, cannot be replayed and are shown as such.
    """
    from vkgateway.runtime.jsonlines import is_last_line_complete
    from vkgateway.scheduler.service.decisionlog import read_entries

    source = file or decision_log_path(data_dir)
    if not source.exists():
        raise UnavailableError(
            f"decision log {source} does not exist", hint="Give the path of an existing decision log."
        )
    found = [replay_entry(entry) for entry in read_entries(source)]
    if not is_last_line_complete(source):
        click.echo(f"Ignored the incomplete last line of {source}.", err=True)
    print_objects(
        found,
        output=output,
        columns=COLUMNS,
        name=lambda cycle: cycle.time,
        empty=f"{source} contains no decisions yet.",
    )
    different = sum(cycle.same is False for cycle in found)
    if different:
        raise VkgatewayError(f"{different} of {len(found)} cycles have different decisions")
    if output == "table" and found:
        skipped = sum(cycle.same is None for cycle in found)
        suffix = f" {skipped} more cannot be replayed: the log has no snapshot for them." if skipped else ""
        click.echo(f"All {len(found) - skipped} cycles have the same decisions.{suffix}", err=True)


def decision_log_path(data_dir: Path) -> Path:
    """Return the path of the platform's decision log. Raises UnavailableError if it is disabled."""
    log = load_gateway_settings(data_dir).arbiter.decision_log
    if log in ("", "-"):
        raise UnavailableError(
            f"the gateway of {data_dir} writes no decision log to a file",
            hint="Set arbiter.decisionLog, or give a FILE.",
        )
    return Path(log)


def replay_entry(entry: LogEntry | UnreadableLine) -> ReplayedCycle:
    """Return the comparison of a cycle's logged and replayed decisions."""
    from vkgateway.scheduler.core.cycle import decide
    from vkgateway.scheduler.service.decisionlog import UnreadableLine

    if isinstance(entry, UnreadableLine):
        message = f"line {entry.line} is unreadable: {entry.why}"
        none = dict.fromkeys(("gangs", "admits", "evicts", "reprieves", "promotes", "holds", "left_out"), 0)
        return ReplayedCycle(time="", **none, same=False, differs=message)
    logged = entry.decisions
    replayed = decide(entry.snapshot, entry.time) if entry.snapshot is not None else None
    if replayed is not None and entry.holds_left_out:
        replayed = replace(replayed, holds=())
    return ReplayedCycle(
        time=datetime.fromtimestamp(entry.time, UTC).isoformat(timespec="milliseconds"),
        gangs=len(entry.snapshot.gangs) if entry.snapshot is not None else 0,
        admits=len(logged.admits),
        evicts=len(logged.evicts),
        reprieves=len(logged.reprieves),
        promotes=len(logged.promotes),
        holds=len(logged.holds),
        left_out=entry.left_out,
        same=logged == replayed if replayed is not None else None,
        differs="; ".join(_decision_differences(logged, replayed))
        if replayed is not None
        else "not replayable: no snapshot",
    )


def _decision_differences(logged: Decisions, replayed: Decisions) -> Iterator[str]:
    for kind in ("admits", "evicts", "reprieves", "promotes", "holds"):
        old, new = getattr(logged, kind), getattr(replayed, kind)
        if old != new:
            gangs = [decision.gang for decision in (*old, *new) if decision not in old or decision not in new]
            yield f"{kind}: {gangs[0] if gangs else 'order'}"
    if dict(logged.plans) != dict(replayed.plans):
        yield "plans"
