"""A TLS connection without a socket: bytes of the network in and out, bytes of the application out and in."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Final, cast

_RECORD_BYTES: Final = 16 * 1024
"""Bytes of a record at most (RFC 8446, section 5.1); no read gives more than one. Room is made for all that is asked
for: 64 KiB would be pages of their own (`gateway.heap`), taken and given back for every answer."""
CHUNK_BYTES: Final = 32 * 1024
"""Bytes that are passed through at once: OpenSSL's buffers grow to what they held once, and stay so."""


class TlsSessions:
    """Keeps what a server gave us at the last handshake, so that the next one is short (RFC 8446, section 2.2).

    A short one proves no certificate anew, on neither side, which saves both most of what a handshake costs. For the
    connections of one context to one server.
    """

    __slots__ = ("session",)

    def __init__(self) -> None:
        self.session: ssl.SSLSession | None = None


class TlsEngine:
    """One TLS connection; `resumption` shortens a client's handshake where the server takes part in that."""

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_name: str | None = None,
        resumption: TlsSessions | None = None,
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._sessions = resumption
        self._session = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_name,
            session=resumption.session if resumption is not None else None,
        )
        self.is_established = False
        self.is_ended = False

    def decrypt_data(self, data: bytes) -> bytes:
        """Take bytes from the network; returns those meant for the application. Raises ssl.SSLError."""
        chunks: list[bytes] = []
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            self._incoming.write(view[start : start + CHUNK_BYTES])
            if self.is_established or self._do_handshake():
                self._read_records(chunks)
        if chunks and self._sessions is not None:
            # The server's ticket comes after the handshake, and has come before what it says first.
            self._save_session(self._sessions)
            self._sessions = None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _read_records(self, chunks: list[bytes]) -> None:
        try:
            # Asked only while there is something: the refusal of one read too many costs as much as a read.
            while self._incoming.pending and not self.is_ended:
                if chunk := self._session.read(_RECORD_BYTES):
                    chunks.append(chunk)
                else:
                    self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True

    def _save_session(self, resumption: TlsSessions) -> None:
        """Keep the ticket, unless the one there is did its service just now: to read one costs as much as a request."""
        if not self._session.session_reused:
            resumption.session = self._session.session

    def _do_handshake(self) -> bool:
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_established = True
        return True

    def start_handshake(self) -> None:
        """Say hello, where we are the client; the bytes are in `take_outgoing`."""
        self._do_handshake()

    def encrypt_data(self, data: bytes | memoryview) -> None:
        """Encrypt application bytes into `take_outgoing`."""
        view = memoryview(data)
        while view:
            view = view[self._session.write(view) :]

    def encrypt_close_notify(self) -> None:
        """Put the notice that we send nothing more into `take_outgoing`."""
        with contextlib.suppress(ssl.SSLError):  # the peer's own notice is not waited for
            self._session.unwrap()

    def take_outgoing(self) -> bytes:
        """Bytes to put on the network."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def peer_certificate(self) -> bytes | None:
        """The verified certificate of the peer, DER."""
        return self._session.getpeercert(binary_form=True)

    def peer_names(self) -> dict[str, Any]:
        """The verified certificate of the peer as the ssl module tells it; empty without one."""
        return cast("dict[str, Any]", self._session.getpeercert() or {})
