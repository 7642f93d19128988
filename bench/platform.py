"""Platform of the benchmarks: started for them, and always removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.load import Place, for_each
from bench.procfs import CpuMeter
from bench.servercounts import ServerCounts, read_counts
from bench.settings import Settings
from bench.timeline import now
from vkgateway.api.errors import UnavailableError
from vkgateway.api.objects import NodeView
from vkgateway.api.types import DEFAULT_COMPUTE_CLUSTER, ComputeCluster, Tenant
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NODES, TENANTS
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway.settings.config import LeaderElection
from vkgateway_platform.binaries.resolver import Resolver
from vkgateway_platform.embedded import gateway_process
from vkgateway_platform.embedded import startup as local_platform
from vkgateway_platform.embedded.down import down
from vkgateway_platform.embedded.options import UpOptions
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.steps import Report

POOL: Final = "a100"
"""Pool for many small pods."""
GPU_POOL: Final = "v100"
"""Pool for pods that use the GPUs of whole nodes, with `GPU_NODES` nodes if a benchmark needs it."""
GPU_NODES: Final = 16
GPUS_PER_NODE: Final = 8
_READY_WITHIN: Final = 180.0
_CALM_WITHIN: Final = 60.0
_CALM_SAMPLE: Final = 3.0
_CALM: Final = 1.5
"""Factor of the idle load below which the platform counts as calm, because running pods need some CPU, too."""
Pool = Mapping[str, object]
"""Pool of a Tenant's spec: its name and guarantee."""
_decode_tenant = msgspec.json.Decoder(Tenant).decode
_decode_compute_cluster = msgspec.json.Decoder(ComputeCluster).decode
_decode_node = msgspec.json.Decoder(NodeView).decode


