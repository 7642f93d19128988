"""The page's files, compressed and with their tags in memory.

The start page names the other files below a folder that is a hash of all of them, so browsers keep them without asking:
60 questions would take longer than everything else. Comments of scripts are a tenth of the page, and are not sent.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from vkgateway.nodes.http import Reply, Request

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
_ASK: Final = "no-cache"
_KEEP: Final = "public, max-age=31536000, immutable"
_FOREIGN: Final = "vendor/"
_COMMENT_LINES: Final = re.compile(r"^[ ]*(?://.*|/\*\*(?:(?!\*/)[\s\S])*\*/)$", re.MULTILINE)
_VERSION: Final = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file, plain and compressed with gzip."""

    content_type: str
    plain: bytes
    zipped: bytes
    tag: str
    caching: str = _ASK
    """Value of the header `Cache-Control`."""


def load_files() -> dict[str, StaticFile]:
    """Return the page's files by their path below `/ui/`, also below the folder of their version. Empty: the start."""
    files = resources.files("vkgateway.page") / "static"
    found = {path: _compress(_sent_part(file.read_bytes(), path), path) for path, file in _walk(files, "")}
    version = _version_of(found)
    start = found[_INDEX] = _compress(_with_version(found.pop(_INDEX).plain, version, found), _INDEX)
    kept = {f"{version}/{path}": replace(file, caching=_KEEP) for path, file in found.items() if path != _INDEX}
    return {**found, **kept, "": start}


def find_file(files: Mapping[str, StaticFile], path: Sequence[str]) -> StaticFile | None:
    """Return the file at a path below `/ui/`; of another version, as while gateways are replaced, the current file."""
    file = files.get("/".join(path))
    if file is None and len(path) > 1 and _VERSION.fullmatch(path[0]):
        return files.get("/".join(path[1:]))
    return file


def reply_file(file: StaticFile, request: Request) -> Reply:
    """Return the reply to a GET request, without a body if the browser has the file."""
    headers = (("etag", file.tag), ("cache-control", file.caching), ("vary", "accept-encoding"), *SECURITY_HEADERS)
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


def _sent_part(content: bytes, path: str) -> bytes:
    """Return a file without the comments of own scripts that fill lines. The lines stay, empty, for their numbers."""
    if not path.endswith(".js") or path.startswith(_FOREIGN):
        return content
    return _COMMENT_LINES.sub(lambda match: "\n" * match[0].count("\n"), content.decode()).encode()


def _version_of(files: Mapping[str, StaticFile]) -> str:
    """Return a text that changes with any file."""
    return hashlib.sha256("".join(f"{path} {files[path].tag}\n" for path in sorted(files)).encode()).hexdigest()[:16]


def _with_version(page: bytes, version: str, files: Mapping[str, StaticFile]) -> bytes:
    """Return a page whose attributes `href` and `src` name these files below the folder of the version."""

    def add_version(match: re.Match[str]) -> str:
        path = match[2]
        return f'{match[1]}="{version}/{path}"' if path in files else match[0]

    return re.sub(r'\b(href|src)="([^"]*)"', add_version, page.decode()).encode()


def _compress(plain: bytes, path: str) -> StaticFile:
    return StaticFile(
        content_type=CONTENT_TYPES[path.rpartition(".")[2]],
        plain=plain,
        zipped=gzip.compress(plain, mtime=0),
        tag=f'"{hashlib.sha256(plain).hexdigest()[:32]}"',
    )
