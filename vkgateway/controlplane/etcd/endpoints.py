"""Where etcd is, and how a client proves itself there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from vkgateway.model.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """What a client needs to be known to etcd: PEM of the server's authority, and its own pair."""

    ca: bytes
    cert: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Tls(...)"


def grpc_targets(endpoints: Sequence[str]) -> list[str]:
    """HOST:PORT of each endpoint, given as https://HOST:PORT. Raises InputError for others, and for none at all."""
    if not endpoints:
        raise InputError("no etcd endpoint is given", hint="give at least one, as https://HOST:PORT")
    return [_parse_target(endpoint) for endpoint in endpoints]


def _parse_target(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme != "https" or not parts.netloc:
        raise InputError(f"etcd endpoint {endpoint!r} is not an https address", hint="write https://HOST:PORT")
    return parts.netloc
