"""What the arbiter decided and from what, in a file of JSON lines: enough to decide it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from vkgateway.arbiter.decisions import Decisions, Loss
from vkgateway.arbiter.facts import Plan, Snapshot
from vkgateway.gateway.differences import Changes, applied, changes
from vkgateway.gateway.jsonlines import JsonLines, read_lines

MOST_BYTES = 256 * 1024 * 1024
"""A file of so many bytes is put aside."""
RATE = 16e6
BURST = 64e6
"""Bytes that may be written a second, and at once after some quiet: beyond it cycles are written without the reasons
for waiting, and those that only told other reasons are left out, and counted."""
_TIMES = 4
"""All is told anew where the differences since then have come to so many times as much."""


_Told = tuple[frozenset[tuple[str, str]], tuple[Loss, ...]]
"""Which gangs wait, and why, and the guarantees that are reduced."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cycle: all that `decide` was told, and what it answered; `time` is in seconds since the epoch.

    In a file it is told in differences, but for the first and some others; read back it is whole.
    """

    time: float
    snapshot: Snapshot | None = None
    changes: Changes | None = None
    """In place of a snapshot: how it differs from that of the line before."""
    decisions: Decisions
    holds_left_out: bool = False
    """Much was written just before, so that the reasons for waiting were not."""
    left_out: int = 0
    """So many cycles before it, in which nothing was decided and others wait or for other reasons, were not written."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that holds no cycle."""

    line: int
    why: str


class DecisionLog:
    """Appends cycles to a file, those alone in which something was decided, or gangs wait for other reasons.

    No decision is left out, and all that it was made from is there: the whole of it at a file's beginning, then what
    has changed.
    """

    def __init__(
        self, path: Path, *, most: int = MOST_BYTES, burst: float = BURST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = JsonLines(path, most=most)
        self._burst = burst
        self._clock = clock
        self._left, self._at = burst, clock()
        """How many bytes may be written at that time."""
        self._left_out = 0
        self._told: _Told = (frozenset(), ())
        self._plans: Mapping[str, Plan] = {}
        self._last: Snapshot | None = None
        """What the next line may tell the differences from."""
        self._whole = self._since = 0
        """Bytes of the last line that told all, and of those since then."""

    def write(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> bool:
        """Write a cycle down; False: there was nothing new in it, or only reasons, and much was written just before.

        Without a snapshot only the decisions are written.
        """
        acts = self._acts(snapshot, decisions)
        told = frozenset((hold.gang, hold.code.value) for hold in decisions.holds), decisions.losses
        if told == self._told and not acts:
            return False
        bare = snapshot is None or not self._may_write()
        if bare and not acts:
            self._left_out += 1
            return False
        if bare:
            decisions = replace(decisions, holds=())
        else:
            self._told = told
        self._write(Entry(time=now, decisions=decisions, holds_left_out=bare, left_out=self._left_out), snapshot)
        return True

    def _write(self, entry: Entry, snapshot: Snapshot | None) -> None:
        before = None if self._lines.is_empty or self._since > _TIMES * self._whole else self._last
        if snapshot is not None and before is not None:
            entry = msgspec.structs.replace(entry, changes=changes(before, snapshot))
        else:
            entry = msgspec.structs.replace(entry, snapshot=snapshot)
        line = encode(entry)
        self._left -= len(line)
        self._left_out = 0
        if not self._lines.append(line):
            self._last = None
        elif snapshot is not None:
            self._last = snapshot
            self._whole, self._since = (len(line), 0) if before is None else (self._whole, self._since + len(line))

    def _may_write(self) -> bool:
        at = self._clock()
        self._left, self._at = min(self._burst, self._left + (at - self._at) * RATE), at
        return self._left > 0

    def _acts(self, snapshot: Snapshot | None, decisions: Decisions) -> bool:
        before, self._plans = self._plans, decisions.plans
        if snapshot is not None:
            before = {gang.id: gang.plan for gang in snapshot.gangs if gang.plan is not None}
        made = decisions.admits or decisions.evicts or decisions.reprieves or decisions.promotes
        return bool(made) or dict(decisions.plans) != dict(before)


def encode(entry: Entry) -> bytes:
    """A cycle as one line of JSON, without its end. Numbers that are not finite cannot be told.

    Gangs and holds, of which there may be a hundred thousand, are encoded one by one: other threads would wait for
    their turn until a whole cycle is encoded.
    """
    parts: dict[str, Any] = {"time": entry.time}
    if entry.snapshot is not None:
        parts["snapshot"] = _fields(entry.snapshot) | {"gangs": _one_by_one(entry.snapshot.gangs)}
    if entry.changes is not None:
        parts["changes"] = msgspec.structs.asdict(entry.changes) | {"gangs": _one_by_one(entry.changes.gangs)}
    parts["decisions"] = _fields(entry.decisions) | {"holds": _one_by_one(entry.decisions.holds)}
    if entry.holds_left_out:
        parts["holds_left_out"] = True
    if entry.left_out:
        parts["left_out"] = entry.left_out
    return msgspec.json.encode(parts)


def _fields(of: Snapshot | Decisions) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)}


def _one_by_one(items: Iterable[object]) -> msgspec.Raw:
    one = msgspec.json.Encoder().encode
    return msgspec.Raw(b"[" + b",".join([one(item) for item in items]) + b"]")


def read(path: Path) -> Iterator[Entry | Unreadable]:
    """The cycles of one file, in their order, and the lines that hold none.

    What follows on such a line in differences cannot be made whole, and is read without its snapshot.

    Raises:
        OSError: the file cannot be read.
    """
    decode = msgspec.json.Decoder(Entry).decode
    last: Snapshot | None = None
    for number, line in enumerate(read_lines(path), start=1):
        try:
            entry = decode(line)
        except msgspec.DecodeError as error:
            last = None
            yield Unreadable(number, str(error))
            continue
        if entry.changes is not None:
            snapshot = applied(last, entry.changes) if last is not None else None
            entry = msgspec.structs.replace(entry, snapshot=snapshot, changes=None)
            last = snapshot
        elif entry.snapshot is not None:
            last = entry.snapshot
        yield entry
