"""`vkgateway replay`: decide again what was decided, from the log, and say whether it comes out the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from vkgateway.cli.gateway_state import load_gateway_settings
from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import Column, output_option, print_objects
from vkgateway.model.errors import UnavailableError, VkgatewayError

if TYPE_CHECKING:
    from vkgateway.arbiter.decisions import Decisions
    from vkgateway.gateway.decisionlog import LogEntry, UnreadableLine

EPILOG = """\b
Examples:
  vkgateway replay
  vkgateway replay decisions.jsonl.1 -o json
"""


class ReplayedCycle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One cycle, decided again."""

    time: str
    gangs: int
    admits: int
    evicts: int
    reprieves: int
    promotes: int
    holds: int
    left_out: int
    """So many cycles before it, that only told other reasons for waiting, were not written: they came too quickly."""
    same: bool | None
    """None: it cannot be decided again, for what it was decided from was not written down."""
    differs: str = ""
    """In what, and which came first."""


COLUMNS: tuple[Column[ReplayedCycle], ...] = (
    Column("time", lambda one: one.time),
    Column("gangs", lambda one: one.gangs, "right"),
    Column("admits", lambda one: one.admits, "right"),
    Column("evicts", lambda one: one.evicts, "right"),
    Column("reprieves", lambda one: one.reprieves, "right"),
    Column("promotes", lambda one: one.promotes, "right"),
    Column("holds", lambda one: one.holds, "right"),
    Column("left out", lambda one: one.left_out or "", "right"),
    Column("same", lambda one: "-" if one.same is None else one.same),
    Column("differs in", lambda one: one.differs),
)


@click.command(epilog=EPILOG)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@output_option
@data_dir_option
def replay(*, file: Path | None, output: str, data_dir: Path) -> None:
    """Decide again every cycle of FILE, a log of decisions; without one, that of the platform's gateway.

    Ends with 1 where a cycle comes out otherwise than it did, or cannot be read: another version of this program
    decided it, or it is a defect. Cycles that were written as differences from one that cannot be read, or without
    what they were decided from, cannot be decided again, and are shown as that; a last line that was cut off is told.
    """
    from vkgateway.gateway.decisionlog import read_entries
    from vkgateway.gateway.jsonlines import is_last_line_complete

    source = file or decision_log_path(data_dir)
    if not source.exists():
        raise UnavailableError(f"log of decisions {source} does not exist")
    found = [replay_entry(entry) for entry in read_entries(source)]
    if not is_last_line_complete(source):
        click.echo(f"The last line of {source} is cut off, and left out.", err=True)
    print_objects(
        found, output=output, columns=COLUMNS, name=lambda one: one.time, empty=f"{source} holds no decisions yet."
    )
    other = sum(one.same is False for one in found)
    if other:
        raise VkgatewayError(f"{other} of {len(found)} cycles came out otherwise")
    if output == "table" and found:
        bare = sum(one.same is None for one in found)
        more = f" {bare} more cannot be decided again: only their decisions were written." if bare else ""
        click.echo(f"All {len(found) - bare} cycles came out the same.{more}", err=True)


def decision_log_path(data_dir: Path) -> Path:
    """Where the platform's gateway writes its decisions. Raises UnavailableError where it does not."""
    log = load_gateway_settings(data_dir).arbiter.decision_log
    if not log:
        raise UnavailableError(
            f"the gateway of {data_dir} keeps no log of decisions", hint="Set arbiter.decisionLog, or name a FILE."
        )
    return Path(log)


def replay_entry(entry: LogEntry | UnreadableLine) -> ReplayedCycle:
    """What comes out of a cycle now, against what came out then."""
    from vkgateway.arbiter.cycle import decide
    from vkgateway.gateway.decisionlog import UnreadableLine

    if isinstance(entry, UnreadableLine):
        why = f"line {entry.line} cannot be read: {entry.why}"
        none = dict.fromkeys(("gangs", "admits", "evicts", "reprieves", "promotes", "holds", "left_out"), 0)
        return ReplayedCycle(time="", **none, same=False, differs=why)
    then = entry.decisions
    now = decide(entry.snapshot, entry.time) if entry.snapshot is not None else None
    if now is not None and entry.holds_left_out:
        now = replace(now, holds=())
    return ReplayedCycle(
        time=datetime.fromtimestamp(entry.time, UTC).isoformat(timespec="milliseconds"),
        gangs=len(entry.snapshot.gangs) if entry.snapshot is not None else 0,
        admits=len(then.admits),
        evicts=len(then.evicts),
        reprieves=len(then.reprieves),
        promotes=len(then.promotes),
        holds=len(then.holds),
        left_out=entry.left_out,
        same=then == now if now is not None else None,
        differs="; ".join(_decision_differences(then, now))
        if now is not None
        else "not replayable: its facts are not known",
    )


def _decision_differences(then: Decisions, now: Decisions) -> Iterator[str]:
    for kind in ("admits", "evicts", "reprieves", "promotes", "holds"):
        old, new = getattr(then, kind), getattr(now, kind)
        if old != new:
            gangs = [one.gang for one in (*old, *new) if one not in old or one not in new]
            yield f"{kind}: {gangs[0] if gangs else 'their order'}"
    if dict(then.plans) != dict(now.plans):
        yield "plans"
