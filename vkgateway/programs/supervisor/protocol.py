"""How client and supervisor talk: one line of JSON each way over a Unix socket."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from vkgateway.programs.supervisor.spec import ProcessSpec, ProcessState

LINE_LIMIT = 4 * 1024 * 1024
"""The longest request or answer, in bytes."""

_SUN_PATH = 100
"""Linux allows 107 bytes for a socket's path; the rest is left for a temporary suffix."""


class Ensure(msgspec.Struct, frozen=True, tag="ensure"):
    """Keep this process running."""

    spec: ProcessSpec


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Stop and forget a process, or with `group` everything below the name."""

    name: str
    group: bool = False


class Restart(msgspec.Struct, frozen=True, tag="restart"):
    """Stop a process and start it again at once."""

    name: str


class ListProcesses(msgspec.Struct, frozen=True, tag="list"):
    """Tell the processes below a prefix."""

    prefix: str = ""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Stop everything in order, then the supervisor itself."""


Request = Ensure | Remove | Restart | ListProcesses | Shutdown


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a request: the processes concerned, or why it was refused."""

    processes: list[ProcessState] = []
    error: str = ""
    missing: bool = False
    """The refusal is that no process has that name."""


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """A name for the socket `path` that fits into a socket address while the block runs.

    A path too long for `sun_path` (unix(7)) is reached through an open descriptor of its folder.
    """
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
