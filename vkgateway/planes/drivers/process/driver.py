"""Control planes as processes of this machine, kept running by the supervisor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from vkgateway import platform_package
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION, ApiServerExposure, ExposureType
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.planes.components import PROGRAMS, component_arguments, component_environment
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.drivers.base import (
    AssignedPorts,
    DriverContext,
    DriverListener,
    NameServers,
    ServerEndpoint,
    ServerEndpoints,
    StepMessages,
)
from vkgateway.planes.drivers.process.egress import ApiServerEgress, socket_name, webhook_socket_name
from vkgateway.planes.drivers.process.interfaces import ProgramResolver, Supervisor
from vkgateway.planes.drivers.process.name_servers import ProcessNameServers
from vkgateway.planes.drivers.process.plane_directory import PlaneDirectories
from vkgateway.planes.drivers.process.ports import PortCheck, choose_port, is_port_free, require_free
from vkgateway.planes.plane import COMPONENTS, ComponentName, ControlPlaneSpec, Tuning
from vkgateway.planes.plane_files import Authorities, PlaneFiles
from vkgateway.planes.publication import Publication
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway.planes.supervisor.spec import ProcessSpec, SupervisorPaths
from vkgateway.planes.webhook_ranges import Network, parse_webhook_range


class _Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of the section `controlPlanes` that this driver reads."""

    program_dirs: tuple[str, ...] = ()
    cache_dir: str = ""
    supervisor_socket: str = ""
    webhook_ranges: tuple[str, ...] = ()
    parameters: dict[str, str] = {}


def create_driver(context: DriverContext) -> ProcessDriver:
    """Create the driver, with name servers if the settings name a forwarder.

    Raises:
        InputError: the settings have driver parameters, of which this driver knows none, or an invalid range.
    """
    settings = msgspec.convert(context.settings, _Settings)
    if settings.parameters:
        names = ", ".join(sorted(settings.parameters))
        raise InputError(f"controlPlanes.parameters: driver 'process' has no parameters; found: {names}")
    socket = _expand_path(settings.supervisor_socket) or SupervisorPaths(context.data_dir).socket_path
    supervisor = SupervisorClient(socket, gate=context.gate)
    versions = ProgramVersions(
        cache_dir=_expand_path(settings.cache_dir),
        program_dirs=[Path(directory).expanduser() for directory in settings.program_dirs],
    )
    name_servers = None
    if context.forwarder:
        name_servers = ProcessNameServers(
            data_dir=context.data_dir,
            supervisor=supervisor,
            programs=versions.programs_for(DEFAULT_KUBERNETES_VERSION),
            address=context.machine_address or context.address,
            forwarder=context.forwarder,
            sources=context.dns_sources,
            other_ports=[context.kubelet_port],
        )
    return ProcessDriver(
        data_dir=context.data_dir,
        address=context.machine_address or context.address,
        supervisor=supervisor,
        programs=versions.programs_for,
        authorities=context.authorities,
        gateway=ServerEndpoint(context.address, context.advertised_port),
        webhook_ranges=[parse_webhook_range(text) for text in settings.webhook_ranges],
        name_servers=name_servers,
    )


