"""How many files a process may open."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from vkgateway.programs.file_limit import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["200", "200", "200"]
