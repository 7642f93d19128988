"""What the arbiter decided and from what, in a file of JSON lines: enough to decide it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from vkgateway.arbiter.decisions import Decisions, GuaranteeLoss
from vkgateway.arbiter.snapshot import PreemptionPlan, Snapshot
from vkgateway.gateway.jsonlines import JsonLinesWriter, read_lines
from vkgateway.gateway.snapshot_changes import SnapshotChanges, apply_changes, diff_snapshots

MAX_FILE_BYTES = 256 * 1024 * 1024
"""A file of so many bytes is put aside."""
BYTES_PER_SECOND = 16e6
BURST_BYTES = 64e6
"""Bytes that may be written a second, and at once after some quiet: beyond it cycles are written without the reasons
for waiting, and those that only told other reasons are left out, and counted."""
_MAX_CHANGES_RATIO = 4
"""All is told anew where the differences since then have come to so many times as much."""


_LoggedReasons = tuple[frozenset[tuple[str, str]], tuple[GuaranteeLoss, ...]]
"""Which gangs wait, and why, and the guarantees that are reduced."""


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cycle: all that `decide` was told, and what it answered; `time` is in seconds since the epoch.

    In a file it is told in differences, but for the first and some others; read back it is whole.
    """

    time: float
    snapshot: Snapshot | None = None
    changes: SnapshotChanges | None = None
    """In place of a snapshot: how it differs from that of the line before."""
    decisions: Decisions
    holds_left_out: bool = False
    """Much was written just before, so that the reasons for waiting were not."""
    left_out: int = 0
    """So many cycles before it, in which nothing was decided and others wait or for other reasons, were not written."""


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line that holds no cycle."""

    line: int
    why: str


class DecisionLog:
    """Appends cycles to a file, those alone in which something was decided, or gangs wait for other reasons.

    No decision is left out, and all that it was made from is there: the whole of it at a file's beginning, then what
    has changed.
    """

    def __init__(
        self,
        path: Path,
        *,
        most: int = MAX_FILE_BYTES,
        burst: float = BURST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines = JsonLinesWriter(path, most=most)
        self._burst = burst
        self._clock = clock
        self._budget, self._budget_time = burst, clock()
        """How many bytes may be written at that time."""
        self._skipped_cycles = 0
        self._logged_reasons: _LoggedReasons = (frozenset(), ())
        self._plans: Mapping[str, PreemptionPlan] = {}
        self._last_snapshot: Snapshot | None = None
        """What the next line may tell the differences from."""
        self._snapshot_bytes = self._changes_bytes = 0
        """Bytes of the last line that told all, and of those since then."""

    def write_cycle(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> bool:
        """Write a cycle down; False: there was nothing new in it, or only reasons, and much was written just before.

        Without a snapshot only the decisions are written.
        """
        acts = self._has_actions(snapshot, decisions)
        told = frozenset((hold.gang, hold.code.value) for hold in decisions.holds), decisions.losses
        if told == self._logged_reasons and not acts:
            return False
        bare = snapshot is None or not self._has_budget()
        if bare and not acts:
            self._skipped_cycles += 1
            return False
        if bare:
            decisions = replace(decisions, holds=())
        else:
            self._logged_reasons = told
        self._write_entry(
            LogEntry(time=now, decisions=decisions, holds_left_out=bare, left_out=self._skipped_cycles), snapshot
        )
        return True

    def _write_entry(self, entry: LogEntry, snapshot: Snapshot | None) -> None:
        before = (
            None
            if self._lines.is_empty or self._changes_bytes > _MAX_CHANGES_RATIO * self._snapshot_bytes
            else self._last_snapshot
        )
        if snapshot is not None and before is not None:
            entry = msgspec.structs.replace(entry, changes=diff_snapshots(before, snapshot))
        else:
            entry = msgspec.structs.replace(entry, snapshot=snapshot)
        line = encode_entry(entry)
        self._budget -= len(line)
        self._skipped_cycles = 0
        if not self._lines.append(line):
            self._last_snapshot = None
        elif snapshot is not None:
            self._last_snapshot = snapshot
            self._snapshot_bytes, self._changes_bytes = (
                (len(line), 0) if before is None else (self._snapshot_bytes, self._changes_bytes + len(line))
            )

    def _has_budget(self) -> bool:
        at = self._clock()
        self._budget, self._budget_time = (
            min(self._burst, self._budget + (at - self._budget_time) * BYTES_PER_SECOND),
            at,
        )
        return self._budget > 0

    def _has_actions(self, snapshot: Snapshot | None, decisions: Decisions) -> bool:
        before, self._plans = self._plans, decisions.plans
        if snapshot is not None:
            before = {gang.id: gang.plan for gang in snapshot.gangs if gang.plan is not None}
        made = decisions.admits or decisions.evicts or decisions.reprieves or decisions.promotes
        return bool(made) or dict(decisions.plans) != dict(before)


def encode_entry(entry: LogEntry) -> bytes:
    """A cycle as one line of JSON, without its end. Numbers that are not finite cannot be told.

    Gangs and holds, of which there may be a hundred thousand, are encoded one by one: other threads would wait for
    their turn until a whole cycle is encoded.
    """
    parts: dict[str, Any] = {"time": entry.time}
    if entry.snapshot is not None:
        parts["snapshot"] = _shallow_dict(entry.snapshot) | {"gangs": _encode_each(entry.snapshot.gangs)}
    if entry.changes is not None:
        parts["changes"] = msgspec.structs.asdict(entry.changes) | {"gangs": _encode_each(entry.changes.gangs)}
    parts["decisions"] = _shallow_dict(entry.decisions) | {"holds": _encode_each(entry.decisions.holds)}
    if entry.holds_left_out:
        parts["holds_left_out"] = True
    if entry.left_out:
        parts["left_out"] = entry.left_out
    return msgspec.json.encode(parts)


def _shallow_dict(of: Snapshot | Decisions) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)}


def _encode_each(items: Iterable[object]) -> msgspec.Raw:
    one = msgspec.json.Encoder().encode
    return msgspec.Raw(b"[" + b",".join([one(item) for item in items]) + b"]")


def read_entries(path: Path) -> Iterator[LogEntry | UnreadableLine]:
    """The cycles of one file, in their order, and the lines that hold none.

    What follows on such a line in differences cannot be made whole, and is read without its snapshot.

    Raises:
        OSError: the file cannot be read.
    """
    decode = msgspec.json.Decoder(LogEntry).decode
    last: Snapshot | None = None
    for number, line in enumerate(read_lines(path), start=1):
        try:
            entry = decode(line)
        except msgspec.DecodeError as error:
            last = None
            yield UnreadableLine(number, str(error))
            continue
        if entry.changes is not None:
            snapshot = apply_changes(last, entry.changes) if last is not None else None
            entry = msgspec.structs.replace(entry, snapshot=snapshot, changes=None)
            last = snapshot
        elif entry.snapshot is not None:
            last = entry.snapshot
        yield entry
