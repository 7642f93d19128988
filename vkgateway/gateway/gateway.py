"""All parts of a gateway and what connects them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Mapping
from functools import partial
from typing import Protocol

from vkgateway.arbiter.facts import Policy, PoolKey
from vkgateway.gateway import metrics
from vkgateway.gateway.arbiter_watch import ArbiterWatch
from vkgateway.gateway.compute import ComputeController
from vkgateway.gateway.config import Arbiter as ArbiterSection
from vkgateway.gateway.config import Config, Kubelet
from vkgateway.gateway.connections import connect
from vkgateway.gateway.events import Recorder
from vkgateway.gateway.health import HealthServer
from vkgateway.gateway.heap import trim_loop
from vkgateway.gateway.planes import ControlPlanes
from vkgateway.gateway.roomkeeping import Datastore, RoomKeeping
from vkgateway.gateway.runtimes import TenantRuntimes
from vkgateway.gateway.tenants import TenantController
from vkgateway.kube.client import Client
from vkgateway.kube.kubeconfig import Connection
from vkgateway.kubelet.server import KubeletServer
from vkgateway.kubelet.stats import Figures
from vkgateway.kubelet.target import PlacedPod, PodTarget
from vkgateway.kubelet.tokens import Tokens
from vkgateway.model.api import Pool, Tenant
from vkgateway.sync.admission.arbiter import Arbitration, Settings
from vkgateway.sync.clock import EvenClock
from vkgateway.sync.engine import Engine
from vkgateway.sync.network.names import NameServers

CONNECTIONS_BESIDE_STREAMS_OF_ALL = 4096
"""Connections to the kubelet endpoint, of all tenants, beside those of their streams."""
GATHER_SECONDS = 0.1
"""Changes of compute clusters within this time are looked at together."""


class _Completable(Protocol):
    @property
    def complete(self) -> bool: ...


class Gateway:
    """One gateway process, apart from its settings' files and signals; `files` is how many it may open."""

    def __init__(
        self,
        settings: Config,
        *,
        management: Client,
        planes: ControlPlanes,
        datastore: Datastore,
        name_servers: NameServers | None = None,
        tls: ssl.SSLContext,
        address: str,
        files: int = 8192,
    ) -> None:
        self._settings = settings
        self._waking: asyncio.TimerHandle | None = None
        recorder = Recorder(management)
        self.engine = Engine(workers=settings.sync.workers)
        self.computes = ComputeController(
            management, recorder=recorder, connect=self._connect, on_change=self._compute_changed
        )
        clock = EvenClock()
        self._watch = ArbiterWatch(settings.arbiter, clock=clock)
        self.arbiter = Arbitration(
            _arbiter_settings(settings.arbiter),
            links=lambda: self.computes.links,
            specs=self._pools,
            expected=self._expected,
            observer=self._watch,
            clock=clock,
            calm=clock.follow,
        )
        self._watch.names = self.arbiter.names
        self._watch.divided = self._divided
        self.kubelet = self._endpoint(settings.kubelet, address=address, tls=tls, files=files)
        self.runtimes = TenantRuntimes(
            computes=self.computes,
            kubelet=self.kubelet,
            engine=self.engine,
            arbiter=self.arbiter,
            address=address,
            settings=settings.nodes,
            on_change=self._tenant_changed,
            name_servers=name_servers,
        )
        self._room = RoomKeeping(datastore, tenants=self._all_tenants, on_change=self._tenant_changed)
        self.tenants = TenantController(
            management,
            recorder=recorder,
            computes=self.computes,
            planes=planes,
            runtimes=self.runtimes,
            guarantee=self._watch.guarantees.verdict,
            datastore=self._room.verdict,
            concurrency=settings.control_planes.concurrency,
        )
        self._watch.guarantees.on_change = self.tenants.wake
        self.computes.guaranteed = self.tenants.ledger.guaranteed
        self.computes.users = self.tenants.ledger.users

    def _endpoint(self, settings: Kubelet, *, address: str, tls: ssl.SSLContext, files: int) -> KubeletServer:
        """The virtual nodes' kubelet; streams and connections leave room among the `files` that may be open."""
        return KubeletServer(
            address=address,
            port=settings.port,
            tls=tls,
            backends=self._find,
            pods=self._pods,
            figures=Figures(self._placed, nodes=self._node_labels),
            tokens=Tokens(self._client_of),
            streams_per_tenant=settings.streams_per_tenant,
            streams=min(settings.streams, files // 8),
            connections=min(settings.streams + CONNECTIONS_BESIDE_STREAMS_OF_ALL, files // 4),
            idle_timeout=settings.idle_seconds,
        )

    async def run(self, health: HealthServer) -> None:
        """Work until cancelled, told of by `health`; what tenants have goes on without us."""
        health.show(
            checks={
                "tenants": partial(_known, self.tenants.tenants),
                "compute-clusters": partial(_known, self.computes.clusters),
            },
            refresh=self._measure,
            state=self._watch.state,
            what_if=self._watch.what_if,
        )
        async with self.kubelet:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.engine.run(), name="engine")
                    group.create_task(self.computes.run(), name="compute-clusters")
                    group.create_task(self.tenants.run(), name="tenants")
                    group.create_task(self.arbiter.run(), name="arbiter")
                    group.create_task(metrics.watch_loop(), name="event-loop-lag")
                    group.create_task(trim_loop(), name="heap")
                    group.create_task(self._watch.run(), name="usage")
                    group.create_task(self._room.run(), name="datastore")
            finally:
                if self._waking is not None:
                    self._waking.cancel()
                await self.tenants.close()

    def _connect(self, name: str, connection: Connection | None) -> Client:
        """Make a client of a compute cluster; without a connection it is the management cluster itself."""
        called = f"compute cluster {name}"
        if connection is None:
            return connect(self._settings, name=called)
        return Client(
            connection.server,
            ssl=connection.ssl_context(),
            token=connection.token_source(),
            name=called,
            max_connections=self._settings.sync.connections,
            server_hostname=connection.tls_server_name or None,
        )

    def _expected(self) -> list[str] | None:
        """The tenants whose pods must be known before anything is decided; None: not known yet."""
        if not self.tenants.tenants.complete or not self.computes.clusters.complete:
            return None
        return self.tenants.names()

    def _pools(self) -> dict[str, tuple[Pool, ...]]:
        """The pools of each compute cluster, as ops want them now."""
        return {found.metadata.name: found.spec.pools for found in self.computes.clusters.items.values()}

    def _divided(self) -> dict[PoolKey, frozenset[str]]:
        """Return, of divided pools, the labels that choose the nodes of a part; may be called from another thread."""
        computes = list(self.computes.clusters.items.values())
        pools = ((found.metadata.name, pool) for found in computes for pool in found.spec.pools)
        return {
            (cluster, pool.name): frozenset((*pool.node_selector, pool.virtual_nodes_by))
            for cluster, pool in pools
            if pool.virtual_nodes_by
        }

    def _find(self, tenant: str, namespace: str, pod: str) -> PodTarget:
        return self.runtimes.find(tenant, namespace, pod)

    async def _pods(self, tenant: str, node: str, phase: str) -> list[bytes]:
        return await self.runtimes.pods(tenant, node, phase)

    def _client_of(self, tenant: str) -> Client:
        return self.runtimes.client_of(tenant)

    def _all_tenants(self) -> Collection[Tenant] | None:
        reflector = self.tenants.tenants
        return reflector.items.values() if reflector.complete else None

    def _placed(self, tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
        return self.runtimes.placed(tenant, node)

    def _node_labels(self, tenant: str) -> Mapping[str, Mapping[str, str]]:
        return self.runtimes.node_labels(tenant)

    def _compute_changed(self) -> None:
        """Nodes change by the dozen: every tenant looks once at all of it."""
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._wake_tenants)

    def _wake_tenants(self) -> None:
        self._waking = None
        self.tenants.wake_all()

    def _tenant_changed(self, tenant: str) -> None:
        self.tenants.wake(tenant)

    async def _measure(self) -> None:
        metrics.count_tenants(self.tenants.phases())
        metrics.count_compute_clusters(link.reachable for link in self.computes.links.values())
        await asyncio.to_thread(self._watch.measure)
        metrics.measure_queue(self.engine.queue, tenants=self.tenants.names())


def _arbiter_settings(section: ArbiterSection) -> Settings:
    return Settings(
        policy=Policy(age_cap=section.age_cap_seconds, run_margin=section.run_margin),
        notice=section.notice_seconds,
        grace_max=section.grace_seconds_max,
        minimum_run=section.minimum_run_seconds,
        gather=section.gather_seconds,
        bind=section.bind_seconds,
    )


def _known(reflector: _Completable) -> str:
    return "" if reflector.complete else "not known yet"
