"""Fake API server that forwards ports of pods over WebSocket (v4.channel.k8s.io)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from aiohttp import WSMsgType, web

from tests.fakes.apiserver import FakeApiServer

_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/portforward")


class ForwardingApiServer(FakeApiServer):
    """Forwards `pods` (names by their ports, each with its local port) like the API server and a kubelet."""

    def __init__(self, *, pods: dict[str, dict[int, int]], **given: Any) -> None:
        super().__init__(**given)
        self._pods = pods
        self.forwarded: list[str] = []

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        match = _PATH.fullmatch(request.path)
        if match is None:
            return await super()._handle_request(request)
        namespace, pod = match.groups()
        port = int(request.query["ports"])
        self.forwarded.append(f"{namespace}/{pod}:{port}")
        if pod not in self._pods:
            raise web.HTTPNotFound
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        for channel in (b"\x00", b"\x01"):
            await socket.send_bytes(channel + port.to_bytes(2, "little"))
        if port not in self._pods[pod]:
            await socket.send_bytes(b"\x01" + f"failed to connect to localhost:{port}: connection refused".encode())
            await socket.close()
            return socket
        reader, writer = await asyncio.open_connection("127.0.0.1", self._pods[pod][port])
        back = asyncio.create_task(_send_back(reader, socket))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data[1:])
        finally:
            writer.close()
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
        return socket


async def _send_back(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while piece := await reader.read(1000):
        await socket.send_bytes(b"\x00" + piece)
    await socket.close()
