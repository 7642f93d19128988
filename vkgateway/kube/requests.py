"""Encoding of requests to one API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from vkgateway.api.errors import InputError
from vkgateway.api.names import FIELD_MANAGER, host_in_url
from vkgateway.kube.resources import quote_url_part
from vkgateway.version import __version__

Params = Mapping[str, str | int | bool]

JSON: Final = "application/json"
_METADATA_ONLY: Final = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {JSON}"
"""Requests only an object's metadata (Kubernetes API concepts, "Metadata-only fetches"), to save encoding, sending and
decoding the object that the request contained."""
_HEADERS: Final = {
    "User-Agent": f"{FIELD_MANAGER}/{__version__}",
    "Accept": JSON,
    # Compression costs CPU time on both sides, and the network is fast.
    "Accept-Encoding": "identity",
}


class ServerUrl(NamedTuple):
    """The parts of a server's URL. `authority` is the value of the Host header."""

    scheme: str
    host: str
    port: int
    authority: str
    prefix: str


class RequestBuilder:
    """Encoder of requests to the server at `url`. Raises InputError for an invalid URL."""

    def __init__(self, url: str) -> None:
        self.server_url: Final = _parse_url(url)
        self._head: Final = _render_headers({"Host": self.server_url.authority} | _HEADERS)
        self._metadata_head: Final = _render_headers(
            {"Host": self.server_url.authority} | _HEADERS | {"Accept": _METADATA_ONLY}
        )

    def build_request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        metadata_only: bool = False,
        token: str = "",
    ) -> bytes:
        """Return the bytes of a request. Raises InputError unless `path` is absolute and percent-encoded."""
        prefix = self.server_url.prefix
        target = f"{prefix}{path}?{_render_query(params)}" if params else prefix + path
        if not (target.isascii() and target.isprintable() and " " not in target):
            raise InputError(f"{target!r} is not a percent-encoded path")
        head = f"{method} {target} HTTP/1.1\r\n{self._metadata_head if metadata_only else self._head}"
        if token:
            head += f"Authorization: Bearer {token}\r\n"
        if body is not None:
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        elif method not in ("GET", "DELETE"):
            head += "Content-Length: 0\r\n"
        return f"{head}\r\n".encode() + (body or b"")


def _parse_url(server: str) -> ServerUrl:
    """Return the parts of a server's URL. Raises InputError."""
    try:
        base = urlsplit(server)
        host, port = base.hostname or "", base.port
        host = host.encode("idna").decode()  # raises UnicodeError for an invalid host name
    except ValueError as error:
        raise InputError(f"{server!r} is not the URL of an API server: {error}") from error
    if base.scheme not in ("http", "https") or not host:
        raise InputError(f"{server!r} is not the URL of an API server", hint="use https://host:port")
    authority = host_in_url(host)
    return ServerUrl(
        scheme=base.scheme,
        host=host,
        port=port or (443 if base.scheme == "https" else 80),
        authority=authority if port is None else f"{authority}:{port}",
        prefix=quote(base.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
    )


def _render_headers(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _render_query(params: Params) -> str:
    return "&".join(
        f"{key}={quote_url_part(str(value).lower() if isinstance(value, bool) else str(value))}"
        for key, value in params.items()
    )
