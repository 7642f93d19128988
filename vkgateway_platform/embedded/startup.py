"""Start of a platform in ordered steps; a step changes nothing if all is up to date."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from vkgateway.api.errors import ConflictError, VkgatewayError
from vkgateway.api.names import FIELD_MANAGER
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.planes.etcd.tenancy import Tenancy
from vkgateway.planes.plane import ComponentName
from vkgateway.planes.plane_files import PlaneFiles
from vkgateway.planes.supervisor.client import SupervisorClient, start_supervisor
from vkgateway.planes.supervisor.spec import SupervisorPaths
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.resolver import Resolver
from vkgateway_platform.embedded import (
    chart_files,
    choices,
    compute,
    etcd,
    network,
    platform_registry,
    processes,
    real_node_steps,
)
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.disk import EXISTING_PLATFORM_BYTES, NEW_PLATFORM_BYTES, check_free_space, disk_errors
from vkgateway_platform.embedded.gateway_steps import GatewaySteps
from vkgateway_platform.embedded.hollow.steps import HollowNodeSteps
from vkgateway_platform.embedded.kernel import ensure_inotify
from vkgateway_platform.embedded.lock import work_lock
from vkgateway_platform.embedded.node_setup import process as node_setup
from vkgateway_platform.embedded.options import UpOptions
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import PlatformPki, ensure_pki
from vkgateway_platform.embedded.provisioner import process as provisioner
from vkgateway_platform.embedded.real_node_steps import RealNodeSteps
from vkgateway_platform.embedded.realnode.options import PROGRAMS as REAL_NODE_PROGRAMS
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.renewal import process as renewal
from vkgateway_platform.embedded.steps import Report, Step, run_steps

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")


async def up(data_dir: Path, options: UpOptions, *, report: Report) -> PlatformRecord:
    """Start the platform in `data_dir`, created if it does not exist; return its choices.

    Raises:
        VkgatewayError: one sentence on the failure. Finished steps stay, and the next `up` continues from there.
    """
    paths = PlatformPaths(data_dir)
    with disk_errors(data_dir), work_lock(paths.lock_path, command="up"):
        existing = records.load_record(paths.record_path)
        check_free_space(data_dir, needed=NEW_PLATFORM_BYTES if existing is None else EXISTING_PLATFORM_BYTES)
        if existing is None:
            _check_vacant(paths)
        wanted = choices.merge_options(existing or PlatformRecord(), options)
        wanted = msgspec.structs.replace(wanted, real_node_why_not=real_node_steps.why_no_real_node(wanted.real_node))
        # First of all, since this takes minutes and fails for a wrong version.
        programs = await _resolve_programs(wanted, options, report=report)
        with platform_registry.other_sockets(options.cache_dir or Cache.default_root(), data_dir) as others:
            record = _save_choices(paths, wanted, options, others=others, new=existing is None)
        ensure_inotify(report)
        supervisor = await start_supervisor(data_dir)
        await Startup(paths, record, options, programs=programs, supervisor=supervisor, report=report).run()
        return record


async def _resolve_programs(record: PlatformRecord, options: UpOptions, *, report: Report) -> dict[str, Path]:
    """Return the programs, without those of an optional real node while one is missing.

    These take as long as all others. So the platform starts without them, and `node_setup` adds the node.
    """
    node = () if record.real_node_why_not else REAL_NODE_PROGRAMS
    if record.real_node == "auto" and not await _resolver(record, options, report=_discard).has_programs(*node):
        node = ()
    found = await _resolver(record, options, report=report).resolve(*PROGRAMS, *node)
    report.done(f"{len(found)} programs, Kubernetes {record.kubernetes_version}: ready")
    return found


def _discard(_: str) -> None:
    """Discard the messages of a first look: the resolution repeats them."""


def _resolver(record: PlatformRecord, options: UpOptions, *, report: Callable[[str], None]) -> Resolver:
    return Resolver(
        cache_dir=options.cache_dir,
        program_dirs=tuple(Path(folder) for folder in record.program_dirs),
        report=report,
        kubernetes_version=record.kubernetes_version,
    )


async def fetch_node_programs(data_dir: Path, *, report: Report) -> None:
    """Fetch the programs of the real node of the platform in `data_dir`."""
    record = records.load_record(PlatformPaths(data_dir).record_path)
    if record is not None:
        await _resolver(record, UpOptions(), report=report).resolve(*REAL_NODE_PROGRAMS)


def leave_out_real_node(data_dir: Path, *, reason: str) -> None:
    """Record why the platform has no real node, until the next `up`.

    Raises:
        ConflictError: another command works on the platform.
    """
    paths = PlatformPaths(data_dir)
    with disk_errors(data_dir), work_lock(paths.lock_path, command="real node"):
        record = records.load_record(paths.record_path)
        if record is not None:
            records.save_record(paths.record_path, msgspec.structs.replace(record, real_node_why_not=reason))


async def add_real_node(data_dir: Path, *, report: Report) -> None:
    """Start the real node of a running platform, and do nothing else to it.

    Raises:
        ConflictError: another command works on the platform.
        VkgatewayError: a step failed.
    """
    paths = PlatformPaths(data_dir)
    with disk_errors(data_dir), work_lock(paths.lock_path, command="real node"):
        record = records.load_record(paths.record_path)
        if record is None or record.real_node_why_not:
            return
        programs = await _resolver(record, UpOptions(), report=report).resolve(*REAL_NODE_PROGRAMS)
        supervisor = SupervisorClient.for_data_dir(data_dir)
        startup = Startup(paths, record, UpOptions(), programs=programs, supervisor=supervisor, report=report)
        await startup.run_node_steps()


def _save_choices(
    paths: PlatformPaths,
    wanted: PlatformRecord,
    options: UpOptions,
    *,
    others: frozenset[choices.ListenSocket],
    new: bool,
) -> PlatformRecord:
    """Choose address and ports and save all choices; a refused new platform leaves nothing."""
    surroundings = choices.detect_machine(neighbours=others)
    placed = choices.assign_address(wanted, surroundings=surroundings)
    owner = network.interface_alias(paths.data_dir)
    try:
        if placed.interface:
            # A port check needs the address to exist.
            network.ensure_interface(placed.interface, address=placed.address, owner=owner)
            network.close_ranges(placed.number)
        ours = partial(processes.listening_ports, paths.data_dir)
        record = choices.choose_ports(placed, options, surroundings=surroundings, ours=ours)
        records.save_record(paths.record_path, record)
    except (VkgatewayError, OSError):
        if new:
            network.remove_interfaces(owner)
        raise
    return record


def _check_vacant(paths: PlatformPaths) -> None:
    """Check that the directory of a new platform is empty, apart from what an interrupted `up` or `down` leaves.

    That is the lock, and possibly results of conformance cases. Other software has directories `run` and `logs` too, so
    these count only if a supervisor ran there. Every file system has `lost+found`.
    """
    ran = SupervisorPaths(paths.data_dir).lock_path.exists()
    ours = {
        "lost+found",
        *(path.name for path in (paths.list_all() if ran else (paths.lock_path, paths.conformance_dir))),
    }
    strange = sorted(path.name for path in paths.data_dir.iterdir() if path.name not in ours)
    if strange:
        raise ConflictError(
            f"{paths.data_dir} contains no platform but other files, such as {strange[0]}",
            hint="Choose an empty or new directory with --data-dir DIR.",
        )


class Startup:
    """State that the steps of one `up` share."""

    def __init__(
        self,
        paths: PlatformPaths,
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
        self._hollow = HollowNodeSteps(paths, record=record, supervisor=supervisor)
        self._gateway = GatewaySteps(paths, record=record, cache_dir=options.cache_dir, supervisor=supervisor)
        self._real = None
        if set(REAL_NODE_PROGRAMS) <= programs.keys():
            self._real = RealNodeSteps(paths.node_dir, record=record, supervisor=supervisor)

    async def run(self) -> None:
        """Run all steps."""
        self._write_files()
        if self._real or self._record.real_node_why_not:
            # It would wait for this `up`, and then repeat its steps or add a node that is no longer wanted.
            await self._supervisor.remove_process(node_setup.NAME)
        async with Client.from_kubeconfig(self._paths.admin_kubeconfig, name="the compute cluster") as self._api:
            await run_steps(self._build_steps(), report=self._report)

    async def run_node_steps(self) -> None:
        """Run the steps of the real node; everything else runs already."""
        assert self._real is not None
        self._pki = ensure_pki(self._paths, now=datetime.datetime.now(datetime.UTC))
        async with Client.from_kubeconfig(self._paths.admin_kubeconfig, name="the compute cluster") as self._api:
            steps = [Step(name="apiserver", title="compute API server", run=self._wait_for_api_server)]
            await run_steps([*steps, *self._build_node_steps(self._real)], report=self._report)

    def _write_files(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self._pki = ensure_pki(self._paths, now=now)
        self._files = compute.write_plane(self._paths, record=self._record, pki=self._pki, now=now)

    def _build_steps(self) -> list[Step]:
        def component(name: ComponentName, title: str) -> Step:
            # The two clients of the API server wait for it by themselves, so they load meanwhile.
            return Step(name=name, title=title, needs=("etcd",), run=lambda: self._start_component(name))

        steps = [
            Step(name="etcd", title="etcd", run=self._start_etcd),
            Step(name="apiserver", title="compute API server", needs=("etcd",), run=self._start_api_server),
            component("controller-manager", "compute controller-manager"),
            component("scheduler", "compute scheduler"),
            self._definitions_step(),
            *self._hollow.build_steps(kwok_program=self._programs["kwok"], api=self._api),
            Step(name="storage", title="storage", needs=("apiserver",), run=self._start_storage),
            Step(name="renewal", title="renewal of certificates", run=self._start_renewal),
        ]
        if self._real:
            steps += self._build_node_steps(self._real)
        elif not self._record.real_node_why_not:
            steps.append(Step(name="node-setup", title="real node", run=self._start_node_setup))
        elif self._paths.node_dir.exists():
            steps.append(Step(name="no-real-node", title="real node", needs=("apiserver",), run=self._remove_real_node))
        if self._options.cluster_only:
            return [*steps, self._gateway.stop_step()]
        return [*steps, *self._gateway.build_steps(enabled=self._options.gateway, api=self._api)]

    async def _start_etcd(self) -> None:
        ports = self._record.ports
        await self._supervisor.ensure_process(
            etcd.process_spec(
                self._paths,
                program=self._programs["etcd"],
                port=ports["etcd"],
                peer_port=ports["etcd-peer"],
                durable=self._record.durable,
            )
        )
        async with etcd.root_client(self._paths, port=ports["etcd"]) as client:
            await self._wait_until_serving(lambda: etcd.is_serving(client), etcd.NAME)
            tenancy = Tenancy(client)
            await tenancy.ensure_root()
            await tenancy.ensure_compute()

    async def _start_api_server(self) -> str:
        await self._start_component("apiserver")
        return await self._wait_for_api_server()

    async def _wait_for_api_server(self) -> str:
        await self._wait_until_serving(lambda: processes.api_ready(self._api), f"{compute.GROUP}/apiserver")
        return self._api.server

    async def _start_component(self, name: ComponentName) -> str:
        wanted = compute.process_spec(name, record=self._record, files=self._files, programs=self._programs)
        await self._supervisor.ensure_process(wanted)
        return "started"

    def _definitions_step(self) -> Step:
        if self._options.cluster_only:
            return Step(name="definitions", title="API endpoints", needs=("apiserver",), run=self._apply_endpoints)
        return Step(name="definitions", title="API types", needs=("apiserver",), run=self._apply_definitions)

    async def _apply_endpoints(self) -> str:
        await apply_objects(self._api, compute.own_endpoints(self._record), field_manager=FIELD_MANAGER)
        chart_files.write_chart_files(self._paths, self._record)
        return "vkgateway is not installed"

    async def _apply_definitions(self) -> str:
        # The pool has no node while the node is set up, so that tenants can have it from the start.
        pools = [*self._record.hollow_nodes, *([] if self._record.real_node_why_not else [real_node_steps.POOL])]
        documents = compute.initial_objects(self._record, pools=pools)
        await apply_objects(self._api, documents, field_manager=FIELD_MANAGER)
        return f"ComputeCluster local with pools {', '.join(pools)}"

    async def _start_storage(self) -> str:
        await apply_objects(self._api, provisioner.manifest_objects(), field_manager=FIELD_MANAGER)
        shape = compute.plane_spec(self._record)
        await self._supervisor.ensure_process(provisioner.process_spec(self._paths, plane=shape, pki=self._pki))
        return "class local"

    async def _start_renewal(self) -> str:
        await self._supervisor.ensure_process(renewal.process_spec(self._paths))
        return "daily"

    def _build_node_steps(self, real: RealNodeSteps) -> list[Step]:
        return real.build_steps(programs=self._programs, api=self._api, authority=self._pki.compute.ca)

    async def _start_node_setup(self) -> str:
        await self._supervisor.ensure_process(node_setup.process_spec(self._paths))
        return node_setup.IN_PROGRESS

    async def _remove_real_node(self) -> str:
        await real_node_steps.remove_node(
            self._paths.node_dir, record=self._record, supervisor=self._supervisor, api=self._api
        )
        return f"removed: {self._record.real_node_why_not}"

    async def _wait_until_serving(self, serves: Callable[[], Awaitable[bool]], process: str) -> None:
        await processes.wait_until_serving(serves, process=process, client=self._supervisor)
