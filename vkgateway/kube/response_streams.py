"""Answers that go on, read as they come: the bytes of watches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import httptools

from vkgateway.kube.endpoint import IDLE_SECONDS, Endpoint, ServerActivity
from vkgateway.kube.responses import MalformedResponseError, check_bounds, is_framed
from vkgateway.kube.tls_protocol import TlsProtocol

_PAUSE_BYTES: Final = 1024 * 1024
"""Bytes that wait to be read before the server is asked to stop."""


class ResponseStream(TlsProtocol):
    """One request on a connection that it has for itself, and its answer.

    It is given up once `inactivity` seconds passed without a byte from the server, on this or, once the answer has
    begun, on another of its connections (`pulse`): that nothing happens is no reason. Nor do servers say that they are
    there on a watch of what nobody changes, unless their store tells them of its progress. Where one does,
    `sends_bookmarks` may be set: from then on it is this connection's own silence that counts. Whatever is heard, the
    whole may last
    `longest` seconds.
    """

    def __init__(
        self, *, inactivity: float | None, longest: float | None = None, pulse: ServerActivity | None = None
    ) -> None:
        super().__init__()
        self.sends_bookmarks = False
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._status = 0
        self._inactivity = inactivity
        self._activity = pulse or ServerActivity()
        self._last_heard = self._loop.time()
        self._deadline = float("inf") if longest is None else self._last_heard + longest
        self._timer: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._body_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._head_complete = False
        self._keeps_alive = False
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._is_paused = False
        self._end_reason: Exception | None = None
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
    def is_untouched(self) -> bool:
        """Whether not one byte of an answer has come."""
        return self._received_bytes == 0

    @property
    def idle_since(self) -> float:
        """When something came last, in the loop's time."""
        return self._last_heard

    @property
    def is_reusable(self) -> bool:
        """Whether the answer is complete, was read, and the connection may carry another request."""
        return self._keeps_alive and not self._chunks and self.transport is not None and not self.transport.is_closing()

    async def wait_for_head(self) -> None:
        """Wait for the answer's head. Raises OSError (TimeoutError and ConnectionError among them)."""
        while not self._head_complete:
            if self._end_reason is not None:
                raise _copy_error(self._end_reason)
            await self._wait_for_data()

    async def read(self) -> bytes:
        """What came next, at least one byte; nothing at the answer's end. Raises OSError."""
        while not self._chunks:
            if self._end_reason is not None:
                if isinstance(self._end_reason, EOFError):
                    return b""
                raise _copy_error(self._end_reason)
            await self._wait_for_data()
        piece = self._chunks.popleft()
        self._buffered_bytes -= len(piece)
        if self._is_paused and self._buffered_bytes <= _PAUSE_BYTES // 2 and self.transport is not None:
            self._is_paused = False
            self.transport.resume_reading()
        return piece

    def close(self) -> None:
        """Close the connection at once."""
        if self._timer is not None:
            self._timer.cancel()
        self.abort()

    async def _wait_for_data(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _finish_response(self, why: Exception) -> None:
        if self._end_reason is None:
            self._end_reason = why
        if self._timer is not None:
            self._timer.cancel()
        self._wake_reader()

    def _fail_response(self, why: OSError) -> None:
        self._finish_response(why)
        self.close()

    def _check_inactivity(self) -> None:
        """Whether anything came within the time allowed."""
        assert self._inactivity is not None
        now = self._loop.time()
        heard = (
            max(self._last_heard, self._activity.last_heard)
            if self._head_complete and not self.sends_bookmarks
            else self._last_heard
        )
        # Whoever was asked to stop is not silent.
        left = self._inactivity if self._is_paused else heard + self._inactivity - now
        if left <= 0:
            self._fail_response(TimeoutError(f"not a byte in {self._inactivity:g} s"))
        elif now >= self._deadline:
            self._fail_response(TimeoutError("the server did not end it in time"))
        else:
            self._timer = self._loop.call_at(max(min(now + left, self._deadline), now + 0.001), self._check_inactivity)

    def send_request(self, request: bytes) -> None:
        """Send the request."""
        if self._inactivity is not None:
            self._check_inactivity()
        self.write(request)

    # What the line tells.

    def handle_data(self, data: bytes) -> None:
        """See `Sample`."""
        if self._parser is None:
            return
        if self._end_reason is not None:
            self.abort()  # nobody has asked: whatever this is, it must not become an answer
            return
        self._last_heard = self._activity.last_heard = self._loop.time()
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
            check_bounds(received=self._received_bytes, body=self._body_bytes)
        except MalformedResponseError as error:
            self._fail_response(error)
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail_response(MalformedResponseError(f"no HTTP/1.1 answer: {error}"))
            return
        if self._buffered_bytes > _PAUSE_BYTES and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake_reader()

    def handle_close(self, why: Exception | None) -> None:
        """See `Sample`."""
        self._parser = None  # it knows this stream: neither would go before the collector of cycles comes by
        if why is None and self._head_complete and not is_framed(self._headers):
            self._finish_response(EOFError())  # an answer without a length ends with its connection
        else:
            self._finish_response(
                why if isinstance(why, OSError) else ConnectionError("the server closed the connection")
            )

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; more than one makes the connection unusable."""
        if self._end_reason is not None:
            raise MalformedResponseError("more came than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        self._head_complete = self._status >= 200
        if not self._head_complete:
            self._headers.clear()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._chunks.append(piece)
        self._body_bytes += len(piece)
        self._buffered_bytes += len(piece)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._head_complete:
            assert self._parser is not None
            self._keeps_alive = self._parser.should_keep_alive()
            self._finish_response(EOFError())


def _copy_error(error: Exception) -> OSError:
    """An error to be raised: one that a stream keeps would keep the stream, by the frames that it went through."""
    if isinstance(error, OSError):
        return type(error)(*error.args)
    return ConnectionError("the server closed the connection")


class StreamPool:
    """The streams from one server.

    The connection of an answer that was read to its end carries the next one: hundreds of watches are begun anew every
    few minutes, and what a connection leaves in memory would lie in pieces after a while. `spare` gives one that others
    do not need any more.
    """

    def __init__(self, server: Endpoint, *, spare: Callable[[], TlsProtocol | None] = lambda: None) -> None:
        self._server = server
        self._take_spare = spare
        self._active: set[ResponseStream] = set()
        self._idle: list[ResponseStream] = []
        self._reuses_connections = True

    async def open_stream(
        self, request: bytes, *, inactivity: float | None, longest: float | None = None
    ) -> ResponseStream:
        """Send a whole request and wait for the answer's head; who reads the stream gives it back by `release_stream`.

        `inactivity` and `longest` are those of `ResponseStream`. Raises OSError (TimeoutError and ConnectionError among
        them).
        """
        while True:
            stream = ResponseStream(inactivity=inactivity, longest=longest, pulse=self._server.activity)
            free = self._take_idle() or self._take_spare()
            if free is None:
                await self._server.open_connection(stream)
            else:
                free.hand_over_to(stream)
            self._active.add(stream)
            try:
                stream.send_request(request)
                await stream.wait_for_head()
            except ConnectionError:
                self._close_stream(stream)
                if free is None or not stream.is_untouched or not self._reuses_connections:
                    raise
            except BaseException:
                self._close_stream(stream)
                raise
            else:
                return stream

    @property
    def is_in_use(self) -> bool:
        """Whether streams are read."""
        return bool(self._active)

    def release_stream(self, stream: ResponseStream) -> None:
        """Keep the connection of a stream that was read to its end; close any other."""
        if self._reuses_connections and stream.is_reusable:
            self._active.discard(stream)
            self._idle.append(stream)
        else:
            self._close_stream(stream)

    def close(self) -> None:
        """Close all connections; streams that are read fail."""
        self.start_draining()
        for stream in list(self._active):
            self._close_stream(stream)

    def start_draining(self) -> None:
        """Keep no connection any more; streams that are read go on."""
        self._reuses_connections = False
        free, self._idle = self._idle, []
        for stream in free:
            stream.close()

    def _take_idle(self) -> ResponseStream | None:
        """The stream released last whose connection may be used; those that are stale are closed."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._idle:
            stream = self._idle.pop()
            if stream.is_reusable and stream.idle_since >= oldest:
                return stream
            stream.close()
        return None

    def _close_stream(self, stream: ResponseStream) -> None:
        self._active.discard(stream)
        stream.close()
