"""Bytes that go through an API server into a pod and come back; and followers of its log."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol, Self
from urllib.parse import urlencode

import aiohttp

from bench.timeline import now
from vkgateway.kube import kubeconfig
from vkgateway.model.errors import UnavailableError

_PROTOCOL: Final = "v5.channel.k8s.io"
_THERE, _BACK = b"\0", 1
"""Channels: standard input and output."""
_FORWARDING: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")
_MESSAGE: Final = b"x" * 64
_PATIENCE: Final = 30.0


class Door:
    """An API server, as one of its users reaches it, and one namespace there."""

    def __init__(self, path: Path, namespace: str) -> None:
        connection = kubeconfig.load(path).client_config(None)
        self._server, self._tls = connection.server, connection.ssl_context() or False
        self._namespace = namespace
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def _url(self, pod: str, what: str, query: dict[str, object]) -> str:
        return f"{self._server}/api/v1/namespaces/{self._namespace}/pods/{pod}/{what}?{urlencode(query, doseq=True)}"

    @contextlib.asynccontextmanager
    async def echo(self, pod: str, what: str, query: dict[str, object]) -> AsyncIterator[Echo]:
        """A stream to a command in a pod that sends back what it gets. Raises aiohttp.ClientError."""
        url = self._url(pod, what, query)
        async with self._session.ws_connect(url, ssl=self._tls, protocols=(_PROTOCOL,), max_msg_size=0) as socket:
            yield _Socket(socket)

    @contextlib.asynccontextmanager
    async def follow(self, pod: str, container: str) -> AsyncIterator[None]:
        """Follow a container's log for as long as the block lasts, from its first line on."""
        url = self._url(pod, "log", {"follow": "true", "container": container})
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(url, ssl=self._tls, timeout=timeout, raise_for_status=True) as answer:
            await answer.content.readline()
            task = asyncio.create_task(_drain(answer))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class Echo(Protocol):
    """A stream on which everything comes back."""

    async def turn(self) -> None:
        """Send a message, and wait until it is back."""


async def turns(echo: Echo, number: int) -> list[float]:
    """The seconds that each of so many messages took, one after the other, after one for which all is set up."""
    found = []
    for _ in range(number + 1):
        started = now()
        async with asyncio.timeout(_PATIENCE):
            await echo.turn()
        found.append(now() - started)
    return found[1:]


class _Socket:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def turn(self) -> None:
        await self._socket.send_bytes(_THERE + _MESSAGE)
        missing = len(_MESSAGE)
        while missing > 0:
            data: bytes = await self._socket.receive_bytes()
            if data[0] == _BACK:
                missing -= len(data) - 1


class _Port:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def turn(self) -> None:
        self._writer.write(_MESSAGE)
        await self._reader.readexactly(len(_MESSAGE))


@contextlib.asynccontextmanager
async def forwarded(*argv: str) -> AsyncIterator[Echo]:
    """A port that `kubectl port-forward`, called so, forwards to something that sends back what it gets."""
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_PATIENCE):
            found = _FORWARDING.match(await process.stdout.readline())
            if found is None:
                raise UnavailableError(f"{' '.join(argv)} forwards nothing")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
        yield _Port(reader, writer)
        writer.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _drain(answer: aiohttp.ClientResponse) -> None:
    async for _ in answer.content.iter_any():
        pass
