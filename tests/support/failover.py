"""Two gateway processes with the same management cluster, to stop, freeze and cut off the one that leads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import wait_until
from tests.support.wire import Wire, Write
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.kube import kubeconfig
from vkgateway.kube.resources import COMPUTE_CLUSTERS, LEASES, NAMESPACES, NODES, PODS, TENANTS
from vkgateway.kube.tls import client_context
from vkgateway.nodes.identity import CN_PREFIX
from vkgateway.planes.pki import Authority
from vkgateway.serve.certificate_authority import ensure_authority
from vkgateway.settings import config
from vkgateway.settings import file as settingsfile

TENANT = "alpha"
NODE = "cpu.local"
_ROOT = Path(__file__).parents[2]


@dataclass
class Replica:
    """One gateway process, and the proxies through which it reaches the API servers."""

    name: str
    folder: Path
    settings: config.Config
    management: Wire
    tenant: Wire
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        file = self.folder / "gateway.yaml"
        file.write_text(settingsfile.render_settings(self.settings))
        command = (sys.executable, "-m", "tests.support.replica", str(file), f"{TENANT}={self.tenant.url}")
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, cwd=_ROOT, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(_ROOT)}
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.signal(signal.SIGKILL)
            await self.process.wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def writes(self) -> list[Write]:
        """All writes of this replica except those to the leader's Lease."""
        own = f"/namespaces/{SYSTEM_NAMESPACE}/leases"
        found = [*self.management.writes, *self.tenant.writes]
        return [write for write in found if own not in write.path]

    async def readyz(self) -> str:
        connector = aiohttp.UnixConnector(str(self.folder / "run/gateway.sock"))
        try:
            async with (
                aiohttp.ClientSession("http://gateway", connector=connector) as session,
                session.get("/readyz") as answer,
            ):
                return await answer.text()
        except aiohttp.ClientError:
            return ""

    async def ask_kubelet(self, path: str, authority: Authority) -> tuple[int, str]:
        """Ask the kubelet endpoint as the tenant's API server, and return status and text."""
        # A replica knows its role before its endpoint listens.
        found = await wait_until(lambda: re.search(r"kubelet endpoint listens +address=(\S+) port=(\d+)", self.log))
        pair = authority.issue(f"{CN_PREFIX}{TENANT}", client=True)
        tls = client_context(ca=authority.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
        url = f"https://{found[1]}:{found[2]}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=tls) as answer:
            return answer.status, await answer.text()

    def drop_packets(self) -> None:
        for wire in (self.management, self.tenant):
            wire.drop()

    def restore_packets(self) -> None:
        for wire in (self.management, self.tenant):
            wire.restore()


class World:
    """Management cluster, which is also the compute cluster, one tenant, and two replicas."""

    def __init__(self, management: FakeApiServer, tenant: FakeApiServer, replicas: tuple[Replica, Replica]) -> None:
        self.management = management
        self.tenant = tenant
        self.replicas = replicas
        self._pods = 0

    @property
    def holder(self) -> str:
        lease = self.management.store.find(LEASES, "gateway", SYSTEM_NAMESPACE)
        return str(lease["spec"].get("holderIdentity", "")) if lease else ""

    async def start(self, replica: Replica) -> None:
        """Start a replica, and wait until its role is known."""
        await replica.start()
        await wait_until(lambda: _has_role(replica), interval=0.02)

    async def start_both(self) -> tuple[Replica, Replica]:
        """Start both replicas, and return the leader, which forwards pods, and the standby."""
        leader, standby = self.replicas
        await self.start(leader)
        await self.start(standby)
        await self.forward_pod()
        return leader, standby

    def create_pod(self) -> str:
        """Create a pod on the tenant's virtual node, and return its name."""
        self._pods += 1
        name = f"pod-{self._pods}"
        spec = {"nodeName": NODE, "containers": [{"name": "a", "image": "a"}]}
        self.tenant.store.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec}, "default")
        return name

    async def forward_pod(self) -> float:
        """Create a pod, and return the seconds until its compute pod exists."""
        name, started = self.create_pod(), time.monotonic()
        await wait_until(lambda: name in self.forwarded(), interval=0.01)
        return time.monotonic() - started

    def bind_compute_pods(self) -> None:
        """Bind all compute pods to the node."""
        for pod in self.management.store.all(PODS):
            self.management.store.bind(pod["metadata"]["name"], pod["metadata"]["namespace"], "node-1")

    async def kubelet_authority(self) -> Authority:
        """Return the authority of the kubelet endpoint."""
        async with self.management.client() as client:
            return await ensure_authority(client)

    def forwarded(self) -> list[str]:
        """Return the names of the tenant pods that have a compute pod, one for each."""
        pods = self.management.store.all(PODS)
        return [pod["metadata"]["annotations"]["vkgateway.io/name"] for pod in pods]