class Platform:
    """Running platform with its tenants."""

    def __init__(self, data_dir: Path, record: PlatformRecord, *, settings: Settings, report: Report) -> None:
        self.paths = PlatformPaths(data_dir)
        self.record = record
        self.settings = settings
        self.report = report
        self.supervisor = SupervisorClient.for_data_dir(data_dir)
        self.compute = Client.from_kubeconfig(self.paths.admin_kubeconfig, name="the compute cluster")
        self.tenants: dict[str, Client] = {}

    async def close(self) -> None:
        """Close all connections."""
        for client in (self.compute, *self.tenants.values()):
            await client.close()

    async def undivide_pools(self) -> None:
        """Represent each pool as one virtual node, whatever zones its nodes are in."""
        pools = [
            msgspec.to_builtins(pool) | {"virtualNodesBy": ""} for pool in (await self._compute_cluster()).spec.pools
        ]
        await self.compute.patch(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER, {"spec": {"pools": pools}})

    async def _compute_cluster(self) -> ComputeCluster:
        return _decode_compute_cluster(await self.compute.get(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER))

    # -- tenants ---------------------------------------------------------------------------------------------------

    async def ensure_tenants(self, count: int) -> list[str]:
        """Create tenants until `count` are ready. Return the names of the new ones."""
        names = [f"bench-{number:02d}" for number in range(count)]
        missing = [name for name in names if name not in self.tenants]
        if missing:
            self.report(f"creating {len(missing)} tenants")
            await for_each(missing, self._add_tenant, in_flight=3)
            self.report.done(f"{count} tenants: ready")
        return missing

    async def remove_tenants(self, names: list[str]) -> None:
        """Delete tenants with all their objects."""
        if names:
            self.report(f"deleting {len(names)} tenants")
            await for_each(names, self._remove_tenant, in_flight=3)

    async def _remove_tenant(self, name: str) -> None:
        await self.tenants.pop(name).close()
        deadline = now() + _READY_WITHIN
        with contextlib.suppress(errors.NotFound):
            await self.compute.delete(TENANTS, name)
            while now() < deadline:
                await self.compute.get(TENANTS, name)
                await asyncio.sleep(0.1)
            raise UnavailableError(f"tenant {name} still exists after {_READY_WITHIN:.0f} s")

    async def _add_tenant(self, name: str) -> None:
        await self.create_tenant(name)

    async def create_tenant(self, name: str, *pools: Pool) -> float:
        """Create a tenant with these pools, by default `POOL`. Return the seconds until its nodes were Ready."""
        started = now()
        with contextlib.suppress(errors.AlreadyExists):
            await self.compute.create(TENANTS, _tenant_manifest(name, pools or ({"name": POOL},)))
        await self.wait_ready(name)
        seconds = now() - started
        self.tenants[name] = Client.from_kubeconfig(self.admin_kubeconfig(name), name=f"tenant {name}")
        return seconds

    async def wait_ready(self, name: str) -> None:
        """Wait until a tenant and its virtual nodes are ready."""
        deadline = now() + _READY_WITHIN
        while True:
            tenant = _decode_tenant(await self.compute.get(TENANTS, name))
            if tenant.status.phase == "Ready":
                return
            if now() > deadline:
                raise UnavailableError(f"tenant {name} is {tenant.status.phase} after {_READY_WITHIN:.0f} s")
            await asyncio.sleep(0.05)

    async def wait_schedulable(self, count: int) -> None:
        """Wait until the virtual nodes of the first `count` tenants are ready and have no taints."""
        for name in list(self.tenants)[:count]:
            await self.wait_node_usable(name, POOL)

    async def wait_node_usable(self, tenant: str, pool: str) -> None:
        """Wait until a tenant's virtual node is ready and has no taints."""
        deadline = now() + _READY_WITHIN
        while True:
            node = _decode_node(await self.tenants[tenant].get(NODES, f"{pool}.local"))
            if node.is_usable and not node.spec.taints:
                return
            if now() > deadline:
                raise UnavailableError(f"the virtual node of tenant {tenant} is not ready in time")
            await asyncio.sleep(0.2)

    @contextlib.asynccontextmanager
    async def temporary_tenants(self, pools: Mapping[str, Pool]) -> AsyncIterator[list[Place]]:
        """Create tenants, each with one pool, until the block ends, and yield their namespaces `default`."""
        self.report(f"creating {len(pools)} tenants")
        try:
            for name, pool in pools.items():
                await self.create_tenant(name, pool)
                await self.wait_node_usable(name, str(pool["name"]))
            yield [Place(name, self.tenants[name], "default") for name in pools]
        finally:
            await self.remove_tenants([name for name in pools if name in self.tenants])

    def tenant_places(self, count: int) -> list[Place]:
        """Return the namespaces `default` of the first `count` tenants."""
        return [Place(name, client, "default") for name, client in list(self.tenants.items())[:count]]

    def admin_kubeconfig(self, tenant: str) -> Path:
        """Return the kubeconfig of a tenant's admin."""
        return self.paths.data_dir / "tenants" / tenant / "admin.kubeconfig"

    async def kubectl_path(self) -> Path:
        """Return a kubectl of the platform's version."""
        resolver = Resolver(
            report=self.report.done,
            program_dirs=self.settings.program_dirs,
            kubernetes_version=self.record.kubernetes_version,
        )
        return (await resolver.resolve("kubectl"))["kubectl"]

    # -- processes -------------------------------------------------------------------------------------------------

    async def used_cores(self) -> float:
        """Return the number of cores that the platform's processes use now."""
        meter, started = await self.start_meter(), now()
        await asyncio.sleep(_CALM_SAMPLE)
        return sum(meter.read_seconds().values()) / (now() - started)

    async def wait_calm(self, idle: float) -> None:
        """Wait until the work of a burst is done, since events are still written long after the last pod is ready.

        `idle` is the number of cores in use before the burst. The wait ends after a minute at the latest.
        """
        deadline = now() + _CALM_WITHIN
        while await self.used_cores() > _CALM * idle and now() < deadline:
            pass

    async def process_ids(self) -> Mapping[str, int]:
        """Return process ids by name."""
        return {state.name: state.pid for state in await self.supervisor.list_processes() if state.pid}

    async def gateway_pid(self) -> int:
        """Return the gateway's process id."""
        found = (await self.process_ids()).get(gateway_process.NAME)
        if found is None:
            raise UnavailableError("the gateway is not running")
        return found

    async def start_meter(self) -> CpuMeter:
        """Return a meter of CPU time by kind of process. `load` is the benchmark's process."""
        return CpuMeter({"load": [os.getpid()], **group_processes(await self.process_ids(), _process_kind)})

    async def read_counts(self) -> dict[str, ServerCounts]:
        """Return what the API servers have counted since their start, by kind of server."""
        return {
            "the compute API server": await read_counts(self.compute),
            "the tenants' API servers": await read_counts(*self.tenants.values()),
        }

    async def stop_gateway(self) -> None:
        """Stop the gateway until it is started again."""
        await self.supervisor.remove_process(gateway_process.NAME)

    async def start_gateway(self, *, election: LeaderElection | None = None, **arbiter: float) -> None:
        """Start the gateway, or restart it with other settings of its leader election and arbiter.

        Return once the process was started.
        """
        settings = gateway_process.gateway_settings(self.paths, record=self.record)
        settings = msgspec.structs.replace(
            settings,
            leader_election=election or settings.leader_election,
            arbiter=msgspec.structs.replace(settings.arbiter, **arbiter),
        )
        await self.supervisor.ensure_process(gateway_process.process_spec(self.paths, settings))

    async def wait_gateway_ready(self) -> float:
        """Wait until the gateway's /readyz succeeds, and return that time."""
        deadline = now() + _READY_WITHIN
        while not await gateway_process.is_ready(self.record):
            if now() > deadline:
                raise UnavailableError(f"the gateway is not ready after {_READY_WITHIN:.0f} s")
            await asyncio.sleep(0.05)
        return now()

    async def kill_gateway(self) -> None:
        """Kill the gateway, and do not restart it."""
        os.kill(await self.gateway_pid(), signal.SIGKILL)
        await self.stop_gateway()


