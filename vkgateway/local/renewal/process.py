"""The renewal among the platform's processes."""

from __future__ import annotations

import sys

from vkgateway.local.paths import PlatformPaths
from vkgateway.programs.supervisor.spec import ProcessSpec

NAME = "renewal"
# Before all that it would start anew.
_STOP_RANK = 95


def process_spec(paths: PlatformPaths) -> ProcessSpec:
    """Describe the process."""
    return ProcessSpec(
        name=NAME,
        argv=(sys.executable, "-m", "vkgateway.local.renewal", str(paths.data_dir)),
        stop_rank=_STOP_RANK,
        stop_timeout=5.0,
        batch=True,
    )
