"""The setup as a program: `python -m vkgateway_platform.embedded.node_setup DATA_DIR` ends when the real node is ready.

It fetches the node's programs at the lowest priority, then does the steps of `up` that were left out. If a release has
no programs of a node, the platform stays without one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from vkgateway.api.errors import ConflictError, VkgatewayError
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.binaries.errors import UnknownVersionError
from vkgateway_platform.binaries.subprocesses import set_niceness
from vkgateway_platform.embedded import startup
from vkgateway_platform.embedded.node_setup.process import FAILED, NAME

AGAIN = 300.0
"""Seconds to the next attempt after a failure."""
BUSY = 2.0
"""Seconds to the next attempt while `up`, `down` or the renewal works on the platform."""
_LOWEST = 19


class Reporter:
    """Writes each message to the log."""

    def __call__(self, text: str) -> None:
        """Log the current work."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    done = __call__


def main(data_dir: Path) -> None:
    """Add the real node to the platform in `data_dir`, then end for good."""
    while (pause := _attempt(data_dir)) is not None:
        time.sleep(pause)
    # The supervisor restarts a process that ends, so this one asks to be removed.
    asyncio.run(SupervisorClient.for_data_dir(data_dir).remove_process(NAME))


def _attempt(data_dir: Path) -> float | None:
    """Return the seconds to the next attempt; None after success."""
    report = Reporter()
    try:
        set_niceness(_LOWEST)
        try:
            asyncio.run(startup.fetch_node_programs(data_dir, report=report))
        except UnknownVersionError as error:
            report.done(f"no real node: {error}")
            startup.leave_out_real_node(data_dir, reason=f"its programs cannot be had: {error}")
            return None
        set_niceness(0)
        asyncio.run(startup.add_real_node(data_dir, report=report))
    except ConflictError:
        return BUSY
    except VkgatewayError as error:
        minutes = AGAIN / 60
        hint = f" {error.hint}" if error.hint else ""
        sys.stderr.write(f"{FAILED}{error}; the next attempt is in {minutes:.0f} minutes.{hint}\n")
        return AGAIN
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
