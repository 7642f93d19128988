"""Memory, CPU and requests of a platform whose tenants are mostly idle."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import procfs, startmetrics
from bench.platform import Platform, group_processes
from bench.procfs import CpuMeter
from bench.residents import has_operator
from bench.samples import read_samples
from bench.timeline import now
from vkgateway.api.objects import decode_object
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES
from vkgateway_platform.embedded import gateway_process

GATEWAY: Final = gateway_process.NAME
ETCD: Final = "etcd"
COMPUTE: Final = "compute/apiserver"
OTHER: Final = "other"
PLAIN: Final = "tenants without operator"
BUSY: Final = "tenants with operator"
_CORDONS: Final = 4
_TENANT: Final = re.compile(r"tenant/bench-(\d+)/")

Requests = Mapping[tuple[str, str], float]
"""Requests by kind of cluster and method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPage:
    """Figures on the gateway's page of metrics. `watches` has the kind of cluster as key, `datastore` is in MiB."""

    requests: Requests
    watches: Mapping[str, float]
    datastore: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleFigures:
    """Figures of an idle platform.

    `pss` is in MiB and `cpu` in percent of a core, both by group of processes. `requests` are per second. `available`
    is the machine's free memory in MiB.
    """

    pss: Mapping[str, float]
    cpu: Mapping[str, float]
    requests: Requests
    watches: Mapping[str, float]
    connections: int
    datastore: float
    available: float

    def requests_to(self, *clusters: str) -> float:
        """Return the requests per second to these kinds of clusters."""
        return sum(rate for (cluster, _), rate in self.requests.items() if cluster in clusters)

    def watches_of(self, *clusters: str) -> float:
        """Return the number of open watches of these kinds of clusters."""
        return sum(self.watches.get(cluster, 0.0) for cluster in clusters)


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonFigures:
    """What a node that becomes usable or unusable costs: the gateway's CPU in ms, and its requests to tenants."""

    cpu_ms: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProcess:
    """Running gateway: its process ID, and the socket where it serves metrics."""

    pid: int
    socket: Path


async def find_gateway(platform: Platform) -> GatewayProcess:
    """Return the gateway of a platform."""
    return GatewayProcess(pid=await platform.gateway_pid(), socket=platform.paths.data_dir / "run/gateway.sock")


async def measure_idle(gateway: GatewayProcess, groups: Mapping[str, Sequence[int]], *, seconds: float) -> IdleFigures:
    """Observe a gateway, and groups of processes that include it, for this duration."""
    before = await read_page(gateway.socket)
    meter, started = CpuMeter(groups), now()
    await asyncio.sleep(seconds)
    elapsed = now() - started
    cpu = {group: 100 * used / elapsed for group, used in meter.read_seconds().items()}
    after = await read_page(gateway.socket)
    return IdleFigures(
        pss=await asyncio.to_thread(_pss_by_group, groups),
        cpu=cpu,
        requests={key: (count - before.requests.get(key, 0.0)) / elapsed for key, count in after.requests.items()},
        watches=after.watches,
        connections=procfs.tcp_connections(gateway.pid),
        datastore=after.datastore,
        available=procfs.available_mib(),
    )


async def measure_platform(platform: Platform, *, seconds: float) -> IdleFigures:
    """Observe all processes of a platform for this duration."""
    groups = group_processes(await platform.process_ids(), process_group)
    return await measure_idle(await find_gateway(platform), groups, seconds=seconds)


async def measure_cordons(
    gateway: GatewayProcess, compute: Client, *, selector: str, idle: IdleFigures, interval: float = 4.0
) -> CordonFigures:
    """Cordon a node that matches `selector` and make it usable again, several times. Subtract the idle load.

    In `interval` seconds, the virtual nodes of all tenants must be updated.
    """
    name = decode_object((await compute.list_all(NODES, label_selector=selector)).items[0]).metadata.name
    before = await read_page(gateway.socket)
    meter, started = CpuMeter({GATEWAY: [gateway.pid]}), now()
    for number in range(_CORDONS):
        await compute.patch(NODES, name, {"spec": {"unschedulable": number % 2 == 0 or None}})
        await asyncio.sleep(interval)
    elapsed, used = now() - started, meter.read_seconds()[GATEWAY]
    after = await read_page(gateway.socket)
    sent = sum(count - before.requests.get(key, 0.0) for key, count in after.requests.items() if key[0] == "tenant")
    return CordonFigures(
        cpu_ms=max(0.0, 1000 * (used - elapsed * idle.cpu[GATEWAY] / 100)) / _CORDONS,
        requests=max(0.0, sent - elapsed * idle.requests_to("tenant")) / _CORDONS,
    )


def process_group(name: str) -> str:
    """Return the group of a process by its name at the supervisor."""
    if (tenant := _TENANT.match(name)) is not None:
        return BUSY if has_operator(int(tenant[1])) else PLAIN
    return name if name in (GATEWAY, ETCD, COMPUTE) else OTHER


def parse_page(text: str) -> GatewayPage:
    """Return the figures in a page of metrics."""
    requests: dict[tuple[str, str], float] = {}
    watches: dict[str, float] = {}
    datastore = 0.0
    for metric, labels, value in read_samples(text, "vkgateway_"):
        if metric == "vkgateway_api_requests_total":
            requests[labels["cluster"], labels["method"]] = value
        elif metric == "vkgateway_api_watches":
            watches[labels["cluster"]] = value
        elif metric == "vkgateway_datastore_bytes" and labels["what"] == "in_use":
            datastore = value / 2**20
    return GatewayPage(requests=requests, watches=watches, datastore=datastore)


async def read_page(socket: Path) -> GatewayPage:
    """Return the figures from a gateway's socket."""
    return parse_page(await startmetrics.fetch_metrics(socket))


def _pss_by_group(groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {group: sum(map(procfs.pss_mib, pids)) for group, pids in groups.items()}
