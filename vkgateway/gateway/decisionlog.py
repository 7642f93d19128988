"""What the arbiter decided and from what, in a file of JSON lines: enough to decide it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import Snapshot
from vkgateway.gateway.jsonlines import JsonLines, read_lines

MOST_BYTES = 256 * 1024 * 1024
"""A file of so many bytes is put aside."""
RATE = 16e6
BURST = 64e6
"""Bytes that may be written a second, and at once after some quiet: beyond it cycles are left out, and counted."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cycle: all that `decide` was told, and what it answered; `time` is in seconds since the epoch."""

    time: float
    snapshot: Snapshot
    decisions: Decisions
    left_out: int = 0
    """So many cycles before it were not written, since they came too quickly."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that holds no cycle."""

    line: int
    why: str


class DecisionLog:
    """Appends cycles to a file, those alone in which something was decided, or gangs wait for other reasons."""

    def __init__(
        self, path: Path, *, most: int = MOST_BYTES, burst: float = BURST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = JsonLines(path, most=most)
        self._burst = burst
        self._clock = clock
        self._left, self._at = burst, clock()
        """How many bytes may be written at that time."""
        self._left_out = 0
        self._holds: frozenset[tuple[str, str]] = frozenset()

    def write(self, snapshot: Snapshot, decisions: Decisions, now: float) -> bool:
        """Write a cycle down; False: there was nothing new in it, or much was written just before."""
        holds = frozenset((hold.gang, hold.code.value) for hold in decisions.holds)
        if holds == self._holds and not _acts(snapshot, decisions):
            return False
        at = self._clock()
        self._left, self._at = min(self._burst, self._left + (at - self._at) * RATE), at
        if self._left <= 0:
            self._left_out += 1
            return False
        line = encode(Entry(time=now, snapshot=snapshot, decisions=decisions, left_out=self._left_out))
        self._left -= len(line)
        self._holds, self._left_out = holds, 0
        self._lines.append(line)
        return True


def encode(entry: Entry) -> bytes:
    """A cycle as one line of JSON, without its end. Numbers that are not finite cannot be told."""
    return msgspec.json.encode(entry)


def read(path: Path) -> Iterator[Entry | Unreadable]:
    """The cycles of one file, in their order, and the lines that hold none.

    Raises:
        OSError: the file cannot be read.
    """
    decode = msgspec.json.Decoder(Entry).decode
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield decode(line)
        except msgspec.DecodeError as error:
            yield Unreadable(number, str(error))


def _acts(snapshot: Snapshot, decisions: Decisions) -> bool:
    if decisions.admits or decisions.evicts or decisions.reprieves or decisions.promotes:
        return True
    return dict(decisions.plans) != {gang.id: gang.plan for gang in snapshot.gangs if gang.plan is not None}
