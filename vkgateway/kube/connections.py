"""All connections to one server by one identity: those that requests share, and those of watches."""

from __future__ import annotations

import asyncio

from vkgateway.kube.http1 import Pool
from vkgateway.kube.line import Server
from vkgateway.kube.streams import Streams


class Connections:
    """What requests (at most `limit` at once) and streams go over.

    Streams have connections of their own: they live long, and must not eat up those that requests wait for. But one
    that no request needs just now becomes a stream's: whoever lists and then watches shakes hands once.
    """

    def __init__(self, server: Server, *, limit: int) -> None:
        self.requests = Pool(server, limit=limit)
        self.streams = Streams(server, spare=self.requests.give_away)

    @property
    def in_use(self) -> bool:
        """Whether requests are under way, streams are read, or connections there."""
        return self.requests.in_use or self.streams.in_use

    def retire(self) -> None:
        """Keep no connection any more; what is under way goes on."""
        self.requests.retire()
        self.streams.retire()

    async def close(self) -> None:
        """Close all connections; what is under way fails."""
        self.streams.close()
        await self.requests.close()


async def close_all(several: list[Connections]) -> None:
    """Close them at once."""
    await asyncio.gather(*(connections.close() for connections in several))
