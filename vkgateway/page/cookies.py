"""Session cookies: the reader's token and tenant, encrypted with a key that all replicas of the gateway share.

No replica stores sessions, so they outlive a restart and a change of the leader. The token decides on every request.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vkgateway.kube.clock import SYSTEM_CLOCK, Clock

COOKIE: Final = "vkgateway-session"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""Name over HTTPS: browsers accept it from this host only, not from its subdomains, and not over HTTP."""
KEY_HEADER: Final = "x-vkgateway-session"
"""Header with the session's key, which the page keeps in the storage of its origin, by address and port.

Every port of the host receives the cookie. Without the key, the cookie opens nothing.
"""
LIFETIME: Final = 12 * 3600
"""Seconds after which a reader must sign in again, even if the token is valid for longer."""
MOST_COOKIE_BYTES: Final = 4000
"""Browsers ignore cookies above 4,096 bytes."""
_PURPOSE: Final = b"vkgateway page session"
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 16


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Bearer token, and the tenant whose API server knows it; empty: the management cluster. `repr` hides the token."""

    token: str
    tenant: str = ""
    until: float = 0.0
    """End of the session in seconds since the epoch; 0: the token was sent with the request."""
    key: str = ""
    """Key of the session; empty without one."""

    def __repr__(self) -> str:
        return f"Credentials(tenant={self.tenant!r})"


class CookieSealer:
    """Encryption of session cookies. `secret` is secret to the gateway's replicas, such as a private key."""

    def __init__(self, secret: bytes, *, clock: Clock = SYSTEM_CLOCK) -> None:
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(secret)
        self._cipher = AESGCM(key)
        self._clock = clock

    def seal(self, token: str, tenant: str) -> tuple[str, Credentials]:
        """Return the value of a cookie for a new session, and its credentials."""
        until = self._clock.time() + LIFETIME
        credentials = Credentials(token=token, tenant=tenant, until=until, key=secrets.token_urlsafe(_KEY_BYTES))
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, msgspec.json.encode(credentials), _PURPOSE)
        # Some clients quote values with the padding `=`.
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("="), credentials

    def open(self, value: str, *, key: str) -> Credentials | None:
        """Return the credentials of a cookie; None if it is not valid or too old, or if the key is another one."""
        try:
            data = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
            plain = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _PURPOSE)
            credentials = msgspec.json.decode(plain, type=Credentials)
        except (binascii.Error, ValueError, InvalidTag, msgspec.DecodeError):
            return None
        is_right = secrets.compare_digest(key.encode(), credentials.key.encode())
        return credentials if credentials.key and is_right and credentials.until > self._clock.time() else None


def read_cookie(header: str, *, secure: bool) -> str:
    """Return the session's value in a Cookie header, or an empty string."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == (SECURE_COOKIE if secure else COOKIE):
            return value
    return ""


def cookie_header(value: str, *, secure: bool) -> str:
    """Return the Set-Cookie header of a session; an empty value removes the cookie."""
    age = LIFETIME if value else 0
    name, suffix = (SECURE_COOKIE, "; Secure") if secure else (COOKIE, "")
    return f"{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{suffix}"
