"""All connections to one server with one identity: the pool of requests and the pool of watches."""

from __future__ import annotations

import asyncio

from vkgateway.kube.endpoint import Endpoint
from vkgateway.kube.http1 import ConnectionPool
from vkgateway.kube.response_streams import StreamPool


class Connections:
    """Connection pools for requests (at most `limit` at a time) and streams.

    Streams use separate connections, because long-lived streams would block requests. A new stream takes over an idle
    connection of the requests, so that a list and the following watch need one handshake.
    """

    def __init__(self, server: Endpoint, *, limit: int) -> None:
        self.request_pool = ConnectionPool(server, limit=limit)
        self.stream_pool = StreamPool(server, request_pool=self.request_pool)

    @property
    def is_in_use(self) -> bool:
        """Whether requests, streams or connections exist."""
        return self.request_pool.is_in_use or self.stream_pool.is_in_use

    def start_draining(self) -> None:
        """Stop reusing connections. Current requests and streams continue."""
        self.request_pool.start_draining()
        self.stream_pool.start_draining()

    async def close(self) -> None:
        """Close all connections. Current requests and streams fail."""
        self.stream_pool.close()
        await self.request_pool.close()


async def close_all(all_connections: list[Connections]) -> None:
    """Close connections concurrently."""
    await asyncio.gather(*(connections.close() for connections in all_connections))
