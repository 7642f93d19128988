"""A remote command's connection: the upgrade, the channels, and the status at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from vkgateway.kube.upgrade import Headers
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway_platform.embedded.hollow.kubelet.framing import Channel, Event, Framing
from vkgateway_platform.embedded.hollow.kubelet.spdy import Spdy
from vkgateway_platform.embedded.hollow.kubelet.websocket import WebSocket, accept_key

_SPDY: Final = "spdy/3.1"
_SPDY_VERSION: Final = "x-stream-protocol-version"
_SPDY_PROTOCOLS: Final = ("v4.channel.k8s.io",)
_WEBSOCKET_VERSION: Final = "sec-websocket-protocol"
_WEBSOCKET_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_OPEN_SECONDS: Final = 30.0
"""Seconds in which the client must open its channels, like a kubelet's streamCreationTimeout."""
_TRUE: Final = frozenset(("1", "true"))


class RemoteStream:
    """One upgraded connection. `read` and `write` raise OSError when it has ended."""

    def __init__(self, session: Session, framing: Framing) -> None:
        self._wire = session.stream
        self._framing = framing
        self._events: list[Event] = []

    async def wait_for_channels(self, channels: Iterable[Channel]) -> None:
        """Wait for the client to open these channels. Raises TimeoutError or BrokenProtocolError."""
        wanted = set(channels)
        async with asyncio.timeout(_OPEN_SECONDS):
            while not wanted <= self._framing.open_channels:
                await self._receive_events()

    async def read(self) -> Event:
        """Return the next event. Raises BrokenProtocolError."""
        while not self._events:
            await self._receive_events()
        return self._events.pop(0)

    async def write(self, channel: Channel, data: bytes) -> None:
        """Send bytes, and wait until the client has read most of them."""
        self._wire.write(self._framing.encode_frame(channel, data))
        await self._wire.drain()
        if self._wire.is_lost:
            raise ConnectionResetError("the client has left")

    async def finish(self, status: bytes) -> None:
        """Send the final status, and close the channels."""
        self._wire.write(self._framing.encode_frame("error", status) + self._framing.closing_frames())
        await self._wire.drain()

    async def _receive_events(self) -> None:
        data = await self._wire.read()
        if not data:
            raise ConnectionResetError("the client has left")
        self._events += self._framing.receive_data(data)
        self._wire.write(self._framing.take_replies())


def upgrade_connection(request: Request, session: Session) -> RemoteStream | Reply:
    """Upgrade to the protocol that the client requests; a Reply is a refusal."""
    if request.upgrade_protocol == _SPDY:
        protocol = _choose_protocol(request, _SPDY_VERSION, _SPDY_PROTOCOLS)
        headers: Headers = (("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", protocol))
        framing: Framing = Spdy()
    elif request.upgrade_protocol == "websocket":
        protocol = _choose_protocol(request, _WEBSOCKET_VERSION, _WEBSOCKET_PROTOCOLS)
        key = accept_key(request.header("sec-websocket-key"))
        headers = (("Upgrade", "websocket"), ("Sec-WebSocket-Accept", key), ("Sec-WebSocket-Protocol", protocol))
        framing = WebSocket()
    else:
        return Reply.from_text(400, "exec and attach need an upgrade of the connection to SPDY/3.1 or WebSocket")
    if not protocol:
        known = ", ".join(dict.fromkeys((*_WEBSOCKET_PROTOCOLS, *_SPDY_PROTOCOLS)))
        return Reply.from_text(403, f"none of the protocols asked for is known here; known: {known}")
    session.switch_protocols(headers)
    return RemoteStream(session, framing)


def is_requested(request: Request, name: str) -> bool:
    """Return whether the query requests a stream: `input`, `output`, `error` or `tty`."""
    return any(key == name and value in _TRUE for key, value in request.query)


def exit_status(code: int) -> bytes:
    """Return the status with a command's exit code (version 4 of the protocol)."""
    if code == 0:
        return msgspec.json.encode({"metadata": {}, "status": "Success"})
    return msgspec.json.encode(
        {
            "metadata": {},
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    )


def failure_status(message: str) -> bytes:
    """Return the status with the reason why a command did not run to its end."""
    return msgspec.json.encode({"metadata": {}, "status": "Failure", "reason": "InternalError", "message": message})


def _choose_protocol(request: Request, header: str, known: Iterable[str]) -> str:
    offered = {word.strip() for key, value in request.headers if key == header for word in value.split(",")}
    return next((name for name in known if name in offered), "")
