"""Answers that go on, read as they come: the bytes of watches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import httptools

from vkgateway.kube.answers import MalformedAnswerError, check_bounds, is_framed
from vkgateway.kube.line import IDLE_SECONDS, Line, Pulse, Server

_PAUSE_AT: Final = 1024 * 1024
"""Bytes that wait to be read before the server is asked to stop."""


class Stream(Line):
    """One request on a connection that it has for itself, and its answer.

    It is given up once `inactivity` seconds passed without a byte from the server, on this or, once the answer has
    begun, on another of its connections (`pulse`): that nothing happens is no reason. Nor do servers say that they are
    there on a watch of what nobody changes, unless their store tells them of its progress. Where one does, `regular`
    may be set: from then on it is this connection's own silence that counts. Whatever is heard, the whole may last
    `longest` seconds.
    """

    def __init__(self, *, inactivity: float | None, longest: float | None = None, pulse: Pulse | None = None) -> None:
        super().__init__()
        self.regular = False
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._status = 0
        self._inactivity = inactivity
        self._pulse = pulse or Pulse()
        self._heard = self._loop.time()
        self._until = float("inf") if longest is None else self._heard + longest
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0
        self._body = 0
        self._headers: dict[bytes, bytes] = {}
        self._begun = False
        self._keeps = False
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._paused = False
        self._ended: Exception | None = None
        """Set once nothing more comes; EOFError where the answer is complete."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def status(self) -> int:
        """The answer's status; of an answer whose head has come."""
        return self._status

    def header(self, name: str) -> str | None:
        """The value of a header, by its lower-case name."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def untouched(self) -> bool:
        """Whether not one byte of an answer has come."""
        return self._received == 0

    @property
    def idle_since(self) -> float:
        """When something came last, in the loop's time."""
        return self._heard

    @property
    def usable(self) -> bool:
        """Whether the answer is complete, was read, and the connection may carry another request."""
        return self._keeps and not self._pieces and self.transport is not None and not self.transport.is_closing()

    async def head(self) -> None:
        """Wait for the answer's head. Raises OSError (TimeoutError and ConnectionError among them)."""
        while not self._begun:
            if self._ended is not None:
                raise _anew(self._ended)
            await self._news()

    async def read(self) -> bytes:
        """What came next, at least one byte; nothing at the answer's end. Raises OSError."""
        while not self._pieces:
            if self._ended is not None:
                if isinstance(self._ended, EOFError):
                    return b""
                raise _anew(self._ended)
            await self._news()
        piece = self._pieces.popleft()
        self._waiting -= len(piece)
        if self._paused and self._waiting <= _PAUSE_AT // 2 and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()
        return piece

    def close(self) -> None:
        """Close the connection at once."""
        if self._timer is not None:
            self._timer.cancel()
        self.abort()

    async def _news(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, why: Exception) -> None:
        if self._ended is None:
            self._ended = why
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _break(self, why: OSError) -> None:
        self._end(why)
        self.close()

    def _look(self) -> None:
        """Whether anything came within the time allowed."""
        assert self._inactivity is not None
        now = self._loop.time()
        heard = max(self._heard, self._pulse.heard) if self._begun and not self.regular else self._heard
        # Whoever was asked to stop is not silent.
        left = self._inactivity if self._paused else heard + self._inactivity - now
        if left <= 0:
            self._break(TimeoutError(f"not a byte in {self._inactivity:g} s"))
        elif now >= self._until:
            self._break(TimeoutError("the server did not end it in time"))
        else:
            self._timer = self._loop.call_at(max(min(now + left, self._until), now + 0.001), self._look)

    def send(self, request: bytes) -> None:
        """Send the request."""
        if self._inactivity is not None:
            self._look()
        self.write(request)

    # What the line tells.

    def heard(self, data: bytes) -> None:
        """See `Line`."""
        if self._parser is None:
            return
        if self._ended is not None:
            self.abort()  # nobody has asked: whatever this is, it must not become an answer
            return
        self._heard = self._pulse.heard = self._loop.time()
        self._received += len(data)
        try:
            self._parser.feed_data(data)
            check_bounds(received=self._received, body=self._body)
        except MalformedAnswerError as error:
            self._break(error)
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(MalformedAnswerError(f"no HTTP/1.1 answer: {error}"))
            return
        if self._waiting > _PAUSE_AT and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()
        self._tell()

    def lost(self, why: Exception | None) -> None:
        """See `Line`."""
        self._parser = None  # it knows this stream: neither would go before the collector of cycles comes by
        if why is None and self._begun and not is_framed(self._headers):
            self._end(EOFError())  # an answer without a length ends with its connection
        else:
            self._end(why if isinstance(why, OSError) else ConnectionError("the server closed the connection"))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; more than one makes the connection unusable."""
        if self._ended is not None:
            raise MalformedAnswerError("more came than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        self._begun = self._status >= 200
        if not self._begun:
            self._headers.clear()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(piece)
        self._body += len(piece)
        self._waiting += len(piece)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._begun:
            assert self._parser is not None
            self._keeps = self._parser.should_keep_alive()
            self._end(EOFError())


def _anew(error: Exception) -> OSError:
    """An error to be raised: one that a stream keeps would keep the stream, by the frames that it went through."""
    if isinstance(error, OSError):
        return type(error)(*error.args)
    return ConnectionError("the server closed the connection")


class Streams:
    """The streams from one server.

    The connection of an answer that was read to its end carries the next one: hundreds of watches are begun anew every
    few minutes, and what a connection leaves in memory would lie in pieces after a while. `spare` gives one that others
    do not need any more.
    """

    def __init__(self, server: Server, *, spare: Callable[[], Line | None] = lambda: None) -> None:
        self._server = server
        self._spare = spare
        self._open: set[Stream] = set()
        self._free: list[Stream] = []
        self._keeping = True

    async def open(self, request: bytes, *, inactivity: float | None, longest: float | None = None) -> Stream:
        """Send a whole request and wait for the answer's head; who reads the stream gives it back by `release`.

        `inactivity` and `longest` are those of `Stream`. Raises OSError (TimeoutError and ConnectionError among them).
        """
        while True:
            stream = Stream(inactivity=inactivity, longest=longest, pulse=self._server.pulse)
            free = self._take() or self._spare()
            if free is None:
                await self._server.connect(stream)
            else:
                free.hand_over(stream)
            self._open.add(stream)
            try:
                stream.send(request)
                await stream.head()
            except ConnectionError:
                self._close(stream)
                if free is None or not stream.untouched or not self._keeping:
                    raise
            except BaseException:
                self._close(stream)
                raise
            else:
                return stream

    @property
    def in_use(self) -> bool:
        """Whether streams are read."""
        return bool(self._open)

    def release(self, stream: Stream) -> None:
        """Keep the connection of a stream that was read to its end; close any other."""
        if self._keeping and stream.usable:
            self._open.discard(stream)
            self._free.append(stream)
        else:
            self._close(stream)

    def close(self) -> None:
        """Close all connections; streams that are read fail."""
        self.retire()
        for stream in list(self._open):
            self._close(stream)

    def retire(self) -> None:
        """Keep no connection any more; streams that are read go on."""
        self._keeping = False
        free, self._free = self._free, []
        for stream in free:
            stream.close()

    def _take(self) -> Stream | None:
        """The stream released last whose connection may be used; those that are stale are closed."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._free:
            stream = self._free.pop()
            if stream.usable and stream.idle_since >= oldest:
                return stream
            stream.close()
        return None

    def _close(self, stream: Stream) -> None:
        self._open.discard(stream)
        stream.close()
