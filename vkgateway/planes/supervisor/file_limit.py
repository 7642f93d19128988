"""Limit on open files, above all connections."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_UNLIMITED: Final = 1 << 30


def raise_file_limit() -> int:
    """Raise the soft limit to the hard one, which child processes inherit; return the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft
