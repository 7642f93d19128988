"""POST /run/NAMESPACE/POD[/UID]/CONTAINER?cmd=...: run a command in a container, and answer with its output.

A kubelet's oldest way, without streams and without a terminal. Below it is an exec over a WebSocket, which is read here
to its end.
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
from vkgateway.kubelet import error_replies
from vkgateway.kubelet.call import Call, parse_uid_and_container
from vkgateway.kubelet.errorchannel import parse_frame_lengths
from vkgateway.kubelet.http import Reply
from vkgateway.kubelet.memory_limiter import CountBytes
from vkgateway.kubelet.target import PodTarget

MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of output: what container runtimes allow a command that is run so."""
_PROTOCOL: Final = "v4.channel.k8s.io"
_STDOUT, _STDERR, _ERROR = 1, 2, 3
"""Channels, each frame's first byte: k8s.io/apimachinery/pkg/util/remotecommand/constants.go."""
_OPCODES_OF_DATA: Final = frozenset((0, 1, 2))
_CLOSE: Final = 8
_JSON: Final = "application/json"
"""What kubelets call the output, whatever it is."""

_log = structlog.get_logger(__name__)


async def serve_run(call: Call, namespace: str, pod: str, *rest: str) -> Reply:
    """Run it; words are divided by single spaces, and nothing is quoted, as kubelets do."""
    uid, container = parse_uid_and_container(rest)
    command = next((value for key, value in call.request.query if key == "cmd"), "")
    if not command.strip():
        return Reply.from_text(400, "you must specify a command: cmd")
    target = await call.require_target(namespace, pod, uid=uid)
    params = [("container", container), ("stdout", "true"), ("stderr", "true")]
    params += [("command", word) for word in command.split(" ")]
    known_as = f"{namespace}/{pod}"
    try:
        async with asyncio.timeout(call.idle_timeout):
            said = await _run_exec(target, params, take=call.count_bytes)
    except (OSError, Unreachable, TimeoutError) as error:
        _log.warning("command unavailable", tenant=call.tenant, namespace=namespace, pod=pod, error=str(error))
        return Reply.from_text(500, error_replies.unavailable_message("run", pod=known_as))
    if isinstance(said, RefusedStream):
        return error_replies.error_reply(said, target=target, namespace=namespace, what="run")
    if len(said[_STDOUT]) + len(said[_STDERR]) > MAX_OUTPUT_BYTES:
        return Reply.from_text(500, f"the command says more than {MAX_OUTPUT_BYTES} bytes; use exec for it")
    if failure := _failure_message(said[_ERROR]):
        told = error_replies.translate_message(failure, target=target, namespace=namespace)
        return Reply.from_text(500, told or error_replies.unavailable_message("run", pod=known_as))
    return Reply(200, bytes(said[_STDOUT] + said[_STDERR]), _JSON)


async def _run_exec(
    target: PodTarget, params: list[tuple[str, str]], *, take: CountBytes
) -> dict[int, bytearray] | RefusedStream:
    """What came on each channel, up to a little more than OUTPUT_MAX; `take` counts it."""
    path = PODS.path(target.namespace, target.name, "exec")
    answer = await open_upgrade(target.client, "GET", path, params=params, headers=_handshake_headers())
    if isinstance(answer, RefusedStream):
        return answer
    said = {_STDOUT: bytearray(), _STDERR: bytearray(), _ERROR: bytearray()}
    try:
        async for payload in _read_frames(answer.stream):
            if payload and payload[0] in said:
                take(len(payload))
                said[payload[0]] += payload[1:]
            if sum(map(len, said.values())) > MAX_OUTPUT_BYTES:
                return said
    finally:
        answer.stream.abort()
    if not said[_ERROR]:
        raise ConnectionResetError("the connection ended before the command did")
    return said


def _handshake_headers() -> Headers:
    return (
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", base64.b64encode(os.urandom(16)).decode()),
        ("sec-websocket-protocol", _PROTOCOL),
    )


async def _read_frames(wire: ByteStream) -> AsyncIterator[bytes]:
    """The payloads of a server's frames (RFC 6455, section 5.2), to its closing frame or the connection's end."""
    held = bytearray()
    while True:
        while (found := parse_frame_lengths(held)) is None or len(held) < sum(found):
            if found is not None and found[1] > MAX_OUTPUT_BYTES:
                raise ConnectionAbortedError("a frame is longer than what a command may say")
            if not (data := await wire.read()):
                return
            held += data
        head, length = found
        opcode = held[0] & 0x0F
        payload = bytes(held[head : head + length])
        del held[: head + length]
        if opcode == _CLOSE:
            return
        if opcode in _OPCODES_OF_DATA:
            yield payload


def _failure_message(status: bytearray) -> str:
    """Why the command failed, empty if it did not."""
    try:
        told: dict[str, Any] = msgspec.json.decode(status, type=dict[str, Any]) if status else {}
    except msgspec.DecodeError:
        return bytes(status).decode("utf-8", "replace")
    return "" if told.get("status", "Success") == "Success" else str(told.get("message") or "the command failed")
