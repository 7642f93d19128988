"""TLS over an event loop's plain TCP transport: the state machine that all connections share.

The event loop's own TLS transport costs a fourth of a request more, and a buffer of 256 KiB for each connection. In
uvloop 0.23, its TLS transport also loses up to 256 KiB if a peer closes while reading is paused. Tunnels pause whenever
one side is slower, so the end of a large `kubectl exec` or `kubectl logs` would be lost. A paused plain transport
leaves all bytes in the kernel.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import ClassVar, cast

from vkgateway.kube.sockets import REQUEST_KEEPALIVE, KeepAlive, enable_keepalive
from vkgateway.kube.tls_engine import CHUNK_BYTES, TlsEngine


class TlsProtocol(asyncio.Protocol):
    """One TCP connection, plain or (with `tls`) TLS. Subclasses override the `handle_` methods.

    The connection is open once `transport` is set and the TLS handshake is complete. `error` is the reason why the
    connection failed.
    """

    keepalive: ClassVar[KeepAlive] = REQUEST_KEEPALIVE
    detects_truncation: ClassVar[bool] = True
    """Whether the end of a TLS connection without close_notify is an error: an attacker may have cut the connection."""

    def __init__(self, tls: TlsEngine | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.tls = tls
        self.error: Exception | None = None
        self._opening: asyncio.Future[None] | None = None
        """Future of `wait_opened`; None without a caller or after the connection was opened."""
        self._check: Callable[[], None] | None = None
        """Check of the bytes that are being written. See `write_checked`."""

    # Hooks of subclasses.

    def handle_data(self, data: bytes) -> None:
        """Process decrypted bytes from the peer."""

    def handle_end(self) -> None:
        """Process the end of the peer's bytes: close the connection."""
        self.close()

    def handle_close(self, error: Exception | None) -> None:
        """Process the end of the connection. `error` is None after a regular end."""

    # Methods of owners.

    async def wait_opened(self) -> None:
        """Wait until the connection is open. Only one task may wait.

        Raises OSError (ssl.SSLError included) if opening fails.
        """
        if self.transport is not None and (self.tls is None or self.tls.is_established):
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
        await self._opening

    def write(self, data: bytes) -> None:
        """Send bytes on the open connection."""
        assert self.transport is not None
        if self.tls is None:
            self._pass_to_kernel(self.transport, data)
            return
        try:
            if len(data) <= CHUNK_BYTES:
                self.tls.encrypt_data(data)
                self._flush_tls()
                return
            view = memoryview(data)
            for start in range(0, len(view), CHUNK_BYTES):
                self.tls.encrypt_data(view[start : start + CHUNK_BYTES])
                self._flush_tls()
        except ssl.SSLError as error:
            self._fail_tls(error)

    def write_checked(self, data: bytes, check: Callable[[], None]) -> None:
        """Send bytes, and call `check` right before the kernel takes each part. An error of `check` refuses the part.

        After such an error, the connection can only be aborted.
        """
        self._check = check
        try:
            self.write(data)
        finally:
            self._check = None

    def close(self) -> None:
        """Send the buffered bytes and close_notify, then close the connection."""
        if self.transport is not None and not self.transport.is_closing():
            if self.tls is not None and self.tls.is_established:
                self.tls.encrypt_close_notify()
            self._flush_tls()
            self.transport.close()

    def abort(self) -> None:
        """Close the connection immediately and drop buffered bytes."""
        if self.transport is not None:
            self.transport.abort()

    def hand_over_to(self, successor: TlsProtocol) -> None:
        """Move the open connection to another protocol, between a response and the next request."""
        assert self.transport is not None
        successor.transport, successor.tls = self.transport, self.tls
        self.transport.set_protocol(successor)
        self.transport = None
        self.handle_close(None)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the TLS handshake."""
        self.transport = cast("asyncio.Transport", transport)
        enable_keepalive(transport, self.keepalive)
        if self.tls is None:
            self._finish_opening(None)
        else:
            self.tls.start_handshake()
            self._flush_tls()

    def data_received(self, data: bytes) -> None:
        """Decrypt bytes and pass them to `handle_data`."""
        tls = self.tls
        if tls is None:
            self.handle_data(data)
            return
        was_established = tls.is_established
        try:
            data = tls.decrypt_data(data)
        except ssl.SSLError as error:
            self._fail_tls(error)
            return
        self._flush_tls()
        if not was_established and tls.is_established:
            self._finish_opening(None)
        if data:
            self.handle_data(data)
        if tls.is_ended:
            self.handle_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Determine the error, and report the end to `handle_close`."""
        self.error = self.error or exc
        if self.error is None and self.detects_truncation and self.tls is not None and not self.tls.is_ended:
            self.error = ConnectionResetError("the server closed the connection")
        self._finish_opening(self.error or ConnectionResetError("the connection was closed during the handshake"))
        self.handle_close(self.error)

    def _finish_opening(self, error: Exception | None) -> None:
        opening = self._opening
        if error is None:
            self._opening = None
            if opening is not None and not opening.done():
                opening.set_result(None)
        elif self.transport is None or (self.tls is not None and not self.tls.is_established):
            opening = self._opening = opening or asyncio.get_running_loop().create_future()
            if not opening.done():
                opening.set_exception(error)
                opening.exception()  # marks the error as retrieved: an owner need not wait

    def _fail_tls(self, error: ssl.SSLError) -> None:
        """Close the connection after a TLS error, with an alert that contains the reason."""
        self.error = self.error or error
        self._finish_opening(error)
        self._flush_tls()
        if self.transport is not None:
            self.transport.close()
        self.handle_end()

    def _flush_tls(self) -> None:
        """Send the bytes that the TLS engine produced."""
        if self.tls is not None and self.transport is not None:
            data = self.tls.take_outgoing()
            if data and not self.transport.is_closing():
                self._pass_to_kernel(self.transport, data)

    def _pass_to_kernel(self, transport: asyncio.Transport, data: bytes) -> None:
        if self._check is not None:  # after the encryption, which takes time in which a Lease may expire
            self._check()
        transport.write(data)
