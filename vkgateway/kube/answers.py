"""Puts HTTP/1.1 answers together from bytes as they come; llhttp, by httptools, does the parsing.

What is added here are bounds: tenants choose how large their objects are, and may even put a server of their own in the
place of their API server's (APIService), whose answers need have no end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httptools

_HEAD_MAX: Final = 256 * 1024
"""Bytes that an answer may have beside its body and as much again: head, chunks' sizes and extensions, trailers."""
LONGEST_ANSWER: Final = 128 * 1024 * 1024
"""Bytes of an answer's body that are taken in."""


def is_framed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether an answer tells its own end; without that it ends with its connection (RFC 9112, section 6.3)."""
    return b"content-length" in headers or b"transfer-encoding" in headers


def check_bounds(*, received: int, body: int) -> None:
    """Raise MalformedAnswerError where so many bytes have come that little of them can be the body."""
    if received > body * 2 + _HEAD_MAX:
        raise MalformedAnswerError("the answer's head, or a chunk's, does not end")


class MalformedAnswerError(ConnectionError):
    """What came is no HTTP/1.1 answer."""


class AnswerTooLongError(MalformedAnswerError):
    """The answer has more bytes than are taken in."""


class Answer:
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


class AnswerReader:
    """Takes in the bytes of one answer."""

    __slots__ = ("_message", "_received")

    def __init__(self) -> None:
        self._message = _Message()
        self._received = 0

    @property
    def keeps(self) -> bool:
        """Whether the connection may be used again after the whole answer."""
        return self._message.keeps

    @property
    def untouched(self) -> bool:
        """Whether not one byte of an answer has come."""
        return self._received == 0

    def feed(self, data: bytes) -> Answer | None:
        """Take bytes in; the answer once it is whole. Raises MalformedAnswerError."""
        self._received += len(data)
        message = self._message
        try:
            message.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if message.refusal is not None:
                raise message.refusal from None
            raise MalformedAnswerError(f"no HTTP/1.1 answer: {error}") from None
        check_bounds(received=self._received, body=message.size)
        return message.answer() if message.whole else None

    def end(self) -> Answer | None:
        """The connection has ended: an answer that goes up to there is whole now."""
        return self._message.answer() if self._message.until_closed else None


class _Message:
    """What the parser tells of an answer."""

    __slots__ = ("begun", "headers", "keeps", "parser", "pieces", "refusal", "size", "whole")

    def __init__(self) -> None:
        self.parser: httptools.HttpResponseParser = httptools.HttpResponseParser(self)
        self.headers: dict[bytes, bytes] = {}
        self.pieces: list[bytes] = []
        self.size = 0
        self.begun = False
        """Whether the head is complete."""
        self.whole = False
        self.keeps = False
        self.refusal: MalformedAnswerError | None = None

    @property
    def until_closed(self) -> bool:
        """Whether the end of the connection is the answer's."""
        return self.begun and not self.whole and not is_framed(self.headers)

    def answer(self) -> Answer:
        """The answer, once it is whole; nothing more can be taken in after that."""
        status, pieces = self.parser.get_status_code(), self.pieces
        del self.parser  # it holds on to us: without this each answer would be left to the garbage collector
        return Answer(status, self.headers, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        if self.whole:
            self._refuse(MalformedAnswerError("more came than one answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        coding = self.headers.get(b"transfer-encoding", b"chunked")
        if coding.lower() != b"chunked":
            self._refuse(MalformedAnswerError(f"Transfer-Encoding is {coding[:32]!r}"))
        self.begun = True

    def on_body(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > LONGEST_ANSWER:
            self._refuse(AnswerTooLongError(f"the answer is longer than {LONGEST_ANSWER} bytes"))
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() < 200:  # an interim answer: the one that counts is still to come
            self.headers.clear()
            self.begun = False
        else:
            self.whole = True
            self.keeps = self.parser.should_keep_alive()  # told here only: after this it speaks of the next answer

    def _refuse(self, refusal: MalformedAnswerError) -> None:
        """Raising makes the parser stop; it keeps no more of this than that something was raised."""
        self.refusal = refusal
        raise refusal
