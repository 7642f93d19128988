"""A bounded cache whose entries have a lifetime."""

from __future__ import annotations

from typing import Any

from vkgateway.kube.clock import Clock


class TtlCache:
    """Cache with a lifetime per entry. Above `most` entries, the oldest are dropped."""

    def __init__(self, clock: Clock, *, most: int) -> None:
        self._clock = clock
        self._most = most
        self._entries: dict[tuple[str, ...], tuple[float, Any]] = {}

    def get(self, key: tuple[str, ...]) -> Any:
        """Return the value of a key; None: there is none, or its lifetime is over."""
        until, value = self._entries.get(key, (0.0, None))
        return value if until > self._clock.monotonic() else None

    def put(self, key: tuple[str, ...], value: Any, *, seconds: float) -> None:
        """Keep a value for some seconds."""
        self.forget(key)
        while len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = self._clock.monotonic() + seconds, value

    def forget(self, key: tuple[str, ...]) -> None:
        """Drop the value of a key, if there is one."""
        self._entries.pop(key, None)

    def forget_tenant(self, tenant: str) -> None:
        """Drop the values of keys that begin with a tenant."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] != tenant}
