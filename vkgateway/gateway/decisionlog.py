"""What the arbiter decided and from what, in a file of JSON lines: enough to decide it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import Snapshot
from vkgateway.gateway.jsonlines import JsonLines, read_lines

MOST_BYTES = 256 * 1024 * 1024
"""A file of so many bytes is put aside."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle: all that `decide` was told, and what it answered; `time` is in seconds since the epoch."""

    time: float
    snapshot: Snapshot
    decisions: Decisions


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that holds no cycle."""

    line: int
    why: str


class DecisionLog:
    """Appends cycles to a file, those alone in which something was decided, or gangs wait for other reasons."""

    def __init__(self, path: Path, *, most: int = MOST_BYTES) -> None:
        self._lines = JsonLines(path, most=most)
        self._holds: frozenset[tuple[str, str]] = frozenset()

    def write(self, snapshot: Snapshot, decisions: Decisions, now: float) -> bool:
        """Write a cycle down; False: there was nothing new in it."""
        holds = frozenset((hold.gang, hold.code.value) for hold in decisions.holds)
        if holds == self._holds and not _acts(snapshot, decisions):
            return False
        self._holds = holds
        self._lines.append(encode(snapshot, decisions, now))
        return True


def encode(snapshot: Snapshot, decisions: Decisions, now: float) -> bytes:
    """A cycle as one line of JSON, without its end. Numbers that are not finite cannot be told."""
    return msgspec.json.encode(Entry(time=now, snapshot=snapshot, decisions=decisions))


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
