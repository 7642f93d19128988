"""Server side of HTTP/1.1 on one stream: requests and small replies, until an upgrade takes over the stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.upgrade import Headers
from vkgateway.nodes.limits import CountBytes, MemoryLimitError, ignore_bytes

_MAX_HEAD_BYTES: Final = 256 * 1024
"""Limit of a request's head, which contains the command of an exec. Go's limit is 1 MiB."""
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Limit of a request's body. Admission reviews contain objects, which API servers limit to 3 MiB."""
_LAX_LINE: Final = re.compile(rb"[^\r]\n|\r[^\n]|\n[ \t]")
"""A line that ends with LF or CR alone, or that continues the line before (obs-fold). h11 accepts both, but a proxy in
front could see a different request (RFC 9112, sections 2.2 and 5.2)."""
_END: Final = b"\r\n\r\n"
"""The end of a head, and of a body in chunks."""
_FRAMING_HEADERS: Final = ("content-length", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Request:
    """A request with a path of decoded segments, a decoded query in its order, and header names in lower case."""

    method: str
    path: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str) -> str:
        """Return the first value of a header, or an empty string."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def upgrade_protocol(self) -> str:
        """The requested protocol of an upgrade, in lower case. Empty without an upgrade."""
        tokens = [
            token.strip().lower() for key, value in self.headers if key == "connection" for token in value.split(",")
        ]
        return self.header("upgrade").strip().lower() if "upgrade" in tokens else ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete, small response."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()
    """More headers, with names in lower case."""

    @classmethod
    def from_text(cls, status: int, text: str) -> Reply:
        """Return a plain-text reply, like a kubelet's."""
        return cls(status, text.encode() + b"\n")


class MalformedRequest(Exception):  # noqa: N818 - named by reason
    """The received bytes are not a valid HTTP request. The message explains the error."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Session:
    """The consecutive requests of one connection. `body_max` limits their bodies (bytes)."""

    def __init__(self, stream: ByteStream, *, body_max: int = _MAX_BODY_BYTES) -> None:
        self.stream = stream
        self._body_max = body_max
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._recent = b""
        """The last received bytes, and the few before them that may belong to the same end of a line."""

    @property
    def client_address(self) -> str:
        """The client's address, without its port."""
        return self.stream.peer_address.rpartition(":")[0]

    async def next_request(self, *, count_bytes: CountBytes = ignore_bytes) -> Request | None:
        """Return the next request with its body, or None at the end of the connection. Raises MalformedRequest."""
        try:
            if self._http.states != {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}:
                self._http.start_next_cycle()
            self._recent = self._http.trailing_data[0]
            self._check_lines()
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                return None
            body = await self._read_body(count_bytes, chunked=_is_chunked(event))
        except h11.RemoteProtocolError as error:
            raise MalformedRequest(str(error), status=error.error_status_hint) from error
        except h11.LocalProtocolError:
            return None  # the connection cannot be used again
        return _build_request(event, body)

    async def await_request(self, *, timeout: float, count_bytes: CountBytes = ignore_bytes) -> Request | None:
        """Return the next request, or None at the end of the connection and after the reply to a malformed request.

        `count_bytes` counts the bytes of the body. Raises TimeoutError after `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self.next_request(count_bytes=count_bytes)
        except MalformedRequest as error:
            await self.send_reply(Reply.from_text(error.status, str(error)), last=True)
            return None

    async def send_reply(self, reply: Reply, *, last: bool = False) -> bool:
        """Send a reply. Return whether another request may follow."""
        headers = [
            ("content-type", reply.content_type),
            ("content-length", str(len(reply.body))),
            ("x-content-type-options", "nosniff"),
            *reply.headers,
        ]
        if last:
            headers.append(("connection", "close"))
        events = (
            h11.Response(status_code=reply.status, headers=headers),
            h11.Data(data=reply.body),
            h11.EndOfMessage(),
        )
        self.stream.write(b"".join(self._http.send(event) or b"" for event in events))
        await self.stream.drain()
        return not last and self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    def switch_protocols(self, headers: Headers) -> None:
        """Answer with status 101. The stream continues with the new protocol, including bytes that arrived early."""
        answer = h11.InformationalResponse(status_code=101, headers=[("connection", "Upgrade"), *headers])
        self.stream.write(self._http.send(answer) or b"")
        self.stream.push_back(self._http.trailing_data[0])

    def start_body(self, headers: Headers) -> None:
        """Send the head of the last response: status 200.

        The caller writes the body in the framing that `headers` describe.
        """
        passed = [(name, value) for name, value in headers if name in (*_FRAMING_HEADERS, "content-type")]
        head = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in passed), "connection: close"]
        self.stream.write("\r\n".join((*head, "", "")).encode("latin-1"))

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            try:
                data = await self.stream.read()
            except OSError:
                data = b""
            self._recent = self._recent[1 - len(_END) :] + data
            if self._http.their_state is h11.IDLE:
                self._check_lines()
            self._http.receive_data(data)
        return event

    def _check_lines(self) -> None:
        """Raise MalformedRequest if the received part of a head has a lax line."""
        head, _, _ = self._recent.partition(_END)
        if _LAX_LINE.search(head):
            raise MalformedRequest("a line of the request's head does not end with CRLF, or continues the line before")

    async def _read_body(self, count_bytes: CountBytes, *, chunked: bool) -> bytes:
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > self._body_max:
                raise MalformedRequest("the request's body is too large", status=413)
            try:
                count_bytes(len(event.data))
            except MemoryLimitError as error:
                raise MalformedRequest(str(error), status=429) from error
        if chunked:
            self._check_chunks_end(event)
        return bytes(body)

    def _check_chunks_end(self, event: object) -> None:
        """Raise MalformedRequest unless a body in chunks ends without trailers, and with CRLF."""
        end = len(self._recent) - len(self._http.trailing_data[0])
        if not isinstance(event, h11.EndOfMessage) or event.headers or not self._recent[:end].endswith(_END):
            raise MalformedRequest("a body in chunks must end with 0 CRLF CRLF, without trailers")


def _is_chunked(event: h11.Request) -> bool:
    """Return whether the body has chunks. Raises MalformedRequest.

    That is if two servers could disagree about the end of the body (RFC 9112, section 6.1).
    """
    names = {name for name, _ in event.headers}
    chunked = b"transfer-encoding" in names
    if chunked and (b"content-length" in names or event.http_version < b"1.1"):
        raise MalformedRequest("Transfer-Encoding is invalid together with Content-Length, and in HTTP/1.0")
    return chunked


def _build_request(event: h11.Request, body: bytes) -> Request:
    try:
        url = urlsplit(event.target.decode("ascii"))
        query = parse_qsl(url.query, keep_blank_values=True, errors="strict", max_num_fields=10_000)
        path = tuple(unquote(part, errors="strict") for part in url.path.strip("/").split("/") if part)
    except ValueError as error:
        raise MalformedRequest(f"the URL cannot be read: {error}") from error
    return Request(
        method=event.method.decode("ascii"),
        path=path,
        query=tuple(query),
        headers=tuple(_decode_headers(event.headers)),
        body=body,
    )


def _decode_headers(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    return ((name.decode("ascii"), value.decode("latin-1")) for name, value in headers)
