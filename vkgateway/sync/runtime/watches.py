"""Sources of changes, and the handlers that watch them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")


class Source(Generic[*Ts]):
    """A source of changes. Its type parameters are the arguments of its handlers."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Source({self.name!r})"


class Watches:
    """Handlers by source, which run in the order of registration.

    A handler must neither wait nor raise: it only requests reconciles.
    """

    def __init__(self) -> None:
        self._handlers: dict[Source[*tuple[Any, ...]], list[Callable[..., None]]] = {}

    def add(self, source: Source[*Ts], handler: Callable[[Unpack[Ts]], None]) -> None:
        """Call a handler for each change of a source from now on."""
        self._handlers.setdefault(source, []).append(handler)

    def remove(self, source: Source[*Ts], handler: Callable[[Unpack[Ts]], None]) -> None:
        """Stop calling a handler."""
        self._handlers[source].remove(handler)

    def has_handlers(self, source: Source[*Ts]) -> bool:
        """Return whether any handler watches a source."""
        return bool(self._handlers.get(source))

    def notify(self, source: Source[*Ts], *change: *Ts) -> None:
        """Call the handlers of a source."""
        for handler in tuple(self._handlers.get(source, ())):
            handler(*change)
