"""All connections to one server by one identity: those that requests share, and those of watches."""

from __future__ import annotations

import asyncio

from vkgateway.kube.endpoint import Endpoint
from vkgateway.kube.http1 import ConnectionPool
from vkgateway.kube.response_streams import StreamPool


class Connections:
    """What requests (at most `limit` at once) and streams go over.

    Streams have connections of their own: they live long, and must not eat up those that requests wait for. But one
    that no request needs just now becomes a stream's: whoever lists and then watches shakes hands once.
    """

    def __init__(self, server: Endpoint, *, limit: int) -> None:
        self.request_pool = ConnectionPool(server, limit=limit)
        self.stream_pool = StreamPool(server, spare=self.request_pool.release_idle)

    @property
    def is_in_use(self) -> bool:
        """Whether requests are under way, streams are read, or connections there."""
        return self.request_pool.is_in_use or self.stream_pool.is_in_use

    def start_draining(self) -> None:
        """Keep no connection any more; what is under way goes on."""
        self.request_pool.start_draining()
        self.stream_pool.start_draining()

    async def close(self) -> None:
        """Close all connections; what is under way fails."""
        self.stream_pool.close()
        await self.request_pool.close()


async def close_all(several: list[Connections]) -> None:
    """Close them at once."""
    await asyncio.gather(*(connections.close() for connections in several))
