"""Events between objects: the source emits a signal, and does not know the objects that subscribed to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Event with arguments. Each subscriber is called at once, in the order of subscription."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, subscriber: Callable[P, object]) -> None:
        """Call `subscriber` at each event from now on."""
        self._subscribers.append(subscriber)

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the subscribers."""
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)
