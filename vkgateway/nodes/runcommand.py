"""POST /run/NAMESPACE/POD[/UID]/CONTAINER?cmd=...: run a command in a container, and answer with its output.

The oldest form of exec in kubelets, without streams and terminal. The gateway runs an exec over a WebSocket in the
compute cluster, and reads it to its end.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.errors import Unreachable
from vkgateway.kube.resources import PODS
from vkgateway.kube.upgrade import Headers, RefusedStream, open_upgrade
from vkgateway.nodes import error_replies
from vkgateway.nodes.call import Call, parse_uid_and_container
from vkgateway.nodes.errorchannel import parse_frame_lengths
from vkgateway.nodes.http import Reply
from vkgateway.nodes.limits import CountBytes
from vkgateway.nodes.target import PodTarget

MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""Limit of the output, like in container runtimes."""
_PROTOCOL: Final = "v4.channel.k8s.io"
_STDOUT, _STDERR, _ERROR = 1, 2, 3
"""Channels (first byte of a frame): k8s.io/apimachinery/pkg/util/remotecommand/constants.go."""
_OPCODES_OF_DATA: Final = frozenset((0, 1, 2))
_CLOSE: Final = 8
_JSON: Final = "application/json"
"""Content type of the output in kubelets, regardless of the content."""

_log = structlog.get_logger(__name__)


async def serve_run(call: Call, namespace: str, pod: str, *rest: str) -> Reply:
    """Run a command. Like in kubelets, single spaces separate the words, and quotes have no meaning."""
    uid, container = parse_uid_and_container(rest)
    command = next((value for key, value in call.request.query if key == "cmd"), "")
    if not command.strip():
        return Reply.from_text(400, "you must specify a command: cmd")
    target = await call.require_target(namespace, pod, uid=uid)
    params = [("container", container), ("stdout", "true"), ("stderr", "true")]
    params += [("command", word) for word in command.split(" ")]
    pod_name = f"{namespace}/{pod}"
    try:
        async with asyncio.timeout(call.idle_timeout):
            result = await _run_exec(target, params, count_bytes=call.count_bytes)
    except (OSError, Unreachable, TimeoutError) as error:
        _log.warning("command unavailable", tenant=call.tenant, namespace=namespace, pod=pod, error=str(error))
        return Reply.from_text(500, error_replies.unavailable_message("run", pod=pod_name))
    if isinstance(result, RefusedStream):
        return error_replies.error_reply(result, target=target, namespace=namespace, what="run")
    if len(result[_STDOUT]) + len(result[_STDERR]) > MAX_OUTPUT_BYTES:
        return Reply.from_text(500, f"the command's output exceeds {MAX_OUTPUT_BYTES} bytes; use exec instead")
    if failure := _failure_message(result[_ERROR]):
        message = error_replies.translate_message(failure, target=target, namespace=namespace)
        return Reply.from_text(500, message or error_replies.unavailable_message("run", pod=pod_name))
    return Reply(200, bytes(result[_STDOUT] + result[_STDERR]), _JSON)


async def _run_exec(
    target: PodTarget, params: list[tuple[str, str]], *, count_bytes: CountBytes
) -> dict[int, bytearray] | RefusedStream:
    """Return the bytes of each channel, up to slightly more than MAX_OUTPUT_BYTES. `count_bytes` counts them."""
    path = PODS.path(target.namespace, target.name, "exec")
    response = await open_upgrade(target.client, "GET", path, params=params, headers=_handshake_headers())
    if isinstance(response, RefusedStream):
        return response
    channels = {_STDOUT: bytearray(), _STDERR: bytearray(), _ERROR: bytearray()}
    try:
        async for payload in _read_frames(response.stream):
            if payload and payload[0] in channels:
                count_bytes(len(payload))
                channels[payload[0]] += payload[1:]
            if sum(map(len, channels.values())) > MAX_OUTPUT_BYTES:
                return channels
    finally:
        response.stream.abort()
    if not channels[_ERROR]:
        raise ConnectionResetError("the connection ended before the command did")
    return channels


def _handshake_headers() -> Headers:
    return (
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", base64.b64encode(os.urandom(16)).decode()),
        ("sec-websocket-protocol", _PROTOCOL),
    )


async def _read_frames(stream: ByteStream) -> AsyncIterator[bytes]:
    """Yield the payloads of a server's frames (RFC 6455, section 5.2), up to the close frame or the end."""
    buffer = bytearray()
    while True:
        while (lengths := parse_frame_lengths(buffer)) is None or len(buffer) < sum(lengths):
            if lengths is not None and lengths[1] > MAX_OUTPUT_BYTES:
                raise ConnectionAbortedError("a frame exceeds the limit of the command's output")
            if not (data := await stream.read()):
                return
            buffer += data
        head, length = lengths
        opcode = buffer[0] & 0x0F
        payload = bytes(buffer[head : head + length])
        del buffer[: head + length]
        if opcode == _CLOSE:
            return
        if opcode in _OPCODES_OF_DATA:
            yield payload


def _failure_message(status: bytearray) -> str:
    """Return the reason why the command failed, or an empty string."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(status, type=dict[str, Any]) if status else {}
    except msgspec.DecodeError:
        return bytes(status).decode("utf-8", "replace")
    return "" if fields.get("status", "Success") == "Success" else str(fields.get("message") or "the command failed")
