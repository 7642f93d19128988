"""Puts HTTP/1.1 answers together from bytes as they come; llhttp, by httptools, does the parsing.

What is added here are bounds: tenants choose how large their objects are, and may even put a server of their own in the
place of their API server's (APIService), whose answers need have no end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httptools

_MAX_HEAD_BYTES: Final = 256 * 1024
"""Bytes that an answer may have beside its body and as much again: head, chunks' sizes and extensions, trailers."""
MAX_BODY_BYTES: Final = 128 * 1024 * 1024
"""Bytes of an answer's body that are taken in."""


def is_framed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether an answer tells its own end; without that it ends with its connection (RFC 9112, section 6.3)."""
    return b"content-length" in headers or b"transfer-encoding" in headers


def check_bounds(*, received: int, body: int) -> None:
    """Raise MalformedAnswerError where so many bytes have come that little of them can be the body."""
    if received > body * 2 + _MAX_HEAD_BYTES:
        raise MalformedResponseError("the answer's head, or a chunk's, does not end")


class MalformedResponseError(ConnectionError):
    """What came is no HTTP/1.1 answer."""


class ResponseTooLargeError(MalformedResponseError):
    """The answer has more bytes than are taken in."""


class Response:
    """One complete answer."""

    __slots__ = ("_headers", "body", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.body = body
        self._headers = headers

    def header(self, name: str) -> str | None:
        """The value of a header, by its lower-case name."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")


class ResponseParser:
    """Takes in the bytes of one answer."""

    __slots__ = ("_builder", "_received_bytes")

    def __init__(self) -> None:
        self._builder = _ResponseBuilder()
        self._received_bytes = 0

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may be used again after the whole answer."""
        return self._builder.keeps_alive

    @property
    def is_untouched(self) -> bool:
        """Whether not one byte of an answer has come."""
        return self._received_bytes == 0

    def feed(self, data: bytes) -> Response | None:
        """Take bytes in; the answer once it is whole. Raises MalformedAnswerError."""
        self._received_bytes += len(data)
        message = self._builder
        try:
            message.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if message.error is not None:
                raise message.error from None
            raise MalformedResponseError(f"no HTTP/1.1 answer: {error}") from None
        check_bounds(received=self._received_bytes, body=message.body_bytes)
        return message.build_response() if message.is_complete else None

    def handle_eof(self) -> Response | None:
        """The connection has ended: an answer that goes up to there is whole now."""
        return self._builder.build_response() if self._builder.ends_at_close else None


class _ResponseBuilder:
    """What the parser tells of an answer."""

    __slots__ = (
        "body_bytes",
        "body_chunks",
        "error",
        "head_complete",
        "headers",
        "is_complete",
        "keeps_alive",
        "parser",
    )

    def __init__(self) -> None:
        self.parser: httptools.HttpResponseParser = httptools.HttpResponseParser(self)
        self.headers: dict[bytes, bytes] = {}
        self.body_chunks: list[bytes] = []
        self.body_bytes = 0
        self.head_complete = False
        """Whether the head is complete."""
        self.is_complete = False
        self.keeps_alive = False
        self.error: MalformedResponseError | None = None

    @property
    def ends_at_close(self) -> bool:
        """Whether the end of the connection is the answer's."""
        return self.head_complete and not self.is_complete and not is_framed(self.headers)

    def build_response(self) -> Response:
        """The answer, once it is whole; nothing more can be taken in after that."""
        status, pieces = self.parser.get_status_code(), self.body_chunks
        del self.parser  # it holds on to us: without this each answer would be left to the garbage collector
        return Response(status, self.headers, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._stop_parsing(MalformedResponseError("more came than one answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        coding = self.headers.get(b"transfer-encoding", b"chunked")
        if coding.lower() != b"chunked":
            self._stop_parsing(MalformedResponseError(f"Transfer-Encoding is {coding[:32]!r}"))
        self.head_complete = True

    def on_body(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        if self.body_bytes > MAX_BODY_BYTES:
            self._stop_parsing(ResponseTooLargeError(f"the answer is longer than {MAX_BODY_BYTES} bytes"))
        self.body_chunks.append(piece)

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() < 200:  # an interim answer: the one that counts is still to come
            self.headers.clear()
            self.head_complete = False
        else:
            self.is_complete = True
            self.keeps_alive = (
                self.parser.should_keep_alive()
            )  # told here only: after this it speaks of the next answer

    def _stop_parsing(self, refusal: MalformedResponseError) -> None:
        """Raising makes the parser stop; it keeps no more of this than that something was raised."""
        self.error = refusal
        raise refusal
