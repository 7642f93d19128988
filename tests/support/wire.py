"""TCP proxy that records the writes that pass it, and can drop everything, like a network without packets."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final, Self

_WRITE: Final = re.compile(rb"(POST|PUT|PATCH|DELETE) (\S+) HTTP/1\.1\r\n")
_CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Write:
    """A request that may change objects, when it passed the proxy (monotonic seconds)."""

    time: float
    method: str
    path: str


class Wire:
    """Proxy to a port of this machine, for plain HTTP."""

    def __init__(self, port: int) -> None:
        self.writes: list[Write] = []
        self.port = 0
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def drop(self) -> None:
        """Pass no byte anymore in either direction. Connections stay open, and new ones get no answer."""
        self._open.clear()

    def restore(self) -> None:
        """Pass bytes again, also those that arrived meanwhile."""
        self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far, record=True))
                group.create_task(self._pump(far_reader, writer, record=False))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, record: bool) -> None:
        while data := await reader.read(_CHUNK):
            await self._open.wait()
            if record:
                now = time.monotonic()
                self.writes += [Write(now, found[1].decode(), found[2].decode()) for found in _WRITE.finditer(data)]
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
