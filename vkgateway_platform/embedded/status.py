"""State of a platform: processes, nodes, tenants and addresses, as they answer."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from vkgateway.api.errors import InputError, NotFoundError
from vkgateway.api.objects import NodeView, is_condition_true
from vkgateway.api.types import Tenant
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES, TENANTS, Resource
from vkgateway.planes.supervisor.client import SupervisorClient, SupervisorUnavailable
from vkgateway.planes.supervisor.spec import ProcessState
from vkgateway_platform.embedded import compute, gateway_process, machine_problems, probes, processes
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.hollow import kwok
from vkgateway_platform.embedded.hollow.kubelet import process as hollow_kubelet
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL
from vkgateway_platform.embedded.lock import check_idle
from vkgateway_platform.embedded.node_setup import process as node_setup
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import first_authority_expiry, first_expiry
from vkgateway_platform.embedded.provisioner import process as provisioner
from vkgateway_platform.embedded.realnode.processes import GROUP as NODE_GROUP
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.renewal import process as renewal

_SOON = datetime.timedelta(days=60)
"""Remaining lifetime of a certificate from which a warning is shown; the renewal is due long before."""
_YEARS = datetime.timedelta(days=2 * 365)
"""Remaining lifetime of a CA from which a warning is shown."""

T = TypeVar("T")
State = Literal["up", "degraded", "down"]
_NEEDED = (
    "etcd",
    *(f"{compute.GROUP}/{name}" for name in ("apiserver", "controller-manager", "scheduler")),
    kwok.NAME,
    hollow_kubelet.NAME,
    provisioner.NAME,
    renewal.NAME,
    gateway_process.NAME,
)


class NodeSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A node of the compute cluster."""

    name: str
    pool: str
    ready: bool


class TenantSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant, and the URL of its API server."""

    name: str
    phase: str
    url: str


class ProcessSummary(ProcessState, kw_only=True):
    """A process and its problem; empty if it is healthy or has no health check."""

    problem: str = ""


class PlatformStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that `vkgateway status` shows."""

    state: State
    problems: tuple[str, ...]
    """Problems, one sentence each."""
    data_dir: str
    address: str
    ports: dict[str, int]
    kubernetes_version: str
    compute_url: str
    kubeconfig: str
    real_node: str
    """`yes`, or the reason why there is none yet or at all."""
    processes: tuple[ProcessSummary, ...]
    nodes: tuple[NodeSummary, ...]
    tenants: tuple[TenantSummary, ...]


async def platform_status(data_dir: Path) -> PlatformStatus:
    """Return the state of the platform; a component that does not answer is a problem, not an error.

    Raises:
        NotFoundError: there is no platform in `data_dir`.
        ConflictError: the first `up` is fetching its programs.
    """
    paths = PlatformPaths(data_dir)
    record = records.load_record(paths.record_path)
    if record is None:
        check_idle(paths.lock_path)
        raise NotFoundError(f"there is no platform in {data_dir}", hint="Start one with `vkgateway up`.")
    states, problems = await _list_processes(data_dir)
    problems += machine_problems.find(data_dir, is_down=any(state.state == "backoff" for state in states))
    problems += _process_problems(states, record=record)
    problems += _certificate_problems(paths, now=datetime.datetime.now(datetime.UTC)) if states else []
    nodes: tuple[NodeSummary, ...] = ()
    tenants: tuple[TenantSummary, ...] = ()
    unhealthy: dict[str, str] = {}
    if states:
        try:
            async with asyncio.timeout(probes.PATIENCE):
                nodes, tenants = await _list_cluster(paths)
        except (errors.ApiError, InputError, TimeoutError) as error:
            problems.append(f"the compute cluster does not answer: {str(error) or f'within {probes.PATIENCE:.0f} s'}")
        urls = {tenant.name: tenant.url for tenant in tenants if tenant.url}
        unhealthy = await probes.find_problems(states, paths=paths, record=record, tenants=urls)
    problems += [f"{name} does not work: {why}" for name, why in unhealthy.items()]
    problems += [f"node {node.name} is not ready" for node in nodes if not node.ready]
    return PlatformStatus(
        state=("degraded" if problems else "up") if states else "down",
        problems=tuple(problems),
        data_dir=str(data_dir),
        address=record.address,
        ports=record.ports,
        kubernetes_version=record.kubernetes_version,
        compute_url=compute.plane_spec(record).server_url if record.ports else "",
        kubeconfig=str(paths.admin_kubeconfig),
        real_node=_real_node_text(states, record=record),
        processes=tuple(_process_summary(state, problem=unhealthy.get(state.name, "")) for state in states),
        nodes=nodes,
        tenants=tenants,
    )


