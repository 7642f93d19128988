"""The platform that the benchmarks run against: brought up for them, and always taken down again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.load import Place, each
from bench.procfs import CpuMeter
from bench.settings import Settings
from bench.timeline import now
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NODES, TENANTS
from vkgateway.local import gateway_process
from vkgateway.local import startup as local_platform
from vkgateway.local.down import down
from vkgateway.local.options import UpOptions
from vkgateway.local.paths import PlatformPaths
from vkgateway.local.record import PlatformRecord
from vkgateway.local.steps import Report
from vkgateway.model.api import DEFAULT_COMPUTE_CLUSTER, ComputeCluster, Tenant
from vkgateway.model.errors import UnavailableError
from vkgateway.model.objects import NodeView
from vkgateway.programs.binaries.resolver import Resolver
from vkgateway.programs.supervisor.client import SupervisorClient

POOL: Final = "a100"
"""For many small pods."""
GPU_POOL: Final = "v100"
"""For those that take GPUs by whole nodes; `GPU_NODES` of them, where something is measured there."""
GPU_NODES: Final = 16
GPUS_PER_NODE: Final = 8
_READY_WITHIN: Final = 180.0
_CALM_WITHIN: Final = 60.0
_CALM_LOOK: Final = 3.0
_CALM: Final = 1.5
"""So many times the cores that were busy before: what runs is looked after, too."""
Pool = Mapping[str, object]
"""A pool of a Tenant's spec: its name, and what is guaranteed there."""
_decode_tenant = msgspec.json.Decoder(Tenant).decode
_decode_compute_cluster = msgspec.json.Decoder(ComputeCluster).decode
_decode_node = msgspec.json.Decoder(NodeView).decode


