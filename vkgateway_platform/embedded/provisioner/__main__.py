"""The provisioner as a program: `python -m vkgateway_platform.embedded.provisioner KUBECONFIG DIRECTORY`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from vkgateway.kube.client import Client
from vkgateway_platform.embedded.provisioner.controller import VolumeProvisioner


async def _run(kubeconfig: Path, directory: Path) -> None:
    task = asyncio.current_task()
    assert task is not None
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, task.cancel)
    async with Client.from_kubeconfig(kubeconfig, name="the compute cluster", max_connections=4) as client:
        try:
            await VolumeProvisioner(client, directory).run()
        except asyncio.CancelledError:
            return


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]), Path(sys.argv[2])))
