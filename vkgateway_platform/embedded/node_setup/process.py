"""The process that sets up the real node, and its state for `vkgateway status`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from vkgateway.planes.supervisor.logs import last_lines
from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.realnode.processes import GROUP

NAME = f"{GROUP}/setup"
IN_PROGRESS = f"joins when its programs are ready; `vkgateway logs -f {NAME}` shows the progress"
"""What users are told instead of the node's state."""
FAILED = "error: "
"""Start of the line that the process logs after a failure, until its next attempt."""
# It stops before all that it would start.
_STOP_RANK = 95
_PREFIXES = ("GO", "PIP_", "SSL_CERT_", "VKGATEWAY_PROGRAM_DIR")


def process_spec(paths: PlatformPaths) -> ProcessSpec:
    """Return the spec of the process, with the settings of downloads and builds of the user's environment."""
    return ProcessSpec(
        name=NAME,
        argv=(sys.executable, "-m", "vkgateway_platform.embedded.node_setup", str(paths.data_dir)),
        env=download_settings(os.environ),
        stop_rank=_STOP_RANK,
        stop_timeout=5.0,
        batch=True,
    )


def download_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that select proxies and configure Go and pip; the supervisor passes on none of them."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_PREFIXES) or name.lower().endswith("_proxy")
    }


def find_failure(states: Iterable[ProcessState]) -> str | None:
    """Return why the last attempt failed, empty if none did; None: the process does not exist."""
    state = next((state for state in states if state.name == NAME), None)
    if state is None:
        return None
    try:
        with Path(state.log).open("rb") as log:
            line = last_lines(log, 1).decode(errors="replace").strip()
    except OSError:
        line = ""
    return line.removeprefix(FAILED) if line.startswith(FAILED) else ""
