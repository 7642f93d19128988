"""Fake of the log and exec subresources of a compute API server, with recorded requests and scripted responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from vkgateway.kube.endpoint import HostDialer

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


@dataclass(frozen=True)
class Asked:
    """The head of a request."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]


Script = Callable[[Asked, Reader, Writer], Awaitable[None]]


def answer(status: int, body: bytes, content_type: str = "application/json") -> Script:
    """Return a script that sends a response and closes the connection."""

    async def script(_: Asked, __: Reader, writer: Writer) -> None:
        head = f"HTTP/1.1 {status} Said\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return script


class FakeCompute:
    """Server on the loopback interface without TLS. Implements `upgrade.Dialable`."""

    name = "compute"
    ssl = None
    server_hostname = None

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.server = ""
        self.dialer = HostDialer()
        self.ended = asyncio.Event()
        """Set when a script has ended and its connection is closed."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def authorization_headers(self) -> dict[str, str]:
        return {"Authorization": "Bearer of-the-gateway"}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.server = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        if task := asyncio.current_task():
            self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            url = urlsplit(target)
            headers = {line.split(": ")[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
            asked = Asked(method, url.path, parse_qsl(url.query, keep_blank_values=True), headers)
            self.asked.append(asked)
            await self.script(asked, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.ended.set()