def group_processes(pids: Mapping[str, int], group_of: Callable[[str], str]) -> dict[str, list[int]]:
    """Return process ids by group. `group_of` returns the group of a process name."""
    groups: dict[str, list[int]] = {}
    for name, pid in pids.items():
        groups.setdefault(group_of(name), []).append(pid)
    return groups


def _process_kind(name: str) -> str:
    first, _, last = name.rpartition("/")
    return f"tenants' {last}" if first.startswith("tenant") else f"{first} {last}".strip()


@contextlib.asynccontextmanager
async def start_platform(
    settings: Settings, *, nodes: int, gpu_nodes: int = 1, real: bool = False, report: Report
) -> AsyncIterator[Platform]:
    """Start a platform with hollow nodes in two pools, and yield it.

    `real` adds a real node.

    The platform is removed after the block, unless it must be kept. `settings.data_dir` is the directory of an existing
    or new platform, by default a new directory.
    """
    folder = settings.data_dir or Path(tempfile.mkdtemp(prefix="vkgateway-bench-"))
    options = UpOptions(
        real_node="yes" if real else "no",
        hollow_nodes={POOL: nodes, GPU_POOL: gpu_nodes},
        durable=False,
        program_dirs=settings.program_dirs,
    )
    try:
        record = await local_platform.up(folder, options, report=report)
        platform = Platform(folder, record, settings=settings, report=report)
        try:
            await platform.undivide_pools()
            yield platform
        finally:
            await platform.close()
    finally:
        if not settings.keep:
            await asyncio.shield(down(folder, purge=True, report=report))


def _tenant_manifest(name: str, pools: Sequence[Pool]) -> Mapping[str, object]:
    return {
        "apiVersion": "vkgateway.io/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {"pools": list(pools)},
    }