async def _list_processes(data_dir: Path) -> tuple[list[ProcessState], list[str]]:
    """Return the processes, and the problems of the supervisor."""
    try:
        return await SupervisorClient.for_data_dir(data_dir, timeout=probes.PATIENCE).list_processes(), []
    except SupervisorUnavailable as error:
        found = processes.list_unsupervised(data_dir, why="the supervisor does not answer")
        return found, [f"{error}: no process that ends is restarted; `vkgateway up` starts it"] if found else []


def _process_summary(state: ProcessState, *, problem: str) -> ProcessSummary:
    return ProcessSummary(**msgspec.structs.asdict(state), problem=problem)


def _process_problems(states: list[ProcessState], *, record: PlatformRecord) -> list[str]:
    if not states:
        return ["nothing runs; `vkgateway up` starts it"]
    names = {state.name for state in states}
    problems = [f"{name} is missing; `vkgateway up` starts it" for name in _NEEDED if name not in names]
    if record.real_node_why_not is None and not names & {f"{NODE_GROUP}/kubelet", node_setup.NAME}:
        problems.append("the real node is missing; `vkgateway up` starts it")
    if failure := node_setup.find_failure(states):
        problems.append(f"the real node cannot be set up: {failure}")
    problems += [f"{s.name} is down: {s.reason}" for s in states if s.state == "backoff"]
    return problems


def _real_node_text(states: list[ProcessState], *, record: PlatformRecord) -> str:
    if record.real_node_why_not is None and node_setup.find_failure(states) is not None:
        return node_setup.IN_PROGRESS
    return record.real_node_why_not or "yes"


def _certificate_problems(paths: PlatformPaths, *, now: datetime.datetime) -> list[str]:
    problems = []
    end = first_expiry(paths)
    if end is not None and end - now <= _SOON:
        why = f"`vkgateway logs {renewal.NAME}` shows why they were not renewed; `vkgateway up` renews them"
        problems.append(f"the first of the platform's certificates {_expiry_text(end, now=now)}; {why}")
    authority = first_authority_expiry(paths)
    if authority is not None and authority[1] - now <= _YEARS:
        problems.append(f"the authority {authority[0]} {_expiry_text(authority[1], now=now)}, and the platform with it")
    return problems


def _expiry_text(end: datetime.datetime, *, now: datetime.datetime) -> str:
    return f"{'has ended' if end <= now else 'ends'} on {end:%Y-%m-%d}"


async def _list_cluster(paths: PlatformPaths) -> tuple[tuple[NodeSummary, ...], tuple[TenantSummary, ...]]:
    async with Client.from_kubeconfig(paths.admin_kubeconfig, name="the compute cluster") as client:
        nodes = [_node_summary(view) for view in await _list_all(client, NODES, NodeView)]
        try:
            tenants = [_tenant_summary(tenant) for tenant in await _list_all(client, TENANTS, Tenant)]
        except errors.NotFound:
            tenants = []
    return tuple(nodes), tuple(tenants)


async def _list_all(client: Client, resource: Resource, kind: type[T]) -> list[T]:
    found = []
    async for page in client.list_pages(resource):
        found += [msgspec.json.decode(item, type=kind) for item in page.items]
    return found


def _node_summary(view: NodeView) -> NodeSummary:
    ready = is_condition_true(view.status.conditions, "Ready")
    return NodeSummary(view.metadata.name, view.metadata.labels.get(POOL_LABEL, ""), ready)


def _tenant_summary(tenant: Tenant) -> TenantSummary:
    server = tenant.status.api_server
    return TenantSummary(tenant.metadata.name, tenant.status.phase, server.url if server else "")
