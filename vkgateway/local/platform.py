"""Bringing a platform up: ordered steps, each of which changes nothing where all is as it should be."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from vkgateway.controlplane.etcd.tenancy import Tenancy
from vkgateway.controlplane.layout import PlaneFiles
from vkgateway.controlplane.plane import ComponentName
from vkgateway.gateway import rights
from vkgateway.gateway.config import Config
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES
from vkgateway.local import choices, compute, etcd, gateway_process, neighbours, network, processes, real, tenants
from vkgateway.local import record as records
from vkgateway.local.disk import ROOM_AGAIN_BYTES, ROOM_BYTES, check_room, disk_errors
from vkgateway.local.hollow import kwok, nodes
from vkgateway.local.hollow import process as hollow
from vkgateway.local.hollow.kubelet import process as hollow_kubelet
from vkgateway.local.hollow.ready import nodes_ready
from vkgateway.local.hollow.surplus import remove_surplus
from vkgateway.local.kernel import ensure_inotify
from vkgateway.local.lock import work_lock
from vkgateway.local.options import UpOptions
from vkgateway.local.paths import Paths
from vkgateway.local.pki import PlatformPki, ensure_pki
from vkgateway.local.provisioner import process as provisioner
from vkgateway.local.real import RealNodeSteps
from vkgateway.local.record import PlatformRecord
from vkgateway.local.renewal import process as renewal
from vkgateway.local.steps import Report, Step, run_steps
from vkgateway.model.errors import ConflictError, VkgatewayError
from vkgateway.model.names import FIELD_MANAGER
from vkgateway.programs.binaries.cache import Cache
from vkgateway.programs.binaries.errors import UnknownVersionError
from vkgateway.programs.binaries.resolver import Resolver
from vkgateway.programs.supervisor.client import SupervisorClient, start_supervisor
from vkgateway.programs.supervisor.spec import ProcessSpec, SupervisorPaths

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")


async def up(data_dir: Path, options: UpOptions, *, report: Report) -> PlatformRecord:
    """Bring the platform in `data_dir` up, made where there is none; what was chosen for it.

    Raises:
        VkgatewayError: one sentence on what failed; what was done stays, and `up` again goes on from there.
    """
    paths = Paths(data_dir)
    with disk_errors(data_dir), work_lock(paths.lock, command="up"):
        existing = records.load(paths.record)
        check_room(data_dir, needed=ROOM_BYTES if existing is None else ROOM_AGAIN_BYTES)
        if existing is None:
            _check_vacant(paths)
        wanted = choices.merge(existing or PlatformRecord(), options)
        wanted = msgspec.structs.replace(wanted, real_node_why_not=real.why_no_real_node(wanted.real_node))
        # Before anything is made or written down: this is what takes minutes, and what fails on a wrong version.
        wanted, programs = await _programs(wanted, options, report=report)
        with neighbours.others(options.cache_dir or Cache.default_root(), data_dir) as others:
            record = _settle(paths, wanted, options, others=others, new=existing is None)
        ensure_inotify(report)
        supervisor = await start_supervisor(data_dir)
        await Startup(paths, record, options, programs=programs, supervisor=supervisor, report=report).run()
        return record


async def _programs(
    wanted: PlatformRecord, options: UpOptions, *, report: Report
) -> tuple[PlatformRecord, dict[str, Path]]:
    """The programs, and the record as it is with them: not every release's kubelet can be had everywhere.

    Where a real node need not be, there is none then, and the record says why.
    """
    resolver = Resolver(
        cache_dir=options.cache_dir,
        program_dirs=tuple(Path(folder) for folder in wanted.program_dirs),
        report=report,
        kubernetes_version=wanted.kubernetes_version,
    )
    try:
        found = await resolver.resolve(*PROGRAMS, *(() if wanted.real_node_why_not else RealNodeSteps.PROGRAMS))
    except UnknownVersionError as error:
        if wanted.real_node != "auto" or wanted.real_node_why_not:
            raise
        found = await resolver.resolve(*PROGRAMS)
        wanted = msgspec.structs.replace(wanted, real_node_why_not=f"its programs cannot be had: {error}")
        report.done(f"no real node: {error}")
    report.done(f"{len(found)} programs, Kubernetes {wanted.kubernetes_version}: ready")
    return wanted, found


def _settle(
    paths: Paths, wanted: PlatformRecord, options: UpOptions, *, others: frozenset[choices.Socket], new: bool
) -> PlatformRecord:
    """Settle address and ports, and write all choices down; a new platform that is refused leaves nothing."""
    surroundings = choices.look(neighbours=others)
    placed = choices.place(wanted, surroundings=surroundings)
    owner = network.alias(paths.data_dir)
    try:
        if placed.interface:
            # Whether a port is free can only be seen at an address that is there.
            network.ensure_interface(placed.interface, address=placed.address, owner=owner)
        ours = partial(processes.listening, paths.data_dir)
        record = choices.choose_ports(placed, options, surroundings=surroundings, ours=ours)
        records.save(paths.record, record)
    except (VkgatewayError, OSError):
        if new:
            network.remove_interfaces(owner)
        raise
    return record


def _check_vacant(paths: Paths) -> None:
    """A new platform needs a place of its own; what a broken off `up` or `down` left does no harm.

    They leave the lock at most, and results of conformance cases can be put there before. Others have folders called
    `run` and `logs` as well, so those are ours only where a supervisor ran; every file system has `lost+found`.
    """
    ran = SupervisorPaths(paths.data_dir).lock.exists()
    ours = {"lost+found", *(path.name for path in (paths.all() if ran else (paths.lock, paths.conformance)))}
    strange = sorted(path.name for path in paths.data_dir.iterdir() if path.name not in ours)
    if strange:
        raise ConflictError(
            f"{paths.data_dir} holds no platform but other files, {strange[0]} among them",
            hint="Choose an empty or new place with --data-dir DIR.",
        )


class Startup:
    """One run of `up`: what its steps share."""

    def __init__(
        self,
        paths: Paths,
        record: PlatformRecord,
        options: UpOptions,
        *,
        programs: Mapping[str, Path],
        supervisor: SupervisorClient,
        report: Report,
    ) -> None:
        self._paths = paths
        self._record = record
        self._options = options
        self._supervisor = supervisor
        self._report = report
        self._programs = programs
        self._pki: PlatformPki
        self._files: PlaneFiles
        self._api: Client
        self._real = None
        if not record.real_node_why_not:
            self._real = RealNodeSteps(paths.node, record=record, supervisor=supervisor)

    async def run(self) -> None:
        """Run all steps."""
        self._write_files()
        async with Client.from_kubeconfig(self._paths.kubeconfig, name="the compute cluster") as self._api:
            await run_steps(self._steps(), report=self._report)

    def _write_files(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self._pki = ensure_pki(self._paths, now=now)
        self._files = compute.write_plane(self._paths, record=self._record, pki=self._pki, now=now)

    def _steps(self) -> list[Step]:
        def component(name: ComponentName, title: str) -> Step:
            # The two that call the API server wait for it by themselves, so they load while it does.
            return Step(name=name, title=title, needs=("etcd",), run=lambda: self._component(name))

        steps = [
            Step(name="etcd", title="etcd", run=self._etcd),
            Step(name="apiserver", title="compute API server", needs=("etcd",), run=self._api_server),
            component("controller-manager", "compute controller-manager"),
            component("scheduler", "compute scheduler"),
            Step(name="definitions", title="API types", needs=("apiserver",), run=self._definitions),
            Step(name="hollow", title="hollow nodes", needs=("apiserver",), run=self._hollow),
            Step(name="storage", title="storage", needs=("apiserver",), run=self._storage),
            Step(name="renewal", title="renewal of certificates", run=self._renewal),
        ]
        if self._real:
            steps += self._real.steps(programs=self._programs, api=self._api, authority=self._pki.compute.ca)
        elif self._paths.node.exists():
            steps.append(Step(name="no-real-node", title="real node", needs=("apiserver",), run=self._no_real_node))
        if not self._options.gateway:
            return [*steps, Step(name="gateway", title="gateway", needs=("definitions",), run=self._no_gateway)]
        return [
            *steps,
            Step(name="gateway", title="gateway", needs=("definitions",), run=self._gateway),
            Step(name="tenants", title="tenants", needs=("gateway",), run=self._tenants),
        ]

    async def _etcd(self) -> None:
        ports = self._record.ports
        await self._supervisor.ensure(
            etcd.spec(
                self._paths,
                program=self._programs["etcd"],
                port=ports["etcd"],
                peer_port=ports["etcd-peer"],
                durable=self._record.durable,
            )
        )
        async with etcd.root_client(self._paths, port=ports["etcd"]) as client:
            await self._until(lambda: etcd.serves(client), etcd.NAME)
            await Tenancy(client).ensure_auth()

    async def _api_server(self) -> str:
        await self._component("apiserver")
        await self._until(lambda: processes.api_ready(self._api), f"{compute.GROUP}/apiserver")
        return self._api.server

    async def _component(self, name: ComponentName) -> str:
        wanted = compute.spec(name, record=self._record, files=self._files, programs=self._programs)
        await self._supervisor.ensure(wanted)
        return "started"

    async def _definitions(self) -> str:
        pools = [*self._record.hollow_nodes, *([real.POOL] if self._real else [])]
        documents = [
            *compute.definitions(),
            *rights.compute(),
            *rights.management(),
            *compute.lean_pods(self._record),
            compute.compute_cluster(pools, hollow=self._record.hollow_nodes),
            *compute.own_endpoints(self._record),
        ]
        await apply_objects(self._api, documents, field_manager=FIELD_MANAGER)
        return f"ComputeCluster local with pools {', '.join(pools)}"

    async def _hollow(self) -> str:
        wanted = list(nodes.nodes(self._record.hollow_nodes, version=self._record.kubernetes_version))
        bounded = asyncio.Semaphore(8)

        async def apply(node: dict[str, Any]) -> None:
            async with bounded:
                await self._apply_node(node)

        async with asyncio.TaskGroup() as group:
            for node in wanted:
                group.create_task(apply(node))
            group.create_task(self._supervisor.ensure(self._kwok()))
            group.create_task(self._supervisor.ensure(self._hollow_kubelet()))
        gone = await remove_surplus(self._api, self._record.hollow_nodes)
        await self._until(lambda: nodes_ready(self._api, len(wanted)), kwok.NAME)
        port = self._record.ports["hollow-kubelet"]
        await self._until(lambda: hollow_kubelet.listens(port), hollow_kubelet.NAME)
        removed = f", {', '.join(gone)} taken away" if gone else ""
        return f"{len(wanted)} in {', '.join(self._record.hollow_nodes)}{removed}"

    async def _apply_node(self, node: dict[str, Any]) -> None:
        """A node's capacity lies in its status, which is applied apart from the rest."""
        name = node["metadata"]["name"]
        bare = {key: value for key, value in node.items() if key != "status"}
        await self._api.patch(NODES, name, bare, kind="apply", field_manager=FIELD_MANAGER)
        head = {key: node[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": name}}
        status = {**head, "status": node["status"]}
        await self._api.patch(NODES, name, status, kind="apply", subresource="status", field_manager=FIELD_MANAGER)

    def _kwok(self) -> ProcessSpec:
        return hollow.spec(self._paths, port=self._record.ports["hollow-kubelet"], program=self._programs["kwok"])

    def _hollow_kubelet(self) -> ProcessSpec:
        return hollow_kubelet.spec(self._paths, port=self._record.ports["hollow-kubelet"])

    async def _storage(self) -> str:
        await apply_objects(self._api, provisioner.objects(), field_manager=FIELD_MANAGER)
        shape = compute.plane(self._record)
        await self._supervisor.ensure(provisioner.spec(self._paths, plane=shape, pki=self._pki))
        return "class local"

    async def _renewal(self) -> str:
        await self._supervisor.ensure(renewal.spec(self._paths))
        return "daily"

    async def _no_real_node(self) -> str:
        await real.remove(self._paths.node, record=self._record, supervisor=self._supervisor, api=self._api)
        return f"taken away: {self._record.real_node_why_not}"

    async def _no_gateway(self) -> str:
        gateway_process.write(self._paths, self._gateway_settings())
        by_hand = f"`vkgateway serve --config {self._paths.gateway_config}` runs one by hand"
        if not await self._supervisor.list(gateway_process.NAME):
            return f"not asked for; {by_hand}"
        await self._supervisor.remove(gateway_process.NAME)
        return f"stopped; tenants' control planes go on; {by_hand}"

    async def _gateway(self) -> None:
        await self._supervisor.ensure(gateway_process.spec(self._paths, self._gateway_settings()))
        await self._until(lambda: gateway_process.ready(self._record), gateway_process.NAME)

    async def _tenants(self) -> str:
        return await tenants.wait(await tenants.served(self._api), tenants.check(self._paths.tenants))

    def _gateway_settings(self) -> Config:
        return gateway_process.settings(self._paths, record=self._record, cache_dir=self._options.cache_dir)

    async def _until(self, serves: Callable[[], Awaitable[bool]], process: str) -> None:
        await processes.until(serves, process=process, client=self._supervisor)
