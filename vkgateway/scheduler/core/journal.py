"""Undo journal: changes of a state, undone in reverse order."""

from __future__ import annotations

from typing import Any


class Journal:
    """How to undo each change since the last `forget`, in order. Whatever changes the same state shares one journal."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: list[tuple[Any, ...]] = []

    def record(self, *undo: Any) -> None:
        """Record a function and its arguments: this call, which records nothing, undoes the change just made."""
        self._changes.append(undo)

    def mark(self) -> int:
        """Return the present moment, for `undo`."""
        return len(self._changes)

    def undo(self, mark: int = 0) -> None:
        """Undo all changes since a moment, which stays valid; without one, all since the last `forget`.

        Cost: the number of changes.
        """
        while len(self._changes) > mark:
            undo, *args = self._changes.pop()
            undo(*args)

    def forget(self) -> None:
        """Keep all changes so far: earlier moments become invalid."""
        self._changes.clear()

    def trial(self) -> Trial:
        """Return a trial: changes in its `with` block are undone unless the block commits them."""
        return Trial(self)


class Trial:
    """Changes that are undone at the end of a `with` block, unless the block commits them."""

    __slots__ = ("_journal", "_mark", "is_committed")

    def __init__(self, journal: Journal) -> None:
        self._journal, self._mark = journal, journal.mark()
        self.is_committed = False

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_committed:
            self._journal.undo(self._mark)

    def commit(self) -> None:
        """Keep the changes of the block."""
        self.is_committed = True
