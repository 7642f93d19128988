"""The renewal as a program: `python -m vkgateway.local.renewal DATA_DIR` looks once a day, and sleeps.

Each look is a program of its own, so that between two of them next to nothing is kept in memory; and it is that of the
vkgateway which is installed then.
"""

import subprocess
import sys
import time

FIRST = 3600.0
"""Seconds from the start, for which `up` is responsible, to the first look."""
DAILY = 24 * 3600.0
AGAIN = 3600.0
"""Seconds to the next look after one that failed, or found `up` or `down` at work."""


def main(data_dir: str) -> None:
    """Look after the certificates of the platform in `data_dir` until killed."""
    pause = FIRST
    while True:
        time.sleep(pause)
        look = [sys.executable, "-m", "vkgateway.local.renewal.once", data_dir]
        pause = DAILY if subprocess.run(look, check=False).returncode == 0 else AGAIN


if __name__ == "__main__":
    main(sys.argv[1])
