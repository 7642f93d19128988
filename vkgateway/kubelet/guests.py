"""Connections to the endpoint: whose they are, and who has to go where more come than there is room for.

Until a connection's caller is known anybody may open it, so it is the newest that matters: a proper caller is through
in milliseconds, and who only stands there is old. Where there are too many, the oldest goes, of the address that has
most of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from vkgateway.kube.wire import Wire
from vkgateway.kubelet.shares import Shares

GREETING_AT_ONCE: Final = 512
"""Connections that may be in their handshake at the same time."""
NAMELESS_AT_ONCE: Final = 256
NAMELESS_OF_ONE: Final = 64
"""Connections whose caller has not shown who it is that may be open at the same time, in all and from one address."""


class Guest:
    """One connection. `tenant` is empty until it is known."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.address = wire.peer.rpartition(":")[0]
        self.tenant = ""
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Cut it off."""
        if self.task is not None:
            self.task.cancel()


class _Hall:
    """Where those wait whom nobody knows: `most` in all, and `of_one` from an address."""

    def __init__(self, most: int, of_one: int) -> None:
        self._most = most
        self._of_one = of_one
        self._count = 0
        self._waiting: dict[str, dict[Guest, None]] = {}
        """By address, in the order in which they came."""

    def enter(self, guest: Guest) -> None:
        same = self._waiting.setdefault(guest.address, {})
        same[guest] = None
        self._count += 1
        if len(same) > self._of_one:
            self._send_away(same)
        elif self._count > self._most:
            self._send_away(max(self._waiting.values(), key=len))

    def leave(self, guest: Guest) -> None:
        same = self._waiting.get(guest.address, {})
        if guest not in same:
            return
        del same[guest]
        self._count -= 1
        if not same:
            del self._waiting[guest.address]

    def _send_away(self, crowd: dict[Guest, None]) -> None:
        oldest = next(iter(crowd))
        self.leave(oldest)
        oldest.end()


class Guests:
    """All connections; a tenant may have as many as `shares` says."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._greeting = _Hall(GREETING_AT_ONCE, GREETING_AT_ONCE)
        self._nameless = _Hall(NAMELESS_AT_ONCE, NAMELESS_OF_ONE)
        self._all: set[Guest] = set()

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._all))

    def enter(self, guest: Guest) -> None:
        """Note a connection whose handshake begins."""
        self._all.add(guest)
        self._greeting.enter(guest)

    def nameless(self, guest: Guest) -> None:
        """Note that the handshake has told nothing of who it is."""
        self._greeting.leave(guest)
        self._nameless.enter(guest)

    def known(self, guest: Guest, tenant: str) -> bool:
        """Note whose it is; false, and nothing is noted, where that tenant has too many already."""
        if guest.tenant == tenant:
            return True
        if not self._shares.take(tenant):
            return False
        self._greeting.leave(guest)
        self._nameless.leave(guest)
        if guest.tenant:
            self._shares.give(guest.tenant)
        guest.tenant = tenant
        return True

    def leave(self, guest: Guest) -> None:
        """Forget a connection that is over."""
        self._all.discard(guest)
        self._greeting.leave(guest)
        self._nameless.leave(guest)
        if guest.tenant:
            self._shares.give(guest.tenant)
            guest.tenant = ""
