"""The page's files, compressed and with their tags in memory."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from vkgateway.kubelet.http import Reply, Request

CONTENT_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
"""By suffix; files with another suffix are not served."""
SECURITY_HEADERS: Final = (
    (
        "content-security-policy",
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'",
    ),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
_INDEX: Final = "index.html"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file, plain and compressed with gzip."""

    content_type: str
    plain: bytes
    zipped: bytes
    tag: str


def load_files() -> dict[str, StaticFile]:
    """Return the page's files by their path below `/ui/`; the empty path is the start."""
    found = {path: _load(file, path) for path, file in _walk(resources.files("vkgateway.page") / "static", "")}
    return {**found, "": found[_INDEX]} if _INDEX in found else found


def reply_file(file: StaticFile, request: Request) -> Reply:
    """Return the reply to a GET request, without a body if the browser has the file."""
    headers = (("etag", file.tag), ("cache-control", "no-cache"), ("vary", "accept-encoding"), *SECURITY_HEADERS)
    if file.tag in request.header("if-none-match"):
        return Reply(304, b"", file.content_type, headers)
    if "gzip" in request.header("accept-encoding"):
        return Reply(200, file.zipped, file.content_type, (("content-encoding", "gzip"), *headers))
    return Reply(200, file.plain, file.content_type, headers)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in CONTENT_TYPES:
            yield f"{prefix}{entry.name}", entry


def _load(file: Traversable, path: str) -> StaticFile:
    plain = file.read_bytes()
    return StaticFile(
        content_type=CONTENT_TYPES[path.rpartition(".")[2]],
        plain=plain,
        zipped=gzip.compress(plain, mtime=0),
        tag=f'"{hashlib.sha256(plain).hexdigest()[:32]}"',
    )
