"""Archive of a bundle: files of text, and the index that lists them (pure, except for `write_archive`)."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.errors import ConflictError

INDEX: Final = "index.json"


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One file of the bundle, or why there is none."""

    file: str
    content: str
    """What the file has, in words."""
    items: int | None = None
    """Number of objects or lines; None: the file has no list."""
    problem: str = ""
    """Why it could not be read; then the bundle does not contain it."""
    steps: tuple[str, ...] = ()
    """What helps."""


class BundleFile(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of the index, and the text of the file; None if it could not be read."""

    entry: IndexEntry
    text: str | None = None


class Index(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Content of the index."""

    created: str
    """RFC 3339."""
    program: str
    kind: str
    """tenant or management."""
    messages: bool
    """Whether the bundle contains free text of other programs."""
    left_out: tuple[str, ...]
    """What a bundle never contains."""
    files: tuple[IndexEntry, ...]


LEFT_OUT: Final = (
    "Secrets, ConfigMaps, kubeconfigs, tokens, certificates and keys",
    "environment, commands, arguments, probes and volumes of containers",
    "values of unknown labels and annotations, last-applied-configuration",
    "paths of URLs",
    "logs of tenants' pods",
    "messages that vkgateway does not compose itself, unless they were asked for",
)


def without_secrets(files: Iterable[BundleFile], secrets: Sequence[str]) -> list[BundleFile]:
    """Return the files; one that contains a credential of the caller is left out, as a last line of defence."""
    known = [secret for secret in secrets if secret]
    return [
        msgspec.structs.replace(
            file, text=None, entry=msgspec.structs.replace(file.entry, problem="it would contain a credential")
        )
        if file.text is not None and any(secret in file.text for secret in known)
        else file
        for file in files
    ]


def pack(files: Sequence[BundleFile], index: Index, *, folder: str, now: float) -> bytes:
    """Return the gzipped tar archive, the index first. All files have the time `now`, in seconds since the epoch."""
    text = msgspec.json.format(msgspec.json.encode(index), indent=2).decode() + "\n"
    packed = [(INDEX, text), *((file.entry.file, file.text) for file in files if file.text is not None)]
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=now) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in packed:
            data = content.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(data), int(now), 0o600
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def write_archive(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read. Raises ConflictError if it exists, OSError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConflictError(f"{path} exists", hint="Give another file with -o FILE, or delete it.") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
