"""Gateway whose tenants have simulated API servers: `python -m bench.gatewayalone DIR`.

DIR/servers.json names the servers. The tenant `bench-0007` uses the eighth one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.simulatedservers import FILE, Servers
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.types import Tenant
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kinds.services.platform_service import Endpoint
from vkgateway.kube import kubeconfig
from vkgateway.kube.client import Client
from vkgateway.nodes.identity import server_context
from vkgateway.planes.drivers.base import DriverListener
from vkgateway.planes.etcd.quota import StoreUsage
from vkgateway.planes.pki import Authority
from vkgateway.planes.publication import Publication
from vkgateway.planes.supervisor.file_limit import raise_file_limit
from vkgateway.serve import heap, logs
from vkgateway.serve.addresses import GatewayAddress, connect_management
from vkgateway.serve.daemon import tune_collector
from vkgateway.serve.gateway import Gateway
from vkgateway.serve.health import HealthServer
from vkgateway.settings import config
from vkgateway.tenants.interfaces import ApiServerAccess, OnStep
from vkgateway.tenants.metrics import TRAFFIC

SOCKET: Final = "gateway.sock"
_LOOPBACK: Final = "127.0.0.1"


class SimulatedPlanes:
    """Control planes that exist already."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def template_names(self) -> Collection[str]:
        return ("default",)

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        return self._connect(tenant.metadata.name)

    def _connect(self, name: str) -> ApiServerAccess:
        servers = self._servers
        url = servers.tenants[int(name.rpartition("-")[2])]
        client = Client.from_pem(
            url,
            ca=servers.ca,
            cert=servers.cert,
            key=servers.key,
            name=f"tenant {name}",
            streaming_lists=False,
            single_server=True,
            traffic=TRAFFIC["tenant"],
        )
        return ApiServerAccess(client=client, url=url, host=_LOOPBACK, port=int(url.rpartition(":")[2]))

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> ApiServerAccess:  # noqa: ARG002 - the protocol's
        return self._connect(tenant.metadata.name)

    async def api_server_endpoints(
        self,
        tenant: str,  # noqa: ARG002 - the protocol's
        cluster: ClusterIdentity,  # noqa: ARG002
        *,
        listening: Endpoint,  # noqa: ARG002
    ) -> Collection[Endpoint]:
        return ()

    async def run(self, listener: DriverListener) -> None:
        """Do nothing."""

    async def check_publication(
        self,
        tenant: Tenant,  # noqa: ARG002 - the protocol's
        access: ApiServerAccess,
    ) -> Publication:
        return Publication(url=access.url)

    async def restore_kept_objects(self, tenant: Tenant, access: ApiServerAccess) -> None:
        """Do nothing."""

    async def stop(self, name: str) -> None:
        """Nothing to stop."""

    async def remove(self, name: str, *, on_step: OnStep) -> None:
        """Do nothing."""


class EmptyDatastore:
    """Datastore without usage."""

    blocked: Mapping[str, int] = {}

    async def check_usage(self, *, exempt: Collection[str]) -> StoreUsage:  # noqa: ARG002 - the protocol's
        return StoreUsage(in_use=0, file_size=0, quota=8 * 2**30)


def main(folder: Path) -> None:
    """Run until killed."""
    logs.configure_logging(config.Logging(level="warning"))
    tune_collector()
    heap.mmap_large_blocks()
    files = raise_file_limit()
    servers = msgspec.json.decode((folder / FILE).read_bytes(), type=Servers)
    uvloop.run(_run_gateway(folder, servers, files=files))


async def _run_gateway(folder: Path, servers: Servers, *, files: int) -> None:
    kubeconfig.write_file(folder / "config", kubeconfig.build_document("management", server=servers.management, ca=""))
    settings = config.Config(
        data_dir=str(folder),
        management_cluster=config.ManagementCluster(kubeconfig=str(folder / "config")),
        kubelet=config.Kubelet(port=0),
    )
    address = GatewayAddress(listen=_LOOPBACK, advertised=_LOOPBACK)
    health = HealthServer(address=_LOOPBACK, port=0, checks={}, socket=folder / SOCKET)
    authority = Authority.create("simulated kubelets")
    pair = authority.issue("vkgateway", ips=(_LOOPBACK,), server=True)
    tls = server_context(ca=authority.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
    async with health, connect_management(settings, name="the management cluster") as management:
        gateway = Gateway(
            settings,
            management=management,
            clusters=ComputeClusters(management, GatewayIdentity("bench")),
            planes=SimulatedPlanes(servers),
            datastore=EmptyDatastore(),
            tls=tls,
            address=address,
            files=files,
        )
        leading = asyncio.Event()
        leading.set()
        await gateway.run(health, leading=leading, prepare=_prepare_nothing)


async def _prepare_nothing() -> None:
    """Accept the simulated management cluster as it is."""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
