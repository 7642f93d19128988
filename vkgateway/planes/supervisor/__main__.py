"""`python -m vkgateway.planes.supervisor --data-dir DIR`: run the supervisor in the foreground."""

import argparse
import asyncio
import gc
import logging
import sys
from pathlib import Path

from vkgateway.planes.supervisor.server import serve, take_lock
from vkgateway.planes.supervisor.spec import SupervisorPaths


def main() -> int:
    """Take the lock and serve until stopped; exit code 4 if another supervisor has the data directory."""
    parser = argparse.ArgumentParser(prog="vkgateway-supervisor", description=__doc__)
    parser.add_argument("--data-dir", required=True, type=Path)
    paths = SupervisorPaths(parser.parse_args().data_dir.resolve())
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    lock = take_lock(paths)
    if lock is None:
        logging.getLogger(__name__).warning("another supervisor has %s", paths.data_dir)
        return 4
    gc.freeze()
    asyncio.run(serve(paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