class Platform:
    """A platform that is up, and its tenants."""

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
        """Show each pool as one virtual node, whatever zones its nodes are in."""
        pools = [
            msgspec.to_builtins(pool) | {"virtualNodesBy": ""} for pool in (await self._compute_cluster()).spec.pools
        ]
        await self.compute.patch(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER, {"spec": {"pools": pools}})

    async def _compute_cluster(self) -> ComputeCluster:
        return _decode_compute_cluster(await self.compute.get(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER))

    # -- tenants ---------------------------------------------------------------------------------------------------

    async def onboard(self, count: int) -> list[str]:
        """Have at least `count` tenants ready; returns the names of those that were not there before."""
        names = [f"bench-{number:02d}" for number in range(count)]
        missing = [name for name in names if name not in self.tenants]
        if missing:
            self.report(f"making {len(missing)} tenants")
            await each(missing, self._onboard, in_flight=3)
            self.report.done(f"{count} tenants: ready")
        return missing

    async def remove_tenants(self, names: list[str]) -> None:
        """Remove tenants with all that they have."""
        if names:
            self.report(f"removing {len(names)} tenants")
            await each(names, self._remove, in_flight=3)

    async def _remove(self, name: str) -> None:
        await self.tenants.pop(name).close()
        deadline = now() + _READY_WITHIN
        with contextlib.suppress(errors.NotFound):
            await self.compute.delete(TENANTS, name)
            while now() < deadline:
                await self.compute.get(TENANTS, name)
                await asyncio.sleep(0.1)
            raise UnavailableError(f"tenant {name} is still there after {_READY_WITHIN:.0f} s")

    async def _onboard(self, name: str) -> None:
        await self.create_tenant(name)

    async def create_tenant(self, name: str, *pools: Pool) -> float:
        """Make a tenant with these pools, or the one for many small pods; the seconds until its nodes were Ready."""
        started = now()
        with contextlib.suppress(errors.AlreadyExists):
            await self.compute.create(TENANTS, _tenant(name, pools or ({"name": POOL},)))
        await self.until_ready(name)
        seconds = now() - started
        self.tenants[name] = Client.from_kubeconfig(self.admin_kubeconfig(name), name=f"tenant {name}")
        return seconds

    async def until_ready(self, name: str) -> None:
        """Wait until a tenant is ready, its virtual node among that."""
        deadline = now() + _READY_WITHIN
        while True:
            tenant = _decode_tenant(await self.compute.get(TENANTS, name))
            if tenant.status.phase == "Ready":
                return
            if now() > deadline:
                raise UnavailableError(f"tenant {name} is {tenant.status.phase} after {_READY_WITHIN:.0f} s")
            await asyncio.sleep(0.05)

    async def until_schedulable(self, count: int) -> None:
        """Wait until the virtual nodes of the first tenants are ready and without taints."""
        for name in list(self.tenants)[:count]:
            await self.until_node_usable(name, POOL)

    async def until_node_usable(self, tenant: str, pool: str) -> None:
        """Wait until a tenant's virtual node is ready and without taints."""
        deadline = now() + _READY_WITHIN
        while True:
            node = _decode_node(await self.tenants[tenant].get(NODES, f"{pool}.local"))
            if node.is_usable and not node.spec.taints:
                return
            if now() > deadline:
                raise UnavailableError(f"the virtual node of tenant {tenant} does not become ready")
            await asyncio.sleep(0.2)

    @contextlib.asynccontextmanager
    async def tenants_with(self, pools: Mapping[str, Pool]) -> AsyncIterator[list[Place]]:
        """Tenants by name, each with one pool, for as long as the block lasts; their namespaces `default`."""
        self.report(f"making {len(pools)} tenants")
        try:
            for name, pool in pools.items():
                await self.create_tenant(name, pool)
                await self.until_node_usable(name, str(pool["name"]))
            yield [Place(name, self.tenants[name], "default") for name in pools]
        finally:
            await self.remove_tenants([name for name in pools if name in self.tenants])

    def places(self, count: int) -> list[Place]:
        """The tenants as places for pods: their namespace `default`."""
        return [Place(name, client, "default") for name, client in list(self.tenants.items())[:count]]

    def admin_kubeconfig(self, tenant: str) -> Path:
        """The kubeconfig of a tenant's admin."""
        return self.paths.data_dir / "tenants" / tenant / "admin.kubeconfig"

    async def kubectl(self) -> Path:
        """The program of the platform's own version."""
        resolver = Resolver(
            report=self.report.done,
            program_dirs=self.settings.program_dirs,
            kubernetes_version=self.record.kubernetes_version,
        )
        return (await resolver.resolve("kubectl"))["kubectl"]

    # -- processes -------------------------------------------------------------------------------------------------

    async def cores(self) -> float:
        """How many cores the platform's processes keep busy just now."""
        meter, started = await self.meter(), now()
        await asyncio.sleep(_CALM_LOOK)
        return sum(meter.read().values()) / (now() - started)

    async def until_calm(self, idle: float) -> None:
        """Wait until what a burst left behind is worked off: events are still written long after the last pod is ready.

        `idle`: the cores that were busy before it. Not waited for beyond a minute.
        """
        deadline = now() + _CALM_WITHIN
        while await self.cores() > _CALM * idle and now() < deadline:
            pass

    async def pids(self) -> Mapping[str, int]:
        """Processes by name."""
        return {state.name: state.pid for state in await self.supervisor.list_processes() if state.pid}

    async def gateway_pid(self) -> int:
        """The gateway's process."""
        found = (await self.pids()).get(gateway_process.NAME)
        if found is None:
            raise UnavailableError("the gateway does not run")
        return found

    async def meter(self) -> CpuMeter:
        """Begin to count CPU time by kind of process; `load` is this one."""
        groups: dict[str, list[int]] = {"load": [os.getpid()]}
        for name, pid in (await self.pids()).items():
            first, _, last = name.rpartition("/")
            group = f"tenants' {last}" if first.startswith("tenant") else f"{first} {last}".strip()
            groups.setdefault(group, []).append(pid)
        return CpuMeter(groups)

    async def stop_gateway(self) -> None:
        """Stop the gateway for a while."""
        await self.supervisor.remove_process(gateway_process.NAME)

    async def start_gateway(self, **arbiter: float) -> None:
        """Start the gateway, or restart it with other settings of its arbiter; returns once the process was started."""
        settings = gateway_process.gateway_settings(self.paths, record=self.record)
        settings = msgspec.structs.replace(settings, arbiter=msgspec.structs.replace(settings.arbiter, **arbiter))
        await self.supervisor.ensure_process(gateway_process.process_spec(self.paths, settings))

    async def kill_gateway(self) -> None:
        """End the gateway with no chance to say goodbye, and keep it down."""
        os.kill(await self.gateway_pid(), signal.SIGKILL)
        await self.stop_gateway()


@contextlib.asynccontextmanager
async def platform(
    settings: Settings, *, nodes: int, gpu_nodes: int = 1, real: bool = False, report: Report
) -> AsyncIterator[Platform]:
    """A platform with so many hollow nodes in its two pools for as long as the block lasts, and a real one if asked;
    removed afterwards unless it is to be kept.

    `settings.data_dir` names one to use or make; otherwise it is made in a new folder.
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
        made = Platform(folder, record, settings=settings, report=report)
        try:
            await made.undivide_pools()
            yield made
        finally:
            await made.close()
    finally:
        if not settings.keep:
            await asyncio.shield(down(folder, purge=True, report=report))


def _tenant(name: str, pools: Sequence[Pool]) -> Mapping[str, object]:
    return {
        "apiVersion": "vkgateway.io/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {"pools": list(pools)},
    }