class ProcessDriver:
    """Runs each tenant's processes as `tenant/NAME/...`, with files in `data_dir/tenants/NAME`.

    All API servers listen at `address`, and reach the gateway at `gateway`. Their webhooks by URL may also have
    addresses in `webhook_ranges`. `programs` returns the resolver for a Kubernetes version.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        address: str,
        supervisor: Supervisor,
        programs: Callable[[str], ProgramResolver],
        authorities: Authorities,
        gateway: ServerEndpoint,
        webhook_ranges: Sequence[Network] = (),
        name_servers: NameServers | None = None,
        clock: Clock = SYSTEM_CLOCK,
        can_bind: PortCheck = is_port_free,
    ) -> None:
        self._data_dir = data_dir
        self.endpoints: ServerEndpoints = MachineEndpoints(address, can_bind=can_bind)
        self._supervisor = supervisor
        self._programs = programs
        self._directories = PlaneDirectories(data_dir / "tenants", authorities=authorities, clock=clock)
        self._egress = ApiServerEgress(data_dir, gateway=gateway, webhook_ranges=webhook_ranges)
        self.name_servers = name_servers
        self._can_bind = can_bind

    step_messages = StepMessages(
        preparing="downloading or building the components of the Kubernetes version",
        starting="starting the processes of the control plane",
        stopping="stopping the processes of the control plane",
    )

    async def prepare(self, version: str) -> None:
        """Find or build the programs of that version."""
        await self._resolve_programs(version)

    async def start(self, plane: ControlPlaneSpec, *, credentials: Credentials, version: str) -> frozenset[str]:
        """Write the files and start the API server."""
        if plane.pod.replicas > 1:
            raise InputError(
                f"the template requests {plane.pod.replicas} replicas, and the driver process runs one",
                hint="Use a template with pod.replicas: 1, or the driver kubernetes.",
            )
        programs = await self._resolve_programs(version)
        await self._check_port(plane)
        plane = replace(
            plane, egress_socket=socket_name(plane.cluster), webhook_socket=webhook_socket_name(plane.cluster)
        )
        await self._listen(plane.cluster)
        files = await self._directories.write_files(plane, credentials)
        group = _process_group(plane.cluster)
        await self._supervisor.ensure_process(
            component_process("apiserver", group=group, plane=plane, files=files, programs=programs, cwd=self._data_dir)
        )
        return files.kubelet_clients()

    async def start_clients(self, plane: ControlPlaneSpec, *, version: str) -> None:
        """Start the other processes."""
        programs = await self._resolve_programs(version)
        files = await self._directories.read_files(plane.cluster)
        group = _process_group(plane.cluster)
        for name in COMPONENTS:
            if name != "apiserver":
                await self._supervisor.ensure_process(
                    component_process(name, group=group, plane=plane, files=files, programs=programs)
                )

    async def kubelet_clients(self, tenant: str) -> frozenset[str]:
        """Read the fingerprints from the certificate files."""
        files = await self._directories.read_files(tenant)
        return files.kubelet_clients()

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        """Report why the API server exited, while it is in back-off.

        Its clients exit again and again until it answers, however correct they are.
        """
        server = f"{_process_group(plane.cluster)}/apiserver"
        for state in await self._supervisor.list_processes(server):
            if state.state == "backoff":
                return f"{state.name} does not stay up: {state.reason}"
        return ""

    async def stop(self, tenant: str) -> None:
        """Stop the processes, and remove their files: the record of the tenant reserves the port."""
        await self.remove(tenant)

    async def remove(self, tenant: str) -> None:
        """Stop the processes, then remove files and logs."""
        await self._supervisor.remove_group(_process_group(tenant))
        await self._egress.stop(tenant)
        await self._directories.remove(tenant)
        await asyncio.to_thread(self._remove_logs, tenant)

    async def run(self, listener: DriverListener) -> None:
        """Connect the API servers of all tenants to others; the supervisor restarts processes."""
        self._egress.owns_address = listener.owns_address
        self._egress.is_of_other_tenant = listener.is_of_other_tenant
        for tenant in await self._directories.list_tenants():
            await self._listen(tenant)

    async def close(self) -> None:
        """Stop connecting API servers; each request to the supervisor has its own connection."""
        self._egress.close()

    async def _listen(self, tenant: str) -> None:
        try:
            await self._egress.listen(tenant)
        except OSError as error:
            raise UnavailableError(f"the API server of {tenant!r} gets no proxy: {error}") from error

    async def _resolve_programs(self, version: str) -> Mapping[str, Path]:
        return await self._programs(version).resolve(*PROGRAMS.values())

    async def _check_port(self, plane: ControlPlaneSpec) -> None:
        """Refuse a port on which a program other than the tenant's API server listens."""
        states = await self._supervisor.list_processes(f"{_process_group(plane.cluster)}/apiserver")
        if not any(_has_port_flag(state.argv, plane.port) and state.pid for state in states):
            require_free(plane.cluster, address=plane.address, port=plane.port, can_bind=self._can_bind)

    def _remove_logs(self, tenant: str) -> None:
        for name in COMPONENTS:
            log = SupervisorPaths(self._data_dir).log_path(f"{_process_group(tenant)}/{name}")
            for file in log.parent.glob(f"{log.name}*"):
                file.unlink(missing_ok=True)
        names = SupervisorPaths(self._data_dir).log_path(f"{_process_group(tenant)}/names")
        for file in names.parent.glob(f"{names.stem}-*"):
            file.unlink(missing_ok=True)


def _process_group(tenant: str) -> str:
    return f"tenant/{tenant}"


def _has_port_flag(argv: Sequence[str], port: int) -> bool:
    return f"--secure-port={port}" in argv


def _expand_path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


# Clients of the API server stop before it, and everything stops before etcd.
_STOP_RANKS: Mapping[ComponentName, int] = {"apiserver": 40, "controller-manager": 60, "scheduler": 60}
# Seconds between SIGTERM and SIGKILL. All state is in etcd, and clients retry a lost request.
_STOP_TIMEOUTS: Mapping[ComponentName, float] = {"apiserver": 3.0, "controller-manager": 2.0, "scheduler": 2.0}
_TIMER_SLACK: Mapping[ComponentName, float] = {"apiserver": 0.0, "controller-manager": 0.02, "scheduler": 0.0}
"""Seconds. The idle controller-manager fires a hundred timers a second. With this slack most of them fire together,
which halves its idle CPU time. The other two answer requests, and Go's garbage collector relies on such timers to stop
cores one by one, so their timers stay exact."""


