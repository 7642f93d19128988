"""The hollow kubelet as a program: `python -m vkgateway_platform.embedded.hollow.kubelet DATA_DIR PORT`."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from pathlib import Path

from vkgateway.kube.client import Client
from vkgateway.nodes.listener import HttpListener
from vkgateway_platform.embedded.hollow.kubelet import process
from vkgateway_platform.embedded.hollow.kubelet.endpoint import Endpoint
from vkgateway_platform.embedded.hollow.kubelet.tenant_cgroups import TenantCgroups
from vkgateway_platform.embedded.paths import PlatformPaths

_CONNECTIONS = 4096
_PATIENCE = 120.0


def server_context(paths: PlatformPaths) -> ssl.SSLContext:
    """Return TLS settings that accept certificates of the compute cluster's CA only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(process.authority_path(paths))
    context.load_cert_chain(process.certificate_path(paths), process.key_path(paths))
    return context


async def _run(paths: PlatformPaths, port: int) -> None:
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    async with (
        Client.from_kubeconfig(paths.admin_kubeconfig, name="the compute cluster", max_connections=64) as client,
        TenantCgroups(paths.data_dir) as cgroups,
    ):
        endpoint = Endpoint(client, caller=process.CALLER, cgroups=cgroups)
        listener = HttpListener(
            endpoint.answer,
            name="hollow kubelet",
            tls=server_context(paths),
            connections=_CONNECTIONS,
            per_address=_CONNECTIONS,  # the only client is the compute cluster's API server
            idle_timeout=_PATIENCE,
        )
        async with listener:
            await listener.listen_tcp(process.HOST, port)
            await stopped.wait()


if __name__ == "__main__":
    asyncio.run(_run(PlatformPaths(Path(sys.argv[1])), int(sys.argv[2])))
