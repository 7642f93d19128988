"""How many cores one program of the platform uses at once: they all share one machine, and none may take all of it."""

from __future__ import annotations

import os
from typing import Final

_SHARE: Final = 2


def limit_cores() -> dict[str, str]:
    """The variable by which a Go program keeps to half of the cores that this process may use, one at least.

    What has more of them looks for work on those, wakes up others for it and collects garbage there, so that the same
    work takes more CPU: on two cores etcd a sixth and an API server a tenth.
    """
    return {"GOMAXPROCS": str(max(1, len(os.sched_getaffinity(0)) // _SHARE))}
