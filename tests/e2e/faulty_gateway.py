"""Gateway with faults that a test switches on: a file in a directory is a fault, which lasts until the file is deleted.

The program is the shipped one. Faults are bugs and overload that no input is known to cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.e2e.cluster import Platform, eventually
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway.runtime.requests import ReconcileRequest
from vkgateway.runtime.workqueue import FairQueue
from vkgateway.scheduler.service import arbitration
from vkgateway.settings import config
from vkgateway.settings import file as settingsfile
from vkgateway.settings.config import LeaderElection
from vkgateway.tenants import control_plane_reconciler

ROOT = Path(__file__).parents[2]
FOLDER = "VKGATEWAY_TEST_FAULTS"
"""Variable with the directory of faults."""
SLOW, STUCK, DEFECT = "slow", "stuck", "defect"
"""Faults of a scheduling cycle: it takes 3 s, it does not end, it raises an error."""
HELD = "held"
"""Fault of the workers of reconciliation: they take no new object."""
_SLOW_SECONDS = 3.0


class Faults:
    """The faults of a running gateway."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def having(self, fault: str) -> Iterator[None]:
        """Let the gateway have a fault in the block."""
        file = self._folder / fault
        file.touch()
        try:
            yield
        finally:
            file.unlink()


def restart_with_faults(platform: Platform, folder: Path, **settings: msgspec.Struct) -> Faults:
    """Replace the gateway of a platform by one with faults, and return them. `settings` are sections that differ.

    It renews its Lease at the default times. Those of the embedded platform are longer.
    """
    folder.mkdir(exist_ok=True)
    current = gateway_settings(platform)
    changed = {"leader_election": LeaderElection(), **settings}
    file = folder.with_suffix(f".{len(settings)}.yaml")
    file.write_text(settingsfile.render_settings(msgspec.structs.replace(current, **changed)))
    spec = ProcessSpec(
        name="gateway",
        argv=(sys.executable, "-m", "tests.e2e.faulty_gateway", "serve", "--config", str(file)),
        env={FOLDER: str(folder), "PYTHONPATH": str(ROOT)},
        stop_rank=95,
        stop_timeout=20.0,
    )
    former = platform.processes()["gateway"]["pid"]
    asyncio.run(SupervisorClient.for_data_dir(platform.data_dir).ensure_process(spec))
    eventually(lambda: platform.processes()["gateway"]["pid"] not in (None, former), what="another gateway")
    eventually(lambda: platform.try_vkgateway("queue").code == 0, what="the gateway schedules")
    return Faults(folder)


def gateway_settings(platform: Platform) -> config.Config:
    """Return the settings of a platform's gateway, as the platform has written them."""
    return settingsfile.load_settings(platform.data_dir / "gateway.yaml", environment={})


def datastore_settings(platform: Platform) -> config.Datastore:
    """Return the settings of the datastore that a platform's gateway has."""
    return gateway_settings(platform).datastore


def _install_faults(folder: Path) -> None:
    create = arbitration.incremental_decide

    def incremental_decide() -> arbitration.Decide:
        decide = create()

        def faulty_decide(*args: object) -> object:
            while (folder / STUCK).exists():
                time.sleep(0.1)
            if (folder / SLOW).exists():
                time.sleep(_SLOW_SECONDS)
            if (folder / DEFECT).exists():
                raise RuntimeError("a defect that a test switched on")
            return decide(*args)  # type: ignore[arg-type]

        return faulty_decide  # type: ignore[return-value]

    arbitration.incremental_decide = incremental_decide
    get = FairQueue.get

    async def faulty_get(queue: FairQueue[Any]) -> tuple[str, Any]:
        while True:
            found = await get(queue)
            if not (folder / HELD).exists() or not isinstance(found[1], ReconcileRequest):
                return found
            queue.done(*found)
            queue.add(*found)
            await asyncio.sleep(0.1)

    FairQueue.get = faulty_get  # type: ignore[method-assign, assignment]


def _shorten_renewals() -> None:
    """Check certificates of control planes every ten seconds, and report failures at once.

    Shipped: every day, after a failure every ten minutes, and a report after a day.
    """
    control_plane_reconciler.FIRST_RENEWAL_SECONDS = 10.0
    control_plane_reconciler.RENEW_SECONDS = 10.0
    control_plane_reconciler.RENEW_RETRY_SECONDS = 10.0
    control_plane_reconciler.RENEWAL_GRACE_SECONDS = 0.0


if __name__ == "__main__":
    from vkgateway.cli.main import main

    _install_faults(Path(os.environ[FOLDER]))
    _shorten_renewals()
    main()
