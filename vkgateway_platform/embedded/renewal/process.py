"""The process of the renewal."""

from __future__ import annotations

import sys

from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded.paths import PlatformPaths

NAME = "renewal"
# The renewal stops before all that it would restart.
_STOP_RANK = 95


def process_spec(paths: PlatformPaths) -> ProcessSpec:
    """Return the spec of the process."""
    return ProcessSpec(
        name=NAME,
        argv=(sys.executable, "-m", "vkgateway_platform.embedded.renewal", str(paths.data_dir)),
        stop_rank=_STOP_RANK,
        stop_timeout=5.0,
        batch=True,
    )
