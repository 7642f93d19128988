"""Changes that are undone unless they are committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Undoable(Protocol):
    """A state that can go back to an earlier moment. Later marks are void after that."""

    def mark(self) -> Any:
        """Return the present moment."""

    def undo(self, mark: Any, /) -> None:
        """Undo all changes since that moment."""


class JointState:
    """Several states as one."""

    __slots__ = ("_states",)

    def __init__(self, *states: Undoable) -> None:
        self._states = states

    def mark(self) -> Sequence[Any]:
        """Return the present moment of all states."""
        return [state.mark() for state in self._states]

    def undo(self, marks: Sequence[Any]) -> None:
        """Undo all changes since that moment."""
        for state, mark in zip(self._states, marks, strict=True):
            state.undo(mark)


class Trial:
    """Changes to a state that are undone at the end of a `with` block, unless the block commits them."""

    __slots__ = ("_mark", "_state", "is_committed")

    def __init__(self, state: Undoable) -> None:
        self._state = state
        self._mark = state.mark()
        self.is_committed = False

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_committed:
            self._state.undo(self._mark)

    def commit(self) -> None:
        """Keep the changes of the block."""
        self.is_committed = True

    def restart(self) -> None:
        """Undo the changes so far. The block continues."""
        self._state.undo(self._mark)
