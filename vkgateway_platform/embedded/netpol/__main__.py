"""The enforcement of NetworkPolicies as a program: `python -m vkgateway_platform.embedded.netpol KUBECONFIG SITE`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from vkgateway.kube.client import Client
from vkgateway_platform.embedded.netpol.calls import serve_calls
from vkgateway_platform.embedded.netpol.cluster_state import Site
from vkgateway_platform.embedded.netpol.enforcer import Enforcer
from vkgateway_platform.embedded.netpol.plugin import SOCKET
from vkgateway_platform.embedded.realnode.host import run_command


async def _load_rules(text: str) -> None:
    await asyncio.to_thread(run_command, "nft", "-f", "-", stdin=text)


async def _run(kubeconfig: Path, site: Site) -> None:
    task = asyncio.current_task()
    assert task is not None
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, task.cancel)
    async with Client.from_kubeconfig(kubeconfig, name="the compute cluster", max_connections=8) as client:
        enforcer = Enforcer(client, site, load=_load_rules)
        try:
            async with serve_calls(enforcer, Path(SOCKET)):
                await enforcer.run()
        except asyncio.CancelledError:
            return


if __name__ == "__main__":
    os.umask(0o077)
    asyncio.run(_run(Path(sys.argv[1]), msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Site)))
