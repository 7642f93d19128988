"""Limit on the cores that one program of the platform uses, since all programs share the machine."""

from __future__ import annotations

import os
from typing import Final

_SHARE: Final = 2


def limit_cores() -> dict[str, str]:
    """Return the variable that limits a Go program to half of the available cores, at least one.

    A Go program with more cores searches for work on them, wakes them up and collects garbage there. On two cores this
    costs etcd a sixth more CPU time and an API server a tenth.
    """
    return {"GOMAXPROCS": str(max(1, len(os.sched_getaffinity(0)) // _SHARE))}
