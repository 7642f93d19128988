"""Streaming responses: the bytes of watches."""

from __future__ import annotations

import asyncio
from typing import Final

from vkgateway.kube.endpoint import IDLE_SECONDS, Endpoint, ServerActivity
from vkgateway.kube.http1 import ConnectionPool
from vkgateway.kube.responses import MalformedResponseError, StreamedResponse
from vkgateway.kube.tls_protocol import TlsProtocol

_PAUSE_BYTES: Final = 1024 * 1024
"""Size of the read buffer at which reading pauses."""


class ResponseStream(TlsProtocol):
    """One request on a separate connection, and its response.

    The stream fails after `inactivity` seconds without a byte from the server. Once the response has begun, bytes on
    other connections to the server count, too (`activity`): a watch without changes is silent unless the server sends
    bookmarks. Once the server has sent bookmarks, the owner may set `sends_bookmarks`, so that only this connection
    counts. The stream also fails after `longest` seconds.
    """

    def __init__(
        self, *, inactivity: float | None, longest: float | None = None, activity: ServerActivity | None = None
    ) -> None:
        super().__init__()
        self.response = StreamedResponse()
        self.sends_bookmarks = False
        self._loop = asyncio.get_running_loop()
        self._inactivity = inactivity
        self._activity = activity or ServerActivity()
        self._last_heard = self._loop.time()
        self._deadline = float("inf") if longest is None else self._last_heard + longest
        self._timer: asyncio.TimerHandle | None = None
        self._read_bytes = 0
        self._is_paused = False
        self._end_reason: Exception | None = None
        """Reason of the end, None before; EOFError after a complete response."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def idle_since(self) -> float:
        """Time of the last byte, in the event loop's time."""
        return self._last_heard

    @property
    def is_reusable(self) -> bool:
        """Whether the response is complete and read, and the connection may carry another request."""
        response, transport = self.response, self.transport
        return response.keeps_alive and not response.chunks and transport is not None and not transport.is_closing()

    async def wait_for_head(self) -> None:
        """Wait for the head of the response. Raises OSError (TimeoutError and ConnectionError included)."""
        while not self.response.head_complete:
            if self._end_reason is not None:
                raise _copy_error(self._end_reason)
            await self._wait_for_data()

    async def read(self) -> bytes:
        """Return the next bytes, or no bytes at the end of the response. Raises OSError."""
        response = self.response
        while not response.chunks:
            if self._end_reason is not None:
                if isinstance(self._end_reason, EOFError):
                    return b""
                raise _copy_error(self._end_reason)
            await self._wait_for_data()
        chunk = response.chunks.popleft()
        self._read_bytes += len(chunk)
        if (
            self._is_paused
            and response.body_bytes - self._read_bytes <= _PAUSE_BYTES // 2
            and self.transport is not None
        ):
            self._is_paused = False
            self.transport.resume_reading()
        return chunk

    def close(self) -> None:
        """Close the connection immediately."""
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

    def _finish_response(self, reason: Exception) -> None:
        if self._end_reason is None:
            self._end_reason = reason
        if self._timer is not None:
            self._timer.cancel()
        self._wake_reader()

    def _fail_response(self, error: OSError) -> None:
        self._finish_response(error)
        self.close()

    def _check_inactivity(self) -> None:
        """Fail the response after `inactivity` or `longest` seconds, and start the timer of the next check."""
        assert self._inactivity is not None
        now = self._loop.time()
        last_heard = (
            max(self._last_heard, self._activity.last_heard)
            if self.response.head_complete and not self.sends_bookmarks
            else self._last_heard
        )
        # While reading is paused, silence is not the server's.
        remaining = self._inactivity if self._is_paused else last_heard + self._inactivity - now
        if remaining <= 0:
            self._fail_response(TimeoutError(f"no byte within {self._inactivity:g} s"))
        elif now >= self._deadline:
            self._fail_response(TimeoutError("the server did not end the response in time"))
        else:
            check_at = max(min(now + remaining, self._deadline), now + 0.001)
            self._timer = self._loop.call_at(check_at, self._check_inactivity)

    def send_request(self, request: bytes) -> None:
        """Send the request, and start the checks of inactivity."""
        if self._inactivity is not None:
            self._check_inactivity()
        self.write(request)

    # Callbacks of the connection.

    def handle_data(self, data: bytes) -> None:
        """Parse bytes of the response."""
        if self._end_reason is not None:
            self.abort()  # unsolicited bytes must not become the response of the next request
            return
        self._last_heard = self._activity.last_heard = self._loop.time()
        response = self.response
        failure: MalformedResponseError | None = None
        try:
            response.feed(data)
        except MalformedResponseError as error:
            failure = MalformedResponseError(*error.args)  # without a traceback, which refers to this stream
        if response.is_complete:
            self._finish_response(EOFError())
        if failure is not None:
            self._fail_response(failure)
            return
        if response.body_bytes - self._read_bytes > _PAUSE_BYTES and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake_reader()

    def handle_close(self, error: Exception | None) -> None:
        """Complete a response without a length, or fail the response."""
        self.response.stop_parsing()
        if error is None and self.response.ends_at_close:
            self._finish_response(EOFError())  # a response without a length ends with its connection
        else:
            self._finish_response(
                error if isinstance(error, OSError) else ConnectionError("the server closed the connection")
            )


def _copy_error(error: Exception) -> OSError:
    """Return a copy of an error for raising. A stored error would keep its stream alive through its traceback."""
    if isinstance(error, OSError):
        return type(error)(*error.args)
    return ConnectionError("the server closed the connection")


class StreamPool:
    """The streams of one server.

    After a response was read to its end, its connection carries the next stream: hundreds of watches restart every few
    minutes, and new connections for all of them would fragment the memory. A stream also takes over an idle connection
    of `request_pool`.
    """

    def __init__(self, server: Endpoint, *, request_pool: ConnectionPool | None = None) -> None:
        self._server = server
        self._request_pool = request_pool
        self._active: set[ResponseStream] = set()
        self._idle: list[ResponseStream] = []
        self._reuses_connections = True

    async def open_stream(
        self, request: bytes, *, inactivity: float | None, longest: float | None = None
    ) -> ResponseStream:
        """Send a request and wait for the head of the response. The caller returns the stream with `release_stream`.

        For `inactivity` and `longest`, see `ResponseStream`. Raises OSError (TimeoutError and ConnectionError
        included).
        """
        while True:
            stream = ResponseStream(inactivity=inactivity, longest=longest, activity=self._server.activity)
            idle = self._take_idle()
            if idle is None:
                await self._server.open_connection(stream)
            else:
                idle.hand_over_to(stream)
            self._active.add(stream)
            try:
                stream.send_request(request)
                await stream.wait_for_head()
            except ConnectionError:
                self._close_stream(stream)
                if idle is None or not stream.response.is_untouched or not self._reuses_connections:
                    raise
            except BaseException:
                self._close_stream(stream)
                raise
            else:
                return stream

    @property
    def is_in_use(self) -> bool:
        """Whether streams exist."""
        return bool(self._active)

    def release_stream(self, stream: ResponseStream) -> None:
        """Keep the connection of a stream that was read to its end. Close any other stream."""
        if self._reuses_connections and stream.is_reusable:
            self._active.discard(stream)
            self._idle.append(stream)
        else:
            self._close_stream(stream)

    def close(self) -> None:
        """Close all connections. Current streams fail."""
        self.start_draining()
        for stream in list(self._active):
            self._close_stream(stream)

    def start_draining(self) -> None:
        """Stop reusing connections. Current streams continue."""
        self._reuses_connections = False
        idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()

    def _take_idle(self) -> TlsProtocol | None:
        """Remove and return the last released idle connection, or one of the requests. Close stale connections."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._idle:
            stream = self._idle.pop()
            if stream.is_reusable and stream.idle_since >= oldest:
                return stream
            stream.close()
        return None if self._request_pool is None else self._request_pool.take_idle()

    def _close_stream(self, stream: ResponseStream) -> None:
        self._active.discard(stream)
        stream.close()
