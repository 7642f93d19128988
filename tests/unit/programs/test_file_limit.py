"""Limit on a process's open files."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from vkgateway.planes.supervisor.file_limit import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_soft_limit_is_raised_to_the_hard_limit() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["200", "200", "200"]
