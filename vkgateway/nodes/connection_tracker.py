"""Connections that servers accept, their tenants, and the limits of connections.

Any client may open a connection, and is unauthenticated at first. A legitimate client sends its request within
milliseconds, so old connections that wait for one are suspicious. Above the limit, a server closes the oldest
connection of the address with the most connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.nodes.limits import SharedLimit

MAX_HANDSHAKES: Final = 512
"""Limit of concurrent TLS handshakes."""
MAX_UNAUTHENTICATED: Final = 256
MAX_UNAUTHENTICATED_PER_ADDRESS: Final = 64
"""Limits of unauthenticated connections, in total and per address."""


class ClientConnection:
    """One connection. `tenant` is empty before the authentication."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.address = stream.peer_address.rpartition(":")[0]
        self.tenant = ""
        self.task: asyncio.Task[None] | None = None

    def cancel_task(self) -> None:
        """Cancel the task that serves the connection."""
        if self.task is not None:
            self.task.cancel()


class ConnectionLimit:
    """Connections without an authenticated request, with limits in total and per address."""

    def __init__(self, total: int, per_address: int) -> None:
        self._total_limit = total
        self._address_limit = per_address
        self._count = 0
        self._by_address: dict[str, dict[ClientConnection, None]] = {}
        """Connections by address, oldest first."""

    def __len__(self) -> int:
        return self._count

    def add_connection(self, connection: ClientConnection) -> None:
        """Add a connection, and close an older one above a limit."""
        same_address = self._by_address.setdefault(connection.address, {})
        same_address[connection] = None
        self._count += 1
        if len(same_address) > self._address_limit:
            self._close_oldest(same_address)
        elif self._count > self._total_limit:
            self.close_oldest()

    def close_oldest(self) -> None:
        """Close the oldest connection of the address with the most connections. There must be one."""
        self._close_oldest(max(self._by_address.values(), key=len))

    def remove_connection(self, connection: ClientConnection) -> None:
        """Remove a connection, if it was added."""
        same_address = self._by_address.get(connection.address, {})
        if connection not in same_address:
            return
        del same_address[connection]
        self._count -= 1
        if not same_address:
            del self._by_address[connection.address]

    def _close_oldest(self, connections: dict[ClientConnection, None]) -> None:
        oldest = next(iter(connections))
        self.remove_connection(oldest)
        oldest.cancel_task()


class ConnectionTracker:
    """All connections. `limit` bounds the connections of tenants."""

    def __init__(self, limit: SharedLimit) -> None:
        self._limit = limit
        self._handshakes = ConnectionLimit(MAX_HANDSHAKES, MAX_HANDSHAKES)
        self._unauthenticated = ConnectionLimit(MAX_UNAUTHENTICATED, MAX_UNAUTHENTICATED_PER_ADDRESS)
        self._connections: set[ClientConnection] = set()

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(list(self._connections))

    def add_connection(self, connection: ClientConnection) -> None:
        """Add a connection whose handshake starts."""
        self._connections.add(connection)
        self._handshakes.add_connection(connection)

    def mark_unauthenticated(self, connection: ClientConnection) -> None:
        """Note that the handshake did not authenticate the client."""
        self._handshakes.remove_connection(connection)
        self._unauthenticated.add_connection(connection)

    def assign_tenant(self, connection: ClientConnection, tenant: str) -> bool:
        """Assign a connection to a tenant. Return False, without a change, if the tenant has too many connections."""
        if connection.tenant == tenant:
            return True
        if not self._limit.try_acquire(tenant):
            return False
        self._handshakes.remove_connection(connection)
        self._unauthenticated.remove_connection(connection)
        if connection.tenant:
            self._limit.release_amount(connection.tenant)
        connection.tenant = tenant
        return True

    def remove_connection(self, connection: ClientConnection) -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)
        self._handshakes.remove_connection(connection)
        self._unauthenticated.remove_connection(connection)
        if connection.tenant:
            self._limit.release_amount(connection.tenant)
            connection.tenant = ""
