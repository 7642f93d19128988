"""Kueue's queues as tenants of the gateway: a cohort is a pool, and a workload is a pod."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from bench.flows import constant_place
from bench.light import pod_tenant
from bench.load import Place, for_each
from bench.persistence import persist
from bench.platform import Platform
from bench.pods import GPU, PodKind
from bench.queueload import BORROWING, CLASSES, QUEUES, QUOTA, Work, WorkLog
from bench.queuepods import PodsRun, complete_unless_evicted
from bench.timeline import Key, Mark, Timeline, now
from bench.watching import watch_pods
from vkgateway.api import names
from vkgateway.api.errors import UnavailableError
from vkgateway.api.types import DEFAULT_COMPUTE_CLUSTER, ComputeCluster, WithinTenant
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, PRIORITY_CLASSES, TENANTS
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL, HollowMachine, make_node
from vkgateway_platform.embedded.hollow.steps import apply_node

NAMESPACE: Final = "default"
_GRACE: Final = 1
"""Maximum grace period of the pools, in seconds: the shortest. There is no notice."""
_READY_WITHIN: Final = 60.0
_IN_FLIGHT_TENANTS: Final = 3
_NO_SCHEDULER: Final = "none"
"""Scheduler name of pods that no scheduler must bind."""
_UNITS: Final = QUEUES * QUOTA
_MACHINE: Final = HollowMachine(
    product="units",
    capacity={
        "cpu": "1k",
        "memory": "1Ti",
        "ephemeral-storage": "1Ti",
        # Many pods have ended, and their deletion takes a while.
        "pods": "1k",
        GPU: str(_UNITS),
    },
)
"""One machine with the quotas of a cohort, because Kueue counts sums and knows no nodes."""


@contextlib.asynccontextmanager
async def queue_tenants(platform: Platform, cohorts: Mapping[str, str]) -> AsyncIterator[list[Place]]:
    """Create a pool for each cohort, and a tenant for each queue, until the block ends."""
    await _add_pools(platform, sorted(set(cohorts.values())))
    limit = {GPU: str(QUOTA + BORROWING)}

    async def create(item: tuple[str, str]) -> None:
        name, pool = item
        await platform.create_tenant(name, {"name": pool, "guarantee": {GPU: str(QUOTA)}, "limit": limit})
        await platform.wait_node_usable(name, pool)
        await _create_classes(platform.tenants[name])

    platform.report(f"creating {len(cohorts)} tenants")
    try:
        await for_each(cohorts.items(), create, in_flight=_IN_FLIGHT_TENANTS)
        platform.report.done(f"{len(cohorts)} tenants: ready")
        yield [Place(name, platform.tenants[name], NAMESPACE) for name in cohorts]
    finally:
        await platform.remove_tenants([name for name in cohorts if name in platform.tenants])


async def _add_pools(platform: Platform, pools: Sequence[str]) -> None:
    """Add pools of one hollow machine each. They remain until the platform is removed."""
    client = platform.compute
    for pool in pools:
        node = make_node(pool, index=0, count=1, machine=_MACHINE, version=platform.record.kubernetes_version)
        await apply_node(client, node)
    found = await _read_compute_cluster(platform)
    known = {pool.name for pool in found.spec.pools}
    added = [pool_spec(pool) for pool in pools if pool not in known]
    specs = [*(msgspec.to_builtins(pool) for pool in found.spec.pools), *added]
    await client.patch(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER, {"spec": {"pools": specs}})
    deadline = now() + _READY_WITHIN
    while not _have_units(await _read_compute_cluster(platform), pools):
        if now() > deadline:
            raise UnavailableError(f"the pools of the queues are not ready after {_READY_WITHIN:.0f} s")
        await asyncio.sleep(0.2)


async def _read_compute_cluster(platform: Platform) -> ComputeCluster:
    return msgspec.json.decode(
        await platform.compute.get(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER), type=ComputeCluster
    )


def _have_units(cluster: ComputeCluster, pools: Iterable[str]) -> bool:
    units = {pool.name: pool.allocatable.get(GPU) for pool in cluster.status.pools if pool.usable_nodes}
    return all(units.get(pool) == str(_UNITS) for pool in pools)


def pool_spec(name: str) -> dict[str, Any]:
    """Return a pool that evicts without notice, as Kueue does in its test."""
    return {"name": name, "nodeSelector": {POOL_LABEL: name}, "noticeSeconds": 0, "graceSeconds": _GRACE}


@contextlib.asynccontextmanager
async def priority_classes(client: Client) -> AsyncIterator[None]:
    """Create the PriorityClasses of the workloads in a cluster until the block ends."""
    await _create_classes(client)
    try:
        yield
    finally:
        for each in CLASSES:
            await client.delete(PRIORITY_CLASSES, each.name)


async def _create_classes(client: Client) -> None:
    for each in CLASSES:
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(PRIORITY_CLASSES, priority_class(each.name, each.priority))


def priority_class(name: str, value: int) -> dict[str, Any]:
    """Return the PriorityClass of a class of workloads."""
    return {
        "apiVersion": PRIORITY_CLASSES.api_version,
        "kind": PRIORITY_CLASSES.kind,
        "metadata": {"name": name},
        "value": value,
    }


async def set_preemption(platform: Platform, tenants: Iterable[str], within: WithinTenant) -> None:
    """Set whether workloads of higher priority preempt others of their tenant."""
    for name in tenants:
        await platform.compute.patch(TENANTS, name, {"spec": {"preemption": {"withinTenant": within}}})


class TenantRun(PodsRun):
    """One run of workloads as pods of tenants. It acts as the controller of a job does, and re-creates evicted pods."""

    def __init__(
        self, platform: Platform, places: Sequence[Place], *, run: str, log: WorkLog, group: asyncio.TaskGroup
    ) -> None:
        super().__init__(log=log, group=group)
        self._platform = platform
        self._places = {place.name: place for place in places}
        self._run = run
        self._works: dict[Key, Work] = {}

    async def create(self, work: Work) -> None:
        """Create the pod of a workload."""
        self.log.mark_created(work)
        await self._create_pod(work, 0)

    async def watch(self, opened: asyncio.Event) -> None:
        """Watch the pods of all tenants until cancelled."""
        tenants = [(place.client, constant_place(place.name)) for place in self._places.values()]
        async with watch_pods(tenants, run=self._run, timeline=Timeline(self._handle_tenant)):
            opened.set()
            await asyncio.Event().wait()

    def work_of(self, key: Key) -> Work:
        return self._works[key]

    def pod_evicted(self, key: Key) -> None:
        self.group.create_task(self._create_pod(self._works[key], int(key[1].rpartition("-")[2]) + 1))

    async def _create_pod(self, work: Work, attempt: int) -> None:
        name = f"{self._run}-{work.name}-{attempt}"
        self._works[work.queue, name] = work
        place, kind = self._places[work.queue], self._pod_kind(work)

        async def create() -> None:
            with contextlib.suppress(errors.AlreadyExists):
                await place.create_pod(name, kind)

        await persist(create)

    @abstractmethod
    def _pod_kind(self, work: Work) -> PodKind:
        """Return the pod of a workload."""

    @abstractmethod
    def _handle_tenant(self, mark: Mark, key: Key) -> None:
        """Handle what a tenant's API server shows of a pod for the first time."""


