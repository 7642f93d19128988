"""Fetches or builds the programs of the platform and the tests; the first time takes minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vkgateway_platform.binaries.catalogue import CORE_PROGRAMS, unit_of
from vkgateway_platform.embedded.real_node_steps import why_no_real_node
from vkgateway_platform.embedded.realnode.options import PROGRAMS as REAL_NODE


def main() -> int:
    """Fetch missing programs and return the exit code."""
    why_not = why_no_real_node("auto")
    if why_not:
        print(
            f"programs: skipping those of the real node, which this machine does not support: {why_not}",
            file=sys.stderr,
        )
    names = [*CORE_PROGRAMS, *(() if why_not else [*REAL_NODE, *unit_of("e2e.test").packages])]
    vkgateway = Path(sys.executable).with_name("vkgateway")
    fetch = [str(vkgateway), "binaries", "fetch", *names]
    return subprocess.run(fetch, stdout=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
