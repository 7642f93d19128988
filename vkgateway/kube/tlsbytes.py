"""A TLS connection without a socket: bytes of the network in and out, bytes of the application out and in."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Final, cast

_RECORD: Final = 16 * 1024
"""Bytes of a record at most (RFC 8446, section 5.1); no read gives more than one. Room is made for all that is asked
for: 64 KiB would be pages of their own (`gateway.heap`), taken and given back for every answer."""
PORTION: Final = 32 * 1024
"""Bytes that are passed through at once: OpenSSL's buffers grow to what they held once, and stay so."""


class Resumption:
    """Keeps what a server gave us at the last handshake, so that the next one is short (RFC 8446, section 2.2).

    A short one proves no certificate anew, on neither side, which saves both most of what a handshake costs. For the
    connections of one context to one server.
    """

    __slots__ = ("session",)

    def __init__(self) -> None:
        self.session: ssl.SSLSession | None = None


class Tls:
    """One TLS connection; `resumption` shortens a client's handshake where the server takes part in that."""

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_name: str | None = None,
        resumption: Resumption | None = None,
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._resumption = resumption
        self._session = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_name,
            session=resumption.session if resumption is not None else None,
        )
        self.established = False
        self.ended = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the network; returns those meant for the application. Raises ssl.SSLError."""
        chunks: list[bytes] = []
        view = memoryview(data)
        for start in range(0, len(view), PORTION):
            self._incoming.write(view[start : start + PORTION])
            if self.established or self._shake_hands():
                self._decrypt(chunks)
        if chunks and self._resumption is not None:
            # The server's ticket comes after the handshake, and has come before what it says first.
            self._keep_ticket(self._resumption)
            self._resumption = None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _decrypt(self, chunks: list[bytes]) -> None:
        try:
            # Asked only while there is something: the refusal of one read too many costs as much as a read.
            while self._incoming.pending and not self.ended:
                if chunk := self._session.read(_RECORD):
                    chunks.append(chunk)
                else:
                    self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True

    def _keep_ticket(self, resumption: Resumption) -> None:
        """Keep the ticket, unless the one there is did its service just now: to read one costs as much as a request."""
        if not self._session.session_reused:
            resumption.session = self._session.session

    def _shake_hands(self) -> bool:
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.established = True
        return True

    def start(self) -> None:
        """Say hello, where we are the client; the bytes are in `pending`."""
        self._shake_hands()

    def seal(self, data: bytes | memoryview) -> None:
        """Encrypt application bytes into `pending`."""
        view = memoryview(data)
        while view:
            view = view[self._session.write(view) :]

    def seal_end(self) -> None:
        """Put the notice that we send nothing more into `pending`."""
        with contextlib.suppress(ssl.SSLError):  # the peer's own notice is not waited for
            self._session.unwrap()

    def pending(self) -> bytes:
        """Bytes to put on the network."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def peer_certificate(self) -> bytes | None:
        """The verified certificate of the peer, DER."""
        return self._session.getpeercert(binary_form=True)

    def peer_names(self) -> dict[str, Any]:
        """The verified certificate of the peer as the ssl module tells it; empty without one."""
        return cast("dict[str, Any]", self._session.getpeercert() or {})
