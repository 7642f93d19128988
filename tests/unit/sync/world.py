"""Tenant, compute cluster with a manually driven kubelet, and the reconcilers between them, over real HTTP."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.fakes.store import ObjectStore
from tests.support.waiting import let_pass, wait_until
from tests.unit.sync.scopes import FakePlatform, make_arbitration
from vkgateway.api.names import compute_namespace
from vkgateway.api.times import render_time
from vkgateway.api.types import Pool
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kinds.catalogue import WATCHES
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.services.platform_service import ApiServers, NameServers
from vkgateway.kinds.tenant_scope import VirtualNodeBinding
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import EVENTS, NAMESPACES, NODES, PODS, Resource
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.service.arbitration import Arbitration, ArbitrationSettings
from vkgateway.tenants.tenant import TenantSync

Document = dict[str, Any]

TENANT = "alpha"
NODE = "a100.local"
COMPUTE_NODE = "gpu-host-17"
COMPUTE_NAMESPACE = compute_namespace(TENANT, "default")
PLENTY = {"pods": 110_000, "cpu": 10**9, "memory": 10**18, "nvidia.com/gpu": 8_000}


@dataclass
class World:
    """Both API servers, and the gateway's reconcilers, which can be stopped and started."""

    tenant_server: FakeApiServer
    compute_server: FakeApiServer
    clock: Clock = SYSTEM_CLOCK
    sync: TenantSync | None = None
    link: ComputeLink | None = None
    arbiter: Arbitration | None = None
    _engine: WorkerPool | None = None
    _reconcilers: asyncio.Task[None] | None = None
    limit: dict[str, int] = field(default_factory=lambda: dict(PLENTY))
    guarantee: dict[str, int] = field(default_factory=dict)
    notice: float = 0.0
    bind: float = 60.0
    name_servers: NameServers | None = None
    api_servers: ApiServers | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    workers: int = 8
    """Number of workers; the tenant may use an eighth of them."""
    service_range: str = ""
    gateway: GatewayIdentity | None = None
    """This gateway, if others use the compute cluster, too."""
    _begun: int = 0
    """Number of cycles of the arbiter that have begun."""
    _ended: int = 0

    # -- the tenant and its API server
    # -------------------------------------------------------------------------------------

    def create_pod(
        self,
        name: str = "web",
        *,
        node: str = NODE,
        by_hand: bool = False,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> Document:
        """Create a bound pod of the tenant; with `by_hand`, `nodeName` is set directly."""
        body = {"containers": [{"name": "main", "image": "busybox"}], "enableServiceLinks": False} | spec
        if node and by_hand:
            body["nodeName"] = node
        created: Document = {"metadata": {"name": name, "labels": labels or {}}, "spec": body}
        created = self.tenant_server.store.create(PODS, created, "default")
        return self.tenant_server.store.bind(name, "default", node) if node and not by_hand else created

    def delete_pod(self, name: str = "web", *, grace: int | None = None) -> None:
        self.tenant_server.store.delete(PODS, name, "default", grace=grace)

    def tenant_pod(self, name: str = "web") -> Document | None:
        return self.tenant_server.store.find(PODS, name, "default")

    def pod_phase(self, name: str = "web") -> str:
        pod = self.tenant_pod(name)
        return pod["status"].get("phase", "") if pod is not None else ""

    def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["message"]) for event in self.tenant_server.store.all(EVENTS)]

    # -- the compute cluster
    # -----------------------------------------------------------------------------------------------

    def compute_pod(self, name: str = "web") -> Document | None:
        return self.compute_server.store.find(PODS, name, COMPUTE_NAMESPACE)

    def run_pod(self, name: str = "web") -> None:
        """Bind the compute pod as the compute scheduler, and start it as its kubelet."""
        self.bind_compute_pod(name)
        self.start_compute_pod(name)

    def bind_compute_pod(self, name: str = "web") -> None:
        """Bind the compute pod as the compute scheduler."""
        pod = copy.deepcopy(self.compute_pod(name))
        assert pod is not None
        pod["spec"]["nodeName"] = COMPUTE_NODE
        self.compute_server.store.update(PODS, pod, name=name, namespace=COMPUTE_NAMESPACE)

    def start_compute_pod(self, name: str = "web") -> None:
        """Start the bound compute pod as its kubelet."""
        self._set_status(name, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, ready=True)

    def end_pod(self, name: str = "web", *, code: int = 0, at: datetime | None = None) -> None:
        """End the pod's containers, at the time `at` if given; the kubelet then confirms a pending deletion."""
        phase = "Failed" if code else "Succeeded"
        terminated: Document = {"exitCode": code, "reason": "Error" if code else "Completed"}
        if at is not None:
            terminated["finishedAt"] = render_time(at)
        self._set_status(name, phase, {"terminated": terminated})
        pod = self.compute_pod(name)
        if pod is not None and pod["metadata"].get("deletionTimestamp"):
            self.compute_server.store.delete(PODS, name, COMPUTE_NAMESPACE, grace=0)

    def _set_status(self, name: str, phase: str, state: Document, *, ready: bool = False) -> None:
        pod = copy.deepcopy(self.compute_pod(name))
        assert pod is not None
        pod["status"] |= {
            "phase": phase,
            "hostIP": "10.9.9.9",
            "podIP": "10.1.2.3",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {"name": "main", "image": "busybox", "ready": ready, "restartCount": 0, "state": state}
            ],
        }
        self.compute_server.store.update(PODS, pod, name=name, namespace=COMPUTE_NAMESPACE, status=True)

    # -- waiting
    # -----------------------------------------------------------------------------------------------------------

    async def wait_forwarded(self, name: str = "web") -> Document:
        found: Document = await wait_until(lambda: self.compute_pod(name))
        return found

    async def wait_settled(self) -> None:
        """Wait until the reconcilers have no work, a cycle has seen what there is, and both servers are idle.

        The cycle is the one that runs at the first quiet moment. Later ones, of which there may always be one, see the
        same.
        """
        quiet = begun = 0
        versions = (0, 0)
        while quiet < 4:
            now = self.tenant_server.store.version, self.compute_server.store.version
            if now != versions or (self._engine is not None and self._engine.queue.is_working):
                quiet = 0
            elif quiet == 0:
                quiet, begun = 1, self._begun
            elif self._ended >= begun:
                quiet += 1
            versions = now
            await let_pass(0.02)

    def count_cycles(self, arbiter: Arbitration) -> None:
        """Count the cycles of the arbiter, for `wait_settled`."""
        run_cycle = arbiter._run_cycle

        async def run_and_count() -> None:
            self._begun += 1
            try:
                await run_cycle()
            finally:
                self._ended += 1

        arbiter._run_cycle = run_and_count  # type: ignore[method-assign]

    def pod_writes(self) -> list[str]:
        """Return the pod writes to both servers, without events."""
        return [
            request
            for server in (self.tenant_server, self.compute_server)
            for request in server.requests
            if not request.startswith("GET") and "/events" not in request and "/pods" in request
        ]

    # -- the gateway
    # -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def run_gateway(self) -> AsyncIterator[TenantSync]:
        """Run the reconcilers; they stop abruptly at the end of the block."""
        tenant_client, compute_client = self.tenant_server.client("tenant"), self.compute_server.client("compute")
        link = ComputeLink("local", compute_client, self.gateway, kinds=WATCHES)
        engine = WorkerPool(workers=self.workers)
        arbiter = make_arbitration(
            ArbitrationSettings(gather=0.001, unplaced_delay=0.02, notice=self.notice, bind_timeout=self.bind),
            FakePlatform(
                {"local": link}, {"local": (Pool(name="a100", node_selector={"gpu": "a100"}),)}, tenants=[TENANT]
            ),
            clock=self.clock,
        )
        self.count_cycles(arbiter)
        sync = TenantSync(
            TenantContext(
                name=TENANT,
                api_host="10.213.0.1",
                api_port=6443,
                service_range=self.service_range,
                **self.policy,
            ),
            tenant_client,
            links={"local": link},
            bindings={NODE: self.make_binding(link)},
            engine=engine,
            arbiter=arbiter,
            name_servers=self.name_servers,
            api_servers=self.api_servers,
        )
        sync.set_limit(NODE, self.limit)
        sync.set_quotas([Quota(tenant=TENANT, pool=("local", "a100"), limit=self.limit, guarantee=self.guarantee)])
        self.sync, self.link, self.arbiter = sync, link, arbiter
        tasks = [asyncio.create_task(part.run(), name="gateway") for part in (link, sync, engine, arbiter)]
        self._reconcilers, self._engine = tasks[1], engine
        try:
            yield sync
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _close(tenant_client, compute_client)

    async def stop_tenant(self) -> None:
        """Stop the tenant's reconcilers and wait until they are drained, as the gateway does before a removal."""
        assert self._reconcilers is not None
        assert self._engine is not None
        self._reconcilers.cancel()
        await asyncio.gather(self._reconcilers, return_exceptions=True)
        await self._engine.wait_drained(TENANT)

    @staticmethod
    def make_binding(link: ComputeLink) -> VirtualNodeBinding:
        pool = PoolContext(
            name="a100", compute_cluster="local", node_name=NODE, node_selector={"gpu": "a100"}, tolerations=()
        )
        return VirtualNodeBinding(pool=pool, link=link, node_ip="10.213.0.1")


def make_node(name: str, *, gpus: int = 8) -> Document:
    """Return a ready and empty node of the pool."""
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "labels": {"gpu": "a100"}},
        "spec": {},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


async def _close(*clients: Client) -> None:
    for client in clients:
        await client.close()


@asynccontextmanager
async def start_world(*, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[World]:
    """Start two servers with the tenant's default namespace."""
    async with (
        FakeApiServer(store=ObjectStore(namespaces_must_exist=True)) as above,
        FakeApiServer(store=ObjectStore(namespaces_must_exist=True), rights=Rights.of_compute()) as below,
    ):
        above.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        below.store.create(NODES, make_node(COMPUTE_NODE))
        yield World(above, below, clock=clock)


def object_names(server: FakeApiServer, resource: Resource) -> list[str]:
    """Return the names of all objects of a kind."""
    return [document["metadata"]["name"] for document in server.store.all(resource)]
