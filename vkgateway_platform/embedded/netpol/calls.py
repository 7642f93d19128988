"""Calls of the CNI plugin, one JSON object a line over a Unix socket that only root may open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from vkgateway.api.errors import VkgatewayError


class Call(msgspec.Struct):
    """Creation (`ADD`) or removal (`DEL`) of a pod's network."""

    command: Literal["ADD", "DEL"]
    uid: str
    addresses: list[str] = []


class Answer(msgspec.Struct):
    """An empty error means success."""

    error: str = ""


class Attachments(Protocol):
    """Receiver of calls; see Enforcer."""

    async def attach(self, uid: str, addresses: Collection[str]) -> None:
        """Apply a new pod's rules. Raises VkgatewayError."""

    def detach(self, uid: str, addresses: Collection[str]) -> None:
        """Forget addresses of a pod."""


@contextlib.asynccontextmanager
async def serve_calls(attachments: Attachments, path: Path) -> AsyncIterator[None]:
    """Answer calls while the block lasts."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await _carry_out(attachments, await reader.readline())
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    await asyncio.to_thread(path.unlink, missing_ok=True)
    server = await asyncio.start_unix_server(answer, path)
    try:
        yield
    finally:
        server.close()


async def _carry_out(attachments: Attachments, line: bytes) -> Answer:
    try:
        call = msgspec.json.decode(line, type=Call)
        if call.command == "ADD":
            await attachments.attach(call.uid, call.addresses)
        else:
            attachments.detach(call.uid, call.addresses)
    except (msgspec.DecodeError, VkgatewayError) as error:
        return Answer(str(error))
    return Answer()
