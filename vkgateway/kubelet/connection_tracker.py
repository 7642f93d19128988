"""Connections to the endpoint: whose they are, and who has to go where more come than there is room for.

Until a connection's caller is known anybody may open it, so it is the newest that matters: a proper caller is through
in milliseconds, and who only stands there is old. Where there are too many, the oldest goes, of the address that has
most of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kubelet.shared_limit import SharedLimit

MAX_HANDSHAKES: Final = 512
"""Connections that may be in their handshake at the same time."""
MAX_UNAUTHENTICATED: Final = 256
MAX_UNAUTHENTICATED_PER_ADDRESS: Final = 64
"""Connections whose caller has not shown who it is that may be open at the same time, in all and from one address."""


class ClientConnection:
    """One connection. `tenant` is empty until it is known."""

    def __init__(self, wire: ByteStream) -> None:
        self.stream = wire
        self.address = wire.peer_address.rpartition(":")[0]
        self.tenant = ""
        self.task: asyncio.Task[None] | None = None

    def cancel_task(self) -> None:
        """Cut it off."""
        if self.task is not None:
            self.task.cancel()


class _ConnectionLimit:
    """Where those wait whom nobody knows: `most` in all, and `of_one` from an address."""

    def __init__(self, most: int, of_one: int) -> None:
        self._total_limit = most
        self._address_limit = of_one
        self._count = 0
        self._by_address: dict[str, dict[ClientConnection, None]] = {}
        """By address, in the order in which they came."""

    def add_connection(self, guest: ClientConnection) -> None:
        same = self._by_address.setdefault(guest.address, {})
        same[guest] = None
        self._count += 1
        if len(same) > self._address_limit:
            self._close_oldest(same)
        elif self._count > self._total_limit:
            self._close_oldest(max(self._by_address.values(), key=len))

    def remove_connection(self, guest: ClientConnection) -> None:
        same = self._by_address.get(guest.address, {})
        if guest not in same:
            return
        del same[guest]
        self._count -= 1
        if not same:
            del self._by_address[guest.address]

    def _close_oldest(self, crowd: dict[ClientConnection, None]) -> None:
        oldest = next(iter(crowd))
        self.remove_connection(oldest)
        oldest.cancel_task()


class ConnectionTracker:
    """All connections; a tenant may have as many as `shares` says."""

    def __init__(self, shares: SharedLimit) -> None:
        self._limit = shares
        self._handshakes = _ConnectionLimit(MAX_HANDSHAKES, MAX_HANDSHAKES)
        self._unauthenticated = _ConnectionLimit(MAX_UNAUTHENTICATED, MAX_UNAUTHENTICATED_PER_ADDRESS)
        self._connections: set[ClientConnection] = set()

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(list(self._connections))

    def add_connection(self, guest: ClientConnection) -> None:
        """Note a connection whose handshake begins."""
        self._connections.add(guest)
        self._handshakes.add_connection(guest)

    def mark_unauthenticated(self, guest: ClientConnection) -> None:
        """Note that the handshake has told nothing of who it is."""
        self._handshakes.remove_connection(guest)
        self._unauthenticated.add_connection(guest)

    def assign_tenant(self, guest: ClientConnection, tenant: str) -> bool:
        """Note whose it is; false, and nothing is noted, where that tenant has too many already."""
        if guest.tenant == tenant:
            return True
        if not self._limit.try_acquire(tenant):
            return False
        self._handshakes.remove_connection(guest)
        self._unauthenticated.remove_connection(guest)
        if guest.tenant:
            self._limit.release_amount(guest.tenant)
        guest.tenant = tenant
        return True

    def remove_connection(self, guest: ClientConnection) -> None:
        """Forget a connection that is over."""
        self._connections.discard(guest)
        self._handshakes.remove_connection(guest)
        self._unauthenticated.remove_connection(guest)
        if guest.tenant:
            self._limit.release_amount(guest.tenant)
            guest.tenant = ""
