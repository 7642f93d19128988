"""Port forwarding to a pod through its API server, as `kubectl port-forward` does, over WebSocket.

The protocol is v4.channel.k8s.io: the first byte of a message is the channel, 0 for data and 1 for errors. The first
message of each channel contains the port in two bytes. It needs the verbs `get` and `create` on `pods/portforward`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS

if TYPE_CHECKING:  # aiohttp takes long to load
    from aiohttp import ClientWebSocketResponse

_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = b"\x00", b"\x01"
_PORT_BYTES: Final = 2
_PIECE_BYTES: Final = 32 * 1024


class PortForward:
    """Listener on a loopback port; each connection to it becomes one to a port of a pod.

    `problem` is what the API server or the kubelet last reported; empty if nothing.
    """

    def __init__(self, client: Client, pod: str, *, namespace: str, port: int) -> None:
        self._client = client
        self._pod = pod
        self._path = PODS.path(namespace, pod, "portforward")
        self._port = port
        self.problem = ""
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        """Yield the loopback port."""
        server = await asyncio.start_server(self._accept_connection, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward_connection(reader, writer), name="port-forward")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _forward_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import aiohttp

        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(
                    f"{self._client.server}{self._path}",
                    params={"ports": str(self._port)},
                    headers=await self._client.authorization_headers(),
                    protocols=[_PROTOCOL],
                    ssl=self._client.ssl or True,
                    server_hostname=self._client.server_hostname,
                ) as tunnel,
            ):
                await self._pass_bytes(tunnel, reader, writer)
        except aiohttp.WSServerHandshakeError as error:
            self.problem = f"the API server refuses to forward to pod {self._pod}: HTTP status {error.status}"
        except (aiohttp.ClientError, OSError) as error:
            self.problem = f"cannot forward to pod {self._pod}: {error}"
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _pass_bytes(
        self, tunnel: ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass bytes both ways until one side ends."""
        both = [
            asyncio.create_task(_send_bytes(reader, tunnel), name="port-forward-send"),
            asyncio.create_task(self._receive_bytes(tunnel, writer), name="port-forward-receive"),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _receive_bytes(self, tunnel: ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        skipped = {_DATA: _PORT_BYTES, _ERROR: _PORT_BYTES}
        async for message in tunnel:
            if not isinstance(message.data, bytes) or message.data[:1] not in skipped:
                continue
            channel, content = message.data[:1], message.data[1:]
            begin = min(skipped[channel], len(content))
            skipped[channel] -= begin
            content = content[begin:]
            if content and channel == _ERROR:
                self.problem = f"the kubelet of pod {self._pod} reports: {content.decode(errors='replace').strip()}"
                return
            writer.write(content)
            await writer.drain()


async def _send_bytes(reader: asyncio.StreamReader, tunnel: ClientWebSocketResponse) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        await tunnel.send_bytes(_DATA + piece)
