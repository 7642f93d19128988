"""The bytes of requests to one API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from vkgateway.kube.quoting import quote_url_part
from vkgateway.model.errors import InputError
from vkgateway.model.names import FIELD_MANAGER
from vkgateway.version import __version__

Params = Mapping[str, str | int | bool]

JSON: Final = "application/json"
_METADATA_ONLY: Final = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {JSON}"
"""Asks for no more of an object than its metadata (Kubernetes API concepts, "Metadata-only fetches"): what was written
need be neither encoded, sent nor read again."""
_HEADERS: Final = {
    "User-Agent": f"{FIELD_MANAGER}/{__version__}",
    "Accept": JSON,
    # API servers would otherwise spend CPU on compressing lists for us to spend CPU on inflating them.
    "Accept-Encoding": "identity",
}


class ServerUrl(NamedTuple):
    """The parts of a server's URL; `authority` is what the Host header says."""

    scheme: str
    host: str
    port: int
    authority: str
    prefix: str


class RequestBuilder:
    """Writes requests to the server at `url`. Raises InputError where that is none."""

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
        """A whole request. Raises InputError where `path` is not absolute and percent-encoded."""
        place = self.server_url
        target = f"{place.prefix}{path}?{_render_query(params)}" if params else place.prefix + path
        if not (target.isascii() and target.isprintable() and " " not in target):
            raise InputError(f"{target!r} is no percent-encoded path")
        head = f"{method} {target} HTTP/1.1\r\n{self._metadata_head if metadata_only else self._head}"
        if token:
            head += f"Authorization: Bearer {token}\r\n"
        if body is not None:
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        elif method not in ("GET", "DELETE"):
            head += "Content-Length: 0\r\n"
        return f"{head}\r\n".encode() + (body or b"")


def _parse_url(server: str) -> ServerUrl:
    """Take a server's URL apart. Raises InputError."""
    try:
        base = urlsplit(server)
        host, port = base.hostname or "", base.port
        host = host.encode("idna").decode()  # raises for what no resolver would look for
    except ValueError as error:
        raise InputError(f"{server!r} is no URL of an API server: {error}") from error
    if base.scheme not in ("http", "https") or not host:
        raise InputError(f"{server!r} is no URL of an API server", hint="https://host:port is one")
    authority = f"[{host}]" if ":" in host else host
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
