"""Changes that are undone unless they are committed."""

from __future__ import annotations

from typing import Any, Protocol


class Undoable(Protocol):
    """A state that can go back to an earlier moment. Later marks are void after that."""

    def mark(self) -> Any:
        """Return the present moment."""

    def undo(self, mark: Any, /) -> None:
        """Undo all changes since that moment."""


class Trial:
    """Changes to states that are undone at the end of a `with` block, unless the block commits them."""

    __slots__ = ("_marks", "is_committed")

    def __init__(self, *states: Undoable) -> None:
        self._marks = [(state, state.mark()) for state in states]
        self.is_committed = False

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_committed:
            self.restart()

    def commit(self) -> None:
        """Keep the changes of the block."""
        self.is_committed = True

    def restart(self) -> None:
        """Undo the changes so far. The block continues."""
        for state, mark in self._marks:
            state.undo(mark)
