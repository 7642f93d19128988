"""HTTP/1.1 responses from bytes. llhttp (through httptools) does the parsing.

This module adds size limits: tenants choose the size of their objects. A tenant may even serve an aggregated API
(APIService) whose responses never end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import httptools

_MAX_HEAD_BYTES: Final = 256 * 1024
"""Limit of the bytes that exceed twice the body: head, sizes and extensions of chunks, trailers."""
_ENDLESS_HEAD: Final = "the head of the response or of a chunk does not end"
MAX_BODY_BYTES: Final = 128 * 1024 * 1024
"""Size limit of a response's body."""


def is_framed(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a response has a length or is chunked. Otherwise it ends with its connection (RFC 9112, 6.3)."""
    return b"content-length" in headers or b"transfer-encoding" in headers


class MalformedResponseError(ConnectionError):
    """The received bytes are not an HTTP/1.1 response."""


class ResponseTooLargeError(MalformedResponseError):
    """The response exceeds the size limit."""


class Response:
    """A complete response."""

    __slots__ = ("_headers", "body", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.body = body
        self._headers = headers

    def header(self, name: str) -> str | None:
        """Return the value of a header, by its lower-case name."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")


class ResponseParser:
    """Parser of one response."""

    __slots__ = ("_builder", "_received_bytes")

    def __init__(self) -> None:
        self._builder = _ResponseBuilder()
        self._received_bytes = 0

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may carry another request after the response."""
        return self._builder.keeps_alive

    @property
    def is_untouched(self) -> bool:
        """Whether no byte has arrived."""
        return self._received_bytes == 0

    def feed(self, data: bytes) -> Response | None:
        """Parse bytes, and return the response once it is complete. Raises MalformedResponseError."""
        self._received_bytes += len(data)
        builder = self._builder
        try:
            builder.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if builder.error is not None:
                raise builder.error from None
            raise MalformedResponseError(f"not an HTTP/1.1 response: {error}") from None
        if self._received_bytes > builder.body_bytes * 2 + _MAX_HEAD_BYTES:
            raise MalformedResponseError(_ENDLESS_HEAD)
        return builder.build_response() if builder.is_complete else None

    def handle_eof(self) -> Response | None:
        """Return the response that the end of the connection completes, or None."""
        return self._builder.build_response() if self._builder.ends_at_close else None


class _ResponseBuilder:
    """State of a response during parsing."""

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
        self.is_complete = False
        self.keeps_alive = False
        self.error: MalformedResponseError | None = None

    @property
    def ends_at_close(self) -> bool:
        """Whether the end of the connection completes the response."""
        return self.head_complete and not self.is_complete and not is_framed(self.headers)

    def build_response(self) -> Response:
        """Return the complete response, and drop the parser."""
        status, chunks = self.parser.get_status_code(), self.body_chunks
        del self.parser  # breaks the reference cycle, which only the garbage collector would free
        return Response(status, self.headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._stop_parsing(MalformedResponseError("the server sent more than one response"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        coding = self.headers.get(b"transfer-encoding", b"chunked")
        if coding.lower() != b"chunked":
            self._stop_parsing(MalformedResponseError(f"Transfer-Encoding is {coding[:32]!r}"))
        self.head_complete = True

    def on_body(self, chunk: bytes) -> None:
        self.body_bytes += len(chunk)
        if self.body_bytes > MAX_BODY_BYTES:
            self._stop_parsing(ResponseTooLargeError(f"the response is longer than {MAX_BODY_BYTES} bytes"))
        self.body_chunks.append(chunk)

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() < 200:  # an interim response: the final response follows
            self.headers.clear()
            self.head_complete = False
        else:
            self.is_complete = True
            # The value is valid in this callback only.
            self.keeps_alive = self.parser.should_keep_alive()

    def _stop_parsing(self, error: MalformedResponseError) -> None:
        """Stop the parser by raising. The error is stored, because the parser raises its own."""
        self.error = error
        raise error


class StreamedResponse:
    """Response whose body is read while it arrives: the body's size is not limited."""

    __slots__ = (
        "_headers",
        "_parser",
        "_received_bytes",
        "body_bytes",
        "chunks",
        "head_complete",
        "is_complete",
        "keeps_alive",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        """Status of the response, 0 before the head is complete."""
        self.head_complete = False
        self.is_complete = False
        self.keeps_alive = False
        """Whether the connection may carry another request after the response."""
        self.chunks: deque[bytes] = deque()
        """Parts of the body that were not read yet."""
        self.body_bytes = 0
        """Size of the body that has arrived."""
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._received_bytes = 0

    def header(self, name: str) -> str | None:
        """Return the value of a header, by its lower-case name."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def is_untouched(self) -> bool:
        """Whether no byte has arrived."""
        return self._received_bytes == 0

    @property
    def ends_at_close(self) -> bool:
        """Whether the end of the connection completes the response."""
        return self.head_complete and not is_framed(self._headers)

    def feed(self, data: bytes) -> None:
        """Parse bytes. Raises MalformedResponseError."""
        assert self._parser is not None
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise MalformedResponseError(f"not an HTTP/1.1 response: {error}") from None
        if self._received_bytes > self.body_bytes * 2 + _MAX_HEAD_BYTES:
            raise MalformedResponseError(_ENDLESS_HEAD)

    def stop_parsing(self) -> None:
        """Drop the parser, which refers to this response: only the garbage collector would free such a cycle."""
        self._parser = None

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Refuse a second response."""
        if self.is_complete:
            raise MalformedResponseError("the server sent more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Store the status, and drop the headers of an interim response."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self.head_complete = self.status >= 200
        if not self.head_complete:
            self._headers.clear()

    def on_body(self, chunk: bytes) -> None:
        """Buffer a part of the body."""
        self.chunks.append(chunk)
        self.body_bytes += len(chunk)

    def on_message_complete(self) -> None:
        """End the response."""
        if self.head_complete:
            assert self._parser is not None
            self.is_complete = True
            self.keeps_alive = self._parser.should_keep_alive()