class AdmissionRun(TenantRun):
    """Run without schedulers and nodes: a pod starts when it loses its gate, and is deleted after its run.

    The gateway does not delete pods without compute pods, so an eviction would not show. The tenants need
    `set_preemption` with `Never`.
    """

    def _pod_kind(self, work: Work) -> PodKind:
        return PodKind(
            run=self._run, gpus=work.units, restart="Never", priority_class=work.kind, scheduler=_NO_SCHEDULER
        )

    def _handle_tenant(self, mark: Mark, key: Key) -> None:
        if mark == "admitted":
            self.pod_admitted(key)
            self.start_pod(key)
        elif mark == "gone":
            self.end_pod(key)

    async def finish_pod(self, key: Key) -> None:
        await self._places[key[0]].delete_pod(key[1], grace=0)


class PodRun(TenantRun):
    """Run with the whole lives of pods: a pod starts when its compute pod is Ready, and ends there after its run."""

    async def watch(self, opened: asyncio.Event) -> None:
        """Watch the pods of all tenants and the compute pods until cancelled."""
        compute = [(self._platform.compute, pod_tenant)]
        async with watch_pods(compute, run=self._run, timeline=Timeline(self._handle_compute)):
            await super().watch(opened)

    def _pod_kind(self, work: Work) -> PodKind:
        return PodKind(run=self._run, gpus=work.units, restart="Never", priority_class=work.kind)

    def _handle_tenant(self, mark: Mark, key: Key) -> None:
        if mark == "admitted":
            self.pod_admitted(key)
        else:
            self.handle_end(mark, key)

    def _handle_compute(self, mark: Mark, key: Key) -> None:
        if mark == "ready":
            self.start_pod(key)

    async def finish_pod(self, key: Key) -> None:
        tenant, name = key
        await complete_unless_evicted(self._platform.compute, names.compute_namespace(tenant, NAMESPACE), name)