async def _has_role(replica: Replica) -> bool:
    assert replica.process is not None
    assert replica.process.returncode is None, replica.log
    return "leadership ok: " in await replica.readyz()


@contextlib.asynccontextmanager
async def failover_world(folder: Path, election: config.LeaderElection) -> AsyncIterator[World]:
    """Yield a world whose replicas have not started yet."""
    async with contextlib.AsyncExitStack() as stack:
        management = await stack.enter_async_context(FakeApiServer())
        tenant = await stack.enter_async_context(FakeApiServer())
        _create_objects(management, tenant)
        replicas = []
        for name in ("one", "two"):
            wire = await stack.enter_async_context(Wire(management.port))
            settings = _settings(folder / name, election, wire.url)
            tenant_wire = await stack.enter_async_context(Wire(tenant.port))
            replica = Replica(name, folder / name, settings, management=wire, tenant=tenant_wire)
            stack.push_async_callback(replica.stop)
            replicas.append(replica)
        yield World(management, tenant, (replicas[0], replicas[1]))


def _settings(folder: Path, election: config.LeaderElection, url: str) -> config.Config:
    folder.mkdir()
    kubeconfig.write_file(folder / "config", kubeconfig.build_document("management", server=url, ca=""))
    ca = Authority.create("etcd")
    ca.write(folder, "ca")
    ca.issue("root", client=True).write(folder, "root")
    datastore = config.Datastore(
        endpoints=("https://127.0.0.1:1",),
        ca=str(folder / "ca.crt"),
        ca_key=str(folder / "ca.key"),
        cert=str(folder / "root.crt"),
        key=str(folder / "root.key"),
    )
    return config.Config(
        data_dir=str(folder),
        management_cluster=config.ManagementCluster(kubeconfig=str(folder / "config")),
        leader_election=election,
        kubelet=config.Kubelet(port=0),
        datastore=datastore,
        observability=config.Observability(port=0, secure_port=0),
        page=config.Page(port=0),
    )


def _create_objects(management: FakeApiServer, tenant: FakeApiServer) -> None:
    for name in (SYSTEM_NAMESPACE, "default"):
        management.store.create(NAMESPACES, {"metadata": {"name": name}})
    tenant.store.create(NAMESPACES, {"metadata": {"name": "default"}})
    conditions = [{"type": "Ready", "status": "True"}]
    resources = {"cpu": "1000", "memory": "1000Gi", "pods": "10000"}
    status: dict[str, Any] = {"conditions": conditions, "capacity": resources, "allocatable": resources}
    management.store.create(NODES, {"metadata": {"name": "node-1", "labels": {"pool": "cpu"}}, "status": status})
    pools = [{"name": "cpu", "nodeSelector": {"pool": "cpu"}}]
    management.store.create(COMPUTE_CLUSTERS, {"metadata": {"name": "local"}, "spec": {"pools": pools}})
    spec = {
        "kubernetesVersion": "1.36.3",
        "template": "default",
        "pools": [{"computeCluster": "local", "name": "cpu"}],
    }
    management.store.create(TENANTS, {"metadata": {"name": TENANT}, "spec": spec})
