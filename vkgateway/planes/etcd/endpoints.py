"""Addresses of etcd, and the client's TLS identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from vkgateway.api.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS identity of an etcd client: PEM of the server's CA and of its own certificate and key."""

    ca: bytes
    cert: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Tls(...)"


def grpc_targets(endpoints: Sequence[str]) -> list[str]:
    """Return HOST:PORT of each endpoint https://HOST:PORT. Raises InputError for other forms, and if there is none."""
    if not endpoints:
        raise InputError("no etcd endpoint is set", hint="Set at least one, as https://HOST:PORT.")
    return [_parse_target(endpoint) for endpoint in endpoints]


def _parse_target(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme != "https" or not parts.netloc:
        raise InputError(f"etcd endpoint {endpoint!r} is not an https address", hint="Use the form https://HOST:PORT.")
    return parts.netloc
