"""When a waiting pod is told why it waits, and what: seldom, and all pods of a gang the same at the same time (pure).

A gang is told in rounds. Whoever looks first once one is due opens it and says what is so now; the others tell just
that. Who comes to a gang that was told a moment ago waits for the next round: what he would read by then is not what
the others show, and would keep him from telling the same as they for half a minute more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vkgateway.sync.admission.verdicts import Waits

_PATIENCE: Final = 1.0
"""Seconds that a pod waits before it is told why: most start sooner; of a gang that still grows, since its newest."""
_GROWS: Final = 10.0
"""Seconds after which one that still grows is told all the same."""
_QUIET: Final = 30.0
"""Seconds between two writes about one waiting pod at least."""
_ROUND: Final = 5.0
"""Seconds for which a round is open."""


@dataclass(slots=True)
class _Line:
    """What the pods of one gang were told last."""

    first: float
    """When the first of them was looked at (seconds since the epoch)."""
    newest: float
    pods: set[str] = field(default_factory=set)
    round: int = 0
    opened: float = 0.0
    last: float = 0.0
    """When the last of them was written to."""
    said: Waits | None = None


@dataclass(slots=True)
class _Told:
    """What one pod was told last; at the beginning nothing."""

    group: str
    since: float
    at: float = 0.0
    round: int = 0
    said: Waits | None = None


class Tell(NamedTuple):
    """What to do about a waiting pod."""

    now: Waits | None = None
    """To be told now; None: nothing."""
    is_new: bool = False
    """Its reason is another than that before."""
    again: float | None = None
    """Seconds after which to look at it again; None: not before there is something new."""


class Telling:
    """What was told to one tenant's waiting pods."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._lines: dict[str, _Line] = {}

    def tell(self, uid: str, group: str, waits: Waits, *, now: float) -> Tell:
        """What a pod of a gang is to be told at this time, if this is why its gang waits; noted as told."""
        told, line = self._known(uid, group, now)
        if line.said is not None and self._takes_part(told, line, waits, now):
            told.round = line.round
            if _words(told.said) != _words(line.said):
                return self._now(told, line, line.said, waits, now)
        if _words(told.said) == _words(waits):
            return Tell()
        due = max(told.since + _PATIENCE, told.at + _QUIET if told.at else 0.0)
        due = max(due, min(line.newest + _PATIENCE, line.first + _GROWS) if line.said is None else line.last + _QUIET)
        if due > now:
            soon = told.since + _PATIENCE - now
            may_join = not told.at and 0 < soon < line.opened + _ROUND - now
            return Tell(again=soon if may_join else due - now)
        line.round, line.opened, line.said = line.round + 1, now, waits
        return self._now(told, line, waits, waits, now)

    def failed(self, uid: str) -> None:
        """What was to be told could not be written."""
        told = self._told.get(uid)
        if told is not None:
            told.said, told.at, told.round = None, 0.0, 0

    def is_told(self, uid: str) -> bool:
        """Whether a pod was told anything."""
        told = self._told.get(uid)
        return told is not None and told.said is not None

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a pod that waits no more."""
        told = self._told.pop(uid, None)
        line = self._lines.get(told.group) if told is not None else None
        if told is not None and line is not None:
            line.pods.discard(uid)
            if not line.pods:
                del self._lines[told.group]

    def _known(self, uid: str, group: str, now: float) -> tuple[_Told, _Line]:
        told = self._told.get(uid)
        if told is not None and told.group != group:
            self.forget(uid)
            told = _Told(group, told.since, told.at, 0, told.said)
        self._told[uid] = told = told or _Told(group, now)
        line = self._lines.setdefault(group, _Line(now, now))
        if uid not in line.pods:
            line.pods.add(uid)
            line.newest, line.last = now, max(line.last, told.at)
        return told, line

    @staticmethod
    def _takes_part(told: _Told, line: _Line, waits: Waits, now: float) -> bool:
        """Whether a pod is to be told what the round that is open says; one that came after it only if that is so."""
        if told.round == line.round or now >= line.opened + _ROUND:
            return False
        if told.at:
            return told.at + _QUIET <= now
        settled = told.since + _PATIENCE <= now
        return told.since <= line.opened or (settled and _words(line.said) == _words(waits))

    def _now(self, told: _Told, line: _Line, said: Waits, waits: Waits, now: float) -> Tell:
        is_new = told.said is None or told.said.code != said.code
        told.at, told.round, told.said, line.last = now, line.round, said, now
        return Tell(said, is_new, None if _words(said) == _words(waits) else _QUIET)


def _words(waits: Waits | None) -> tuple[str, str] | None:
    return None if waits is None else (waits.code, waits.text)
