"""The renewal as a program: `python -m vkgateway_platform.embedded.renewal DATA_DIR` checks once a day.

Each check is a separate program. So little memory is used between checks, and each check runs the vkgateway that is
installed then.
"""

import subprocess
import sys
import time

FIRST = 3600.0
"""Seconds from the start to the first check; `up` renews certificates at the start."""
DAILY = 24 * 3600.0
AGAIN = 3600.0
"""Seconds to the next check after a failure, or while `up` or `down` runs."""


def main(data_dir: str) -> None:
    """Renew the certificates of the platform in `data_dir` until killed."""
    pause = FIRST
    while True:
        time.sleep(pause)
        command = [sys.executable, "-m", "vkgateway_platform.embedded.renewal.once", data_dir]
        pause = DAILY if subprocess.run(command, check=False).returncode == 0 else AGAIN


if __name__ == "__main__":
    main(sys.argv[1])
