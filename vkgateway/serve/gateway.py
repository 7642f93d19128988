"""Assembly of the gateway's parts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from vkgateway.api.names import virtual_node_name
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.controller import ComputeController
from vkgateway.kinds.pods.startup_metrics import STATISTICS
from vkgateway.kinds.services.platform_service import NameServers
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, SteadyClock
from vkgateway.kube.kubeconfig import ClientConfig
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.write_gate import WriteGate
from vkgateway.nodes.server import KubeletServer
from vkgateway.nodes.stats import StatsProvider
from vkgateway.nodes.token_reviewer import TokenReviewer
from vkgateway.page.facts import Observation
from vkgateway.runtime.events import EventRecorder
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.backends.pool_modes import PoolModes
from vkgateway.scheduler.core.reasons.gang_names import Names
from vkgateway.scheduler.core.snapshot import Policy
from vkgateway.scheduler.service.arbitrated_tenants import ArbitratedTenants
from vkgateway.scheduler.service.arbitration import Arbitration, ArbitrationSettings, CycleTrigger
from vkgateway.serve.addresses import GatewayAddress, connect_management
from vkgateway.serve.arbiter_observer import ArbiterObserver
from vkgateway.serve.datastore_quota import Datastore, DatastoreMonitor
from vkgateway.serve.health import HealthServer
from vkgateway.serve.heap import trim_loop
from vkgateway.settings.config import Arbiter as ArbiterSection
from vkgateway.settings.config import Config, Kubelet
from vkgateway.settings.validation import parse_half_life
from vkgateway.tenants import metrics
from vkgateway.tenants.accepted_specs import AcceptedSpecs
from vkgateway.tenants.controller import TenantController
from vkgateway.tenants.guarantees import GuaranteeMonitor
from vkgateway.tenants.interfaces import ControlPlanes
from vkgateway.tenants.running_tenants import ControlPlaneChanges, RunningTenants
from vkgateway.tenants.runtimes import TenantRuntimes
from vkgateway.tenants.standby_tenants import StandbyTenants
from vkgateway.tenants.store import TenantStore
from vkgateway.tenants.usage.monitor import UsageMonitor, UsageStore
from vkgateway.tenants.usage.past_shares import PastShareKeeper

EXTRA_CONNECTIONS = 4096
"""Connections of all tenants to the kubelet endpoint in addition to their streams."""
BATCH_SECONDS = 0.1
"""Time for which changes of compute clusters are batched."""


class Gateway:
    """Gateway process without settings files and signals; `files` is its open-file limit, `gate` permits writes."""

    def __init__(
        self,
        settings: Config,
        *,
        management: Client,
        clusters: ComputeClusters,
        planes: ControlPlanes,
        datastore: Datastore,
        name_servers: NameServers | None = None,
        tls: ssl.SSLContext,
        address: GatewayAddress,
        files: int = 8192,
        gate: WriteGate | None = None,
    ) -> None:
        self._settings = settings
        self._planes = planes
        self._gate = gate
        self._is_leading = False
        self._enqueue_timer: asyncio.TimerHandle | None = None
        self._clusters = clusters
        recorder = EventRecorder(management, counts_repeats=False)
        specs = AcceptedSpecs(clusters.pool_facts, clusters.guaranteed_pods)
        self.tenants = tenants = TenantStore(management, specs)

        # The arbiter, what it reads, and its observers.
        clock, cycle_trigger, arbitrated = SteadyClock(), CycleTrigger(), ArbitratedTenants()
        modes = PoolModes(arbitrated, on_change=cycle_trigger.set, clock=clock)
        past_shares = PastShareKeeper(parse_half_life(settings.arbiter.half_life), uid_of=tenants.uid_of)
        guarantees = GuaranteeMonitor(on_change=tenants.outdated.emit, unmanaged_pools=modes.unmanaged_pools)
        self._observer = ArbiterObserver(
            settings.arbiter,
            guarantees=guarantees,
            pod_names=arbitrated.pod_names,
            pod_name=arbitrated.pod_name,
            uid_of=tenants.uid_of,
            past_shares=lambda: past_shares.shares,
            foreign_pools=modes.foreign_pools,
            divided_pools=clusters.divided_pools,
            clock=clock,
            permit=gate.logs if gate is not None else None,
        )
        self.usage = UsageMonitor(
            UsageStore(management),
            clock=clock,
            past_shares=past_shares,
            running=self._observer.usage_until,
            tenants=tenants.tenant_names,
            budgets_of=specs.budgets_of,
            uid_of=tenants.uid_of,
            on_change=tenants.outdated.emit,
            on_stop=cycle_trigger.set,
        )
        self._observer.usage_recorded.subscribe(self.usage.count)
        self.arbiter = Arbitration(
            _arbiter_settings(settings.arbiter),
            clusters,
            tenants=arbitrated,
            modes=modes,
            cycle_trigger=cycle_trigger,
            expected_tenants=self._expected_tenants,
            notices_ended=clock.follow_wall,  # without notices, no deadline moves
            observer=self._observer,
            stopped_borrowing=self.usage.stopped_borrowing,
            observe_shares=past_shares.observe,
            clock=clock,
        )

        # What runs for each tenant.
        self.engine = WorkerPool(workers=settings.sync.workers)
        self.running_tenants = running = RunningTenants()
        self.kubelet = _build_kubelet(settings.kubelet, running, address=address.listen, tls=tls, files=files)
        runtimes = TenantRuntimes(
            running=running,
            computes=clusters,
            kubelet=self.kubelet,
            engine=self.engine,
            arbiter=self.arbiter,
            address=address.advertised,
            port=settings.kubelet.advertise_port,
            settings=settings.nodes,
            on_change=tenants.outdated.emit,
            name_servers=name_servers,
            api_servers=planes,
        )
        self._datastore_monitor = DatastoreMonitor(
            datastore, tenants=tenants.all_tenants, on_change=tenants.outdated.emit
        )

        # The controllers.
        self.compute_controller = ComputeController(
            management,
            clusters=clusters,
            recorder=recorder,
            connect=self._connect_compute,
            on_change=self._compute_changed,
            total_guarantee=specs.total_guarantee,
            tenants_of=tenants.tenants_of,
            tenants_in=specs.tenants_in,
        )
        self.tenant_controller = TenantController(
            management,
            tenants=tenants,
            recorder=recorder,
            computes=self.compute_controller,
            planes=planes,
            runtimes=runtimes,
            guarantee=guarantees.verdict_for,
            datastore=self._datastore_monitor.write_verdict,
            budget=self.usage.verdict_for,
            concurrency=settings.control_planes.concurrency,
        )
        self._standby_tenants = StandbyTenants(planes, runtimes, running, tenants)
        self._control_plane_changes = ControlPlaneChanges(running, self.tenant_controller)

    async def run(
        self, health: HealthServer, *, leading: asyncio.Event, prepare: Callable[[], Awaitable[None]]
    ) -> None:
        """Run until cancelled, with `health` reporting; tenants' pods and control planes outlive the gateway.

        The gateway stands by until `leading` is set, and awaits `prepare` before it leads, which may be done already.
        """
        health.set_handlers(
            checks={
                "tenants": partial(_readiness_problem, self.tenants.reflector),
                "compute-clusters": partial(_readiness_problem, self._clusters.reflector),
            },
            refresh=self._update_metrics,
        )
        async with self.kubelet:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.compute_controller.run(leading), name="compute-clusters")
                    group.create_task(self.tenant_controller.run(leading), name="tenants")
                    group.create_task(metrics.measure_loop_lag(), name="event-loop-lag")
                    group.create_task(trim_loop(), name="heap")
                    if not leading.is_set():
                        group.create_task(self._standby_tenants.run(leading), name="standby-tenants")
                        await leading.wait()
                    await prepare()
                    await self.usage.load()
                    self._start_leader(group, health)
            finally:
                if self._enqueue_timer is not None:
                    self._enqueue_timer.cancel()
                await self.tenant_controller.close()

    def _start_leader(self, group: asyncio.TaskGroup, health: HealthServer) -> None:
        """Start what only the leader runs."""
        self._is_leading = True
        health.set_arbiter(
            state=self._observer.encode_state,
            what_if=self._observer.answer_what_if,
            usage=self.usage.encode_report,
        )
        group.create_task(self.engine.run(), name="engine")
        group.create_task(self._planes.run(self._control_plane_changes), name="control-planes")
        group.create_task(self.arbiter.run(), name="arbiter")
        group.create_task(self._observer.run(), name="arbiter-logs")
        group.create_task(self.usage.run(), name="usage")
        group.create_task(self._datastore_monitor.run(), name="datastore")

    def observe(self) -> Observation:
        """Return what the page shows of the gateway; see `PageSource`."""
        clusters = self._clusters.reflector.store
        return Observation(
            time=SYSTEM_CLOCK.time(),
            leading=self._is_leading,
            cycle=self._observer.last_cycle,
            tenants={name: tenant for (_, name), tenant in self.tenants.reflector.store.items()},
            compute_clusters={name: cluster for (_, name), cluster in clusters.items()},
            timeline=self._observer.timeline,
        )

    def pod_names(self) -> Names:
        """Return namespaces and names of governed pods by UID; see `PageSource`."""
        return self.arbiter.tenants.pod_names()

    def answer_what_if(self, question: bytes) -> tuple[int, bytes]:
        """Return the answer to a question; see `PageSource`."""
        return self._observer.answer_what_if(question)

    def _connect_compute(self, name: str, connection: ClientConfig | None) -> Client:
        """Return a client of a compute cluster; without a connection, it is the management cluster itself."""
        client_name, traffic = f"compute cluster {name}", metrics.TRAFFIC["compute"]
        if connection is None:
            return connect_management(self._settings, name=client_name, traffic=traffic).guard_writes(self._gate)
        client = Client(
            connection.server,
            ssl=connection.ssl_context(),
            token=connection.token_source(),
            name=client_name,
            max_connections=self._settings.sync.connections,
            server_hostname=connection.tls_server_name or None,
            traffic=traffic,
        )
        return client.guard_writes(self._gate)

    def _expected_tenants(self) -> list[str] | None:
        """Return the tenants whose pods must be known before the first scheduling cycle; None while unknown."""
        is_complete = self.tenants.reflector.is_complete and self._clusters.reflector.is_complete
        return self.tenants.tenant_names() if is_complete else None

    def _compute_changed(self) -> None:
        """Schedule one reconciliation of all tenants for a batch of changes."""
        if self._enqueue_timer is None:
            self._enqueue_timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._enqueue_tenants)

    def _enqueue_tenants(self) -> None:
        self._enqueue_timer = None
        self.tenant_controller.enqueue_all()
        self._standby_tenants.enqueue_all()
        if self.arbiter.modes.is_outdated(self._clusters.pool_specs()):
            self.arbiter.trigger()

    async def _update_metrics(self) -> None:
        tenants = self.tenants.tenant_statuses()
        metrics.count_tenants(status.phase for status in tenants.values())
        metrics.set_tenant_conditions({name: status.conditions for name, status in tenants.items()})
        computes = self._clusters.clusters_with_status()
        metrics.set_cluster_conditions({found.metadata.name: found.status.conditions for found in computes})
        metrics.OVERDUE_SECONDS.set(self.arbiter.start_meter.overdue_seconds(self.arbiter.clock.time()))
        metrics.count_compute_clusters(link.is_reachable for link in self._clusters.links.values())
        await asyncio.to_thread(self._observer.update_metrics)
        metrics.set_budgets(self.usage.budgets())
        pools = self._clusters.pool_specs()
        STATISTICS.update_metrics({virtual_node_name(pool.name, name) for name in pools for pool in pools[name]})
        metrics.count_traffic()
        metrics.measure_queue(self.engine.queue, tenants=self.tenants.tenant_names())


def _build_kubelet(
    settings: Kubelet, running: RunningTenants, *, address: str, tls: ssl.SSLContext, files: int
) -> KubeletServer:
    """Return the kubelet endpoint, with streams and connections limited to a share of the open-file limit."""
    return KubeletServer(
        address=address,
        port=settings.port,
        tls=tls,
        pod_locator=running.find_pod,
        pod_lister=running.list_pods,
        stats_provider=StatsProvider(running.placed_on_node, nodes=running.node_labels),
        token_reviewer=TokenReviewer(running.client_of),
        streams_per_tenant=settings.streams_per_tenant,
        streams=min(settings.streams, files // 8),
        connections=min(settings.streams + EXTRA_CONNECTIONS, files // 4),
        idle_timeout=settings.idle_seconds,
    )


def _arbiter_settings(section: ArbiterSection) -> ArbitrationSettings:
    return ArbitrationSettings(
        policy=Policy(
            age_cap=section.age_cap_seconds,
            run_margin=section.run_margin,
            half_life=parse_half_life(section.half_life),
        ),
        notice=section.notice_seconds,
        grace_max=section.grace_seconds_max,
        minimum_run=section.minimum_run_seconds,
        gather=section.gather_seconds,
        bind_timeout=section.bind_seconds,
    )


def _readiness_problem(reflector: Reflector[Any]) -> str:
    return "" if reflector.is_complete else "not synced yet"
