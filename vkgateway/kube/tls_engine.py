"""TLS without a socket: encrypts and decrypts bytes in memory."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Final, cast

_RECORD_BYTES: Final = 16 * 1024
"""Size limit of a TLS record (RFC 8446, section 5.1); one read returns one record. A larger read buffer of 64 KiB would
be mapped and unmapped for each response (see `serve.heap`)."""
CHUNK_BYTES: Final = 32 * 1024
"""Bytes that pass through the engine at a time: OpenSSL's buffers grow with their content and never shrink."""


class TlsSessions:
    """The last TLS session with a server, for resumption in the next handshake (RFC 8446, section 2.2).

    A resumed handshake verifies no certificates, which saves both sides most of the CPU time. For connections of one
    context to one server.
    """

    __slots__ = ("session",)

    def __init__(self) -> None:
        self.session: ssl.SSLSession | None = None


class TlsEngine:
    """One TLS connection. With `resumption`, a client resumes the last session if the server supports it."""

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
        """Process bytes from the network and return the decrypted bytes. Raises ssl.SSLError."""
        chunks: list[bytes] = []
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            self._incoming.write(view[start : start + CHUNK_BYTES])
            if self.is_established or self._do_handshake():
                self._read_records(chunks)
        if chunks and self._sessions is not None:
            # The server sends the session ticket after the handshake, before its first bytes.
            self._save_session(self._sessions)
            self._sessions = None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _read_records(self, chunks: list[bytes]) -> None:
        try:
            # An additional read without pending bytes costs as much as a successful read.
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
        """Store the session, unless this connection resumed the stored one: storing costs as much as a request."""
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
        """Start the handshake. A client's first bytes are in `take_outgoing`."""
        self._do_handshake()

    def encrypt_data(self, data: bytes | memoryview) -> None:
        """Encrypt bytes. The result is in `take_outgoing`."""
        view = memoryview(data)
        while view:
            view = view[self._session.write(view) :]

    def encrypt_close_notify(self) -> None:
        """Produce the close_notify, which ends the sent bytes. The result is in `take_outgoing`."""
        with contextlib.suppress(ssl.SSLError):  # unwrap would wait for the peer's close_notify
            self._session.unwrap()

    def take_outgoing(self) -> bytes:
        """Return the bytes to send, and remove them from the engine."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def peer_certificate(self) -> bytes | None:
        """Return the peer's verified certificate (DER), or None."""
        return self._session.getpeercert(binary_form=True)

    def peer_names(self) -> dict[str, Any]:
        """Return the fields of the peer's verified certificate, in the ssl module's form. Empty without certificate."""
        return cast("dict[str, Any]", self._session.getpeercert() or {})
