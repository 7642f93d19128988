"""Names of Unix sockets that fit into a socket address."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_SUN_PATH = 100
"""Linux allows 107 bytes for a socket's path; the rest is for a temporary suffix."""


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
