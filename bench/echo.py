"""Bytes that are sent through an API server to a pod and back, and log followers."""

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
from vkgateway.api.errors import UnavailableError
from vkgateway.kube import kubeconfig

_PROTOCOL: Final = "v5.channel.k8s.io"
_STDIN, _STDOUT = b"\0", 1
"""Channels: standard input and output."""
_FORWARDING: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")
_MESSAGE: Final = b"x" * 64
_PATIENCE: Final = 30.0


class ServerAccess:
    """API server with the credentials of one of its users, and one namespace."""

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
    async def open_echo(self, pod: str, what: str, query: dict[str, object]) -> AsyncIterator[Echo]:
        """Open a stream to a command in a pod that sends its input back.

        Raises:
            aiohttp.ClientError: the server does not open the stream.
        """
        url = self._url(pod, what, query)
        async with self._session.ws_connect(url, ssl=self._tls, protocols=(_PROTOCOL,), max_msg_size=0) as socket:
            yield _Socket(socket)

    @contextlib.asynccontextmanager
    async def follow_log(self, pod: str, container: str) -> AsyncIterator[None]:
        """Follow a container's log, from its first line on, until the block ends."""
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
    """Stream on which the other side sends every message back."""

    async def send_and_wait(self) -> None:
        """Send a message, and wait until it is back."""


async def measure_turns(echo: Echo, number: int) -> list[float]:
    """Return the seconds of `number` messages, one after the other, after one message that is not counted."""
    found = []
    for _ in range(number + 1):
        started = now()
        async with asyncio.timeout(_PATIENCE):
            await echo.send_and_wait()
        found.append(now() - started)
    return found[1:]


class _Socket:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send_and_wait(self) -> None:
        await self._socket.send_bytes(_STDIN + _MESSAGE)
        missing = len(_MESSAGE)
        while missing > 0:
            data: bytes = await self._socket.receive_bytes()
            if data[0] == _STDOUT:
                missing -= len(data) - 1


class _Port:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send_and_wait(self) -> None:
        self._writer.write(_MESSAGE)
        await self._reader.readexactly(len(_MESSAGE))


@contextlib.asynccontextmanager
async def forward_port(*argv: str) -> AsyncIterator[Echo]:
    """Run a `kubectl port-forward` command, and yield the port's stream to a program that sends its input back."""
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_PATIENCE):
            found = _FORWARDING.match(await process.stdout.readline())
            if found is None:
                raise UnavailableError(f"{' '.join(argv)} did not forward a port")
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
