"""Tenants' name servers as processes: a CoreDNS per tenant and compute cluster."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import structlog

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import is_ip_address
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.planes.atomic_files import write_file
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.process.interfaces import ProgramResolver, Supervisor
from vkgateway.planes.drivers.process.plane_directory import read_plane_files
from vkgateway.planes.drivers.process.ports import PortCheck, choose_port
from vkgateway.planes.name_server_config import name_server_environment, render_corefile, render_hosts_file
from vkgateway.planes.plane_files import COREDNS
from vkgateway.planes.supervisor.spec import ProcessSpec, SupervisorPaths

log = structlog.get_logger(__name__)

PORTS: Final = range(10000, 20000)
"""Ports of name servers: disjoint from those of API servers, and below Linux's range for outgoing connections."""

_DIRECTORY_PREFIX: Final = "names-"
_STOP_RANK: Final = 60
_READY_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.1
_PORT_PATTERN = re.compile(r"^\.:(\d+) \{", re.ASCII)


class ProcessNameServers:
    """Name servers under the supervisor, as `tenant/NAME/names-CLUSTER`; `ProcessDriver.remove` removes them.

    All listen at `address` and forward other names to `forwarder`. They answer clients in `sources` only, or all if it
    is empty. `other_ports` are ports at the same address that pods of tenants call: the kubelet endpoint's.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        supervisor: Supervisor,
        programs: ProgramResolver,
        address: str,
        forwarder: str,
        sources: Sequence[str] = (),
        other_ports: Collection[int] = (),
        can_bind: PortCheck | None = None,
        answers: Callable[[str, int], bool] | None = None,
        has_acl: Callable[[Path], bool] | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._supervisor = supervisor
        self._programs = programs
        self._address = address
        self._forwarder = forwarder
        self._sources = tuple(sources)
        self._other_ports = tuple(sorted(port for port in other_ports if port in PORTS))
        self._can_bind = can_bind or _is_port_free
        self._answers = answers or _accepts_connections
        self._has_acl = has_acl or _has_acl
        self._port_lock = asyncio.Lock()

    @property
    def listening_range(self) -> NameServerRange | None:
        """See `NameServers`; None if the address is a host name."""
        if not is_ip_address(self._address):
            return None
        return NameServerRange(self._address, PORTS[0], PORTS[-1], self._other_ports)

    async def ensure_server(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[ServerEndpoint]:
        """See `NameServers`. Also raises UnavailableError if the tenant has no certificates yet."""
        files = read_plane_files(self._data_dir / "tenants" / tenant)
        if not files.has_kubeconfig(COREDNS):
            raise UnavailableError(f"the name server of tenant {tenant!r} has no certificate yet")
        directory = files.directory / f"{_DIRECTORY_PREFIX}{cluster.name}"
        path = directory / "Corefile"
        directory.mkdir(mode=0o700, exist_ok=True)
        program = (await self._programs.resolve("coredns"))["coredns"]
        can_refuse = bool(self._sources) and await asyncio.to_thread(self._has_acl, program)
        _write_if_changed(directory / "hosts", render_hosts_file(addresses))
        async with self._port_lock:
            port = _corefile_port(path) or self._choose_port(tenant, cluster.name)
            text = render_corefile(
                kubeconfig=files.kubeconfig_path(COREDNS),
                hosts=directory / "hosts",
                address=self._address,
                port=port,
                forwarder=self._forwarder,
                sources=self._sources if can_refuse else (),
            )
            _write_if_changed(path, text)
        spec = ProcessSpec(
            name=f"tenant/{tenant}/names-{cluster.name}",
            argv=(str(program), f"-conf={path}"),
            env=name_server_environment(files, corefile=text),
            stop_rank=_STOP_RANK,
            stop_timeout=3.0,
        )
        await self._supervisor.ensure_process(spec)
        await self._wait_until_ready(tenant, port)
        return (ServerEndpoint(self._address, port),)

    async def remove_stale(self, clusters: Collection[str]) -> None:
        """See `NameServers`. Also removes files and logs."""
        for directory in sorted(self._data_dir.glob(f"tenants/*/{_DIRECTORY_PREFIX}*")):
            if directory.name.removeprefix(_DIRECTORY_PREFIX) not in clusters:
                name = f"tenant/{directory.parent.name}/{directory.name}"
                await self._supervisor.remove_group(name)
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                log_file = SupervisorPaths(self._data_dir).log_path(name)
                for file in log_file.parent.glob(f"{log_file.name}*"):
                    file.unlink(missing_ok=True)
                log.info("name server removed", process=name)

    def _choose_port(self, tenant: str, cluster: str) -> int:
        assigned = {port: str(path.parent) for path in self._corefile_paths() if (port := _corefile_port(path))}
        return choose_port(
            f"{tenant}/{cluster}",
            requested=0,
            assigned=assigned,
            address=self._address,
            ports=PORTS,
            can_bind=self._can_bind,
        )

    def _corefile_paths(self) -> Iterator[Path]:
        return self._data_dir.glob("tenants/*/names-*/Corefile")

    async def _wait_until_ready(self, tenant: str, port: int) -> None:
        deadline = asyncio.get_running_loop().time() + _READY_SECONDS
        while not await asyncio.to_thread(self._answers, self._address, port):
            if asyncio.get_running_loop().time() > deadline:
                raise UnavailableError(f"the name server of tenant {tenant!r} does not answer")
            await asyncio.sleep(_POLL_SECONDS)


@lru_cache(maxsize=8)
def _has_acl(program: Path) -> bool:
    """Return whether a CoreDNS has the plug-in that refuses clients; older builds of vkgateway lack it."""
    done = subprocess.run([str(program), "-plugins"], capture_output=True, text=True, timeout=20, check=False)
    if "dns.acl" in done.stdout:
        return True
    log.warning("CoreDNS lacks the plug-in acl, so name servers answer every client", program=str(program))
    return False


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_file(path, text.encode())


def _corefile_port(path: Path) -> int:
    """Return the port in a Corefile, 0 if there is no such file."""
    try:
        found = _PORT_PATTERN.search(path.read_text())
    except FileNotFoundError:
        return 0
    return int(found[1]) if found else 0


def _is_port_free(address: str, port: int) -> bool:
    """Return whether a name server can listen at an address and port, over UDP and TCP."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as attempt:
            try:
                attempt.bind((address, port))
            except OSError:
                return False
    return True


def _accepts_connections(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