def component_process(
    name: ComponentName,
    *,
    group: str,
    plane: ControlPlaneSpec,
    files: PlaneFiles,
    programs: Mapping[str, Path],
    cwd: Path | None = None,
) -> ProcessSpec:
    """Return the spec of a component's process, named `group/name`; its files must exist.

    `programs` maps names such as `kube-apiserver` to paths. `cwd` is where relative paths begin.
    """
    slack = plane.tuning.get(name, Tuning()).timer_slack
    return ProcessSpec(
        name=f"{group}/{name}",
        argv=(str(programs[PROGRAMS[name]]), *component_arguments(name, plane=plane, files=files)),
        env=component_environment(name, plane=plane, files=files),
        cwd=None if cwd is None else str(cwd),
        stop_rank=_STOP_RANKS[name],
        stop_timeout=_STOP_TIMEOUTS[name],
        timer_slack=_TIMER_SLACK[name] if slack is None else slack,
        batch=True,
    )


log = structlog.get_logger(__name__)

_RESOLVER = "vkgateway_platform.binaries.resolver:Resolver"


class CachedPrograms:
    """Programs of one Kubernetes version. A search takes time, so a program that still exists is not searched again."""

    def __init__(self, resolver: ProgramResolver) -> None:
        self._resolver = resolver
        self._found: dict[str, Path] = {}

    async def resolve(self, *names: str) -> dict[str, Path]:
        """Return the path of each program; find or build it first."""
        if not all(name in self._found and os.access(self._found[name], os.X_OK) for name in names):
            self._found |= await self._resolver.resolve(*names)
        return {name: self._found[name] for name in names}


class ProgramVersions:
    """Programs by Kubernetes version: from `program_dirs` first, then from the cache."""

    def __init__(self, *, cache_dir: Path | None, program_dirs: Sequence[Path]) -> None:
        self._cache_dir = cache_dir
        self._program_dirs = program_dirs
        self._programs: dict[str, CachedPrograms] = {}

    def programs_for(self, version: str) -> CachedPrograms:
        """Return the programs of a version.

        Raises:
            InputError: the version is not supported.
            UnavailableError: the package that finds and builds programs is not installed.
        """
        if version not in self._programs:
            platform_package.require(needed_for="the driver 'process' of control planes")
            create = platform_package.load(_RESOLVER)
            resolver: ProgramResolver = create(
                cache_dir=self._cache_dir,
                program_dirs=self._program_dirs,
                report=lambda text: log.info("programs", version=version, doing=text),
                kubernetes_version=version,
            )
            self._programs[version] = CachedPrograms(resolver)
        return self._programs[version]


class MachineEndpoints:
    """All API servers listen at `address`, each at another port; implements `ServerEndpoints`."""

    def __init__(self, address: str, *, can_bind: PortCheck) -> None:
        self._address = address
        self._can_bind = can_bind

    async def ensure(
        self, tenant: str, *, requested_port: int, recorded: ServerEndpoint | None, assigned_ports: AssignedPorts
    ) -> ServerEndpoint:
        """See `ServerEndpoints`: the recorded port stays until the spec requests another one."""
        if recorded is not None and requested_port in (0, recorded.port):
            return ServerEndpoint(self._address, recorded.port)
        port = choose_port(
            tenant,
            requested=requested_port,
            assigned=await assigned_ports(),
            address=self._address,
            can_bind=self._can_bind,
        )
        return ServerEndpoint(self._address, port)

    async def publish(
        self,
        tenant: str,  # noqa: ARG002 - the API server serves at the machine's address in any case
        exposure: ApiServerExposure,
        *,
        previous: ExposureType,  # noqa: ARG002 - nothing to delete
        endpoint: ServerEndpoint,  # noqa: ARG002 - as before
    ) -> Publication:
        """See `ServerEndpoints`. Raises InputError for every type but ClusterIP."""
        if exposure.type != "ClusterIP":
            raise InputError(
                f"spec.apiServer.exposure.type: the driver process has no exposure {exposure.type}",
                hint="API servers serve at the gateway's machine. Remove the exposure, or use the driver kubernetes.",
            )
        return Publication()

    async def find(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:  # noqa: ARG002 - all share an address
        return ServerEndpoint(self._address, recorded_port)

    async def reachable_from(
        self,
        tenant: str,  # noqa: ARG002 - the gateway and all pods use the same address
        cluster: ClusterIdentity,  # noqa: ARG002
        *,
        endpoint: ServerEndpoint,
    ) -> Collection[ServerEndpoint]:
        return (endpoint,)

    async def running(self, tenant: str, *, endpoint: ServerEndpoint) -> Collection[ServerEndpoint]:  # noqa: ARG002 - there is one
        return (endpoint,)
