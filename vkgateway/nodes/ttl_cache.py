"""A cache whose entries have a lifetime, bounded for each owner."""

from __future__ import annotations

from typing import Any

from vkgateway.kube.clock import Clock


class TtlCache:
    """Cache with a lifetime per entry. The first part of a key is its owner, a tenant.

    Above `most` entries of an owner, its oldest are dropped: no owner takes the place of another. Values and keys must
    have bounded sizes.
    """

    def __init__(self, clock: Clock, *, most: int) -> None:
        self._clock = clock
        self._most = most
        self._entries: dict[str, dict[tuple[str, ...], tuple[float, Any]]] = {}

    def __len__(self) -> int:
        """Return the number of entries, with those whose lifetime is over."""
        return sum(map(len, self._entries.values()))

    def get(self, key: tuple[str, ...]) -> Any:
        """Return the value of a key; None: there is none, or its lifetime is over."""
        until, value = self._entries.get(key[0], {}).get(key, (0.0, None))
        return value if until > self._clock.monotonic() else None

    def put(self, key: tuple[str, ...], value: Any, *, seconds: float) -> None:
        """Keep a value for some seconds, and drop those of all owners whose lifetime is over."""
        now = self._clock.monotonic()
        self.forget(key)
        for owner, entries in list(self._entries.items()):
            left = {each: entry for each, entry in entries.items() if entry[0] > now}
            if left:
                self._entries[owner] = left
            else:
                del self._entries[owner]
        own = self._entries.setdefault(key[0], {})
        while len(own) >= self._most:
            del own[next(iter(own))]
        own[key] = now + seconds, value

    def forget(self, key: tuple[str, ...]) -> None:
        """Drop the value of a key, if there is one."""
        self._entries.get(key[0], {}).pop(key, None)

    def forget_tenant(self, tenant: str) -> None:
        """Drop the values of keys that begin with a tenant."""
        self._entries.pop(tenant, None)
