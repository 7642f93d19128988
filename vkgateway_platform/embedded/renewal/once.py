"""One check of the platform's certificates: `python -m vkgateway_platform.embedded.renewal.once DATA_DIR`."""

from __future__ import annotations

import asyncio
import datetime
import sys
from pathlib import Path

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.embedded.renewal.certificates import renew_certificates


def main(data_dir: Path) -> int:
    """Check once, print the result if there is one, and return the exit code; 1 if another check is due soon."""
    now = datetime.datetime.now(datetime.UTC)
    try:
        renewed = asyncio.run(renew_certificates(data_dir, supervisor=SupervisorClient.for_data_dir(data_dir), now=now))
    except VkgatewayError as error:
        sys.stderr.write(f"{now:%Y-%m-%d %H:%M:%S} error: certificates were not looked at: {error}\n")
        return 1
    if renewed:
        sys.stderr.write(f"{now:%Y-%m-%d %H:%M:%S} certificates renewed: {', '.join(renewed)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
