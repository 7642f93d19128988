"""Protocol between client and supervisor: one line of JSON in each direction over a Unix socket."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from vkgateway.programs.supervisor.spec import ProcessSpec, ProcessState

LINE_LIMIT = 4 * 1024 * 1024
"""Maximum length of a request or answer, in bytes."""

_SUN_PATH = 100
"""Linux allows 107 bytes for a socket's path; the rest is for a temporary suffix."""


class Ensure(msgspec.Struct, frozen=True, tag="ensure"):
    """Start a process and keep it running."""

    spec: ProcessSpec


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Stop and forget a process, or with `group` everything below the name."""

    name: str
    group: bool = False


class ListProcesses(msgspec.Struct, frozen=True, tag="list"):
    """List the processes at or below a prefix."""

    prefix: str = ""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Stop everything in order, then the supervisor itself."""


Request = Ensure | Remove | ListProcesses | Shutdown


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a request: the states of its processes, or the reason of the refusal."""

    processes: list[ProcessState] = []
    error: str = ""


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """Yield a name for the socket `path` that is short enough for a socket address within the block.

    A path too long for `sun_path` (unix(7)) is addressed through an open descriptor of its directory.
    """
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
