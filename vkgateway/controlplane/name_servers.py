"""Tenants' name servers: a CoreDNS each, a process beside the control plane that reads the tenant's own Services."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
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

from vkgateway.controlplane.atomic_files import write_file
from vkgateway.controlplane.drivers.process import ProgramResolver, Supervisor
from vkgateway.controlplane.plane import CLUSTER_DOMAIN
from vkgateway.controlplane.plane_files import COREDNS, PlaneFiles
from vkgateway.controlplane.ports import PortCheck, choose_port
from vkgateway.model.errors import UnavailableError
from vkgateway.programs.supervisor.spec import ProcessSpec, SupervisorPaths

log = structlog.get_logger(__name__)

PORTS: Final = range(10000, 20000)
"""Beside those of API servers, and below those that Linux picks for outgoing connections."""

_FOLDER_PREFIX: Final = "names-"
_STOP_RANK: Final = 60
_READY_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.1
_SMALL_RUNTIME: Final = {"GOGC": "30", "GOMAXPROCS": "1"}
"""It answers some hundred questions a second and waits otherwise."""
_PORT_PATTERN = re.compile(r"^\.:(\d+) \{", re.ASCII)

# `hosts` is asked before `kubernetes` whatever the order here: CoreDNS fixes that when it is built. One block for all
# zones, since each zone of a block would watch the API server anew. Names of the cluster are not cached, so that
# what changed is told at once.
_COREFILE: Final = """\
.:{port} {{
  bind {address}
  errors
{acl}  hosts {hosts} {domain} in-addr.arpa ip6.arpa {{
    ttl 5
    reload 1s
    fallthrough
  }}
  kubernetes {domain} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 5
    fallthrough in-addr.arpa ip6.arpa
  }}
  forward . {forwarder}
  cache 30 {{
    disable success {domain} in-addr.arpa ip6.arpa
    disable denial {domain} in-addr.arpa ip6.arpa
  }}
}}
"""


_ACL: Final = """\
  acl {{
    allow net {sources}
    block
  }}
"""


def render_corefile(
    files: PlaneFiles, *, hosts: Path, address: str, port: int, forwarder: str, sources: Sequence[str] = ()
) -> str:
    """Return CoreDNS's configuration for one tenant.

    `forwarder` (HOST:PORT) answers for all names but the cluster's. Sources outside the ranges of `sources` are
    refused; none of them: all are answered. Pods of several tenants share a range, and the address of a pod becomes
    known here only after it asks its first question. So the network keeps other tenants' pods away.
    """
    return _COREFILE.format(
        domain=CLUSTER_DOMAIN,
        address=address,
        port=port,
        hosts=hosts,
        kubeconfig=files.kubeconfig_path(COREDNS),
        forwarder=forwarder,
        acl=_ACL.format(sources=" ".join(sources)) if sources else "",
    )


def render_hosts_file(addresses: Mapping[str, str]) -> str:
    """Names whose address is another than the tenant's API server says, one a line."""
    return "".join(f"{address} {name}\n" for name, address in sorted(addresses.items()))


class NameServerProcesses:
    """Runs them under the supervisor, as `tenant/NAME/names-CLUSTER`; `ProcessDriver.remove` takes them away.

    `address` is where they listen, `forwarder` whom they ask for names that are not the tenant's; they answer
    `sources` alone, unless there are none. Where it is not
    known that a port is taken, `can_bind` finds out.
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
        self._can_bind = can_bind or _is_port_free
        self._answers = answers or _accepts_connections
        self._has_acl = has_acl or _has_acl
        self._port_lock = asyncio.Lock()

    async def ensure_server(self, tenant: str, cluster: str, addresses: Mapping[str, str]) -> int:
        """Have one answer for a tenant's pods in a compute cluster; returns its port. Repeatable.

        Raises:
            UnavailableError: it does not answer yet, or the tenant's certificates have not been made.
        """
        files = PlaneFiles(self._data_dir / "tenants" / tenant)
        if not files.kubeconfig_path(COREDNS).exists():
            raise UnavailableError(f"the name server of tenant {tenant!r} has no certificate yet")
        folder = files.directory / f"{_FOLDER_PREFIX}{cluster}"
        path = folder / "Corefile"
        folder.mkdir(mode=0o700, exist_ok=True)
        program = (await self._programs.resolve("coredns"))["coredns"]
        refuses = bool(self._sources) and await asyncio.to_thread(self._has_acl, program)
        _write_if_changed(folder / "hosts", render_hosts_file(addresses))
        async with self._port_lock:
            port = _corefile_port(path) or self._choose_port(tenant, cluster)
            text = render_corefile(
                files,
                hosts=folder / "hosts",
                address=self._address,
                port=port,
                forwarder=self._forwarder,
                sources=self._sources if refuses else (),
            )
            _write_if_changed(path, text)
        spec = ProcessSpec(
            name=f"tenant/{tenant}/names-{cluster}",
            argv=(str(program), f"-conf={path}"),
            # CoreDNS reads its configuration once: another one makes another process.
            env={**_SMALL_RUNTIME, "VKGATEWAY_TRUST": files.trust_digest(), "VKGATEWAY_COREFILE": _short_digest(text)},
            stop_rank=_STOP_RANK,
            stop_timeout=3.0,
        )
        await self._supervisor.ensure_process(spec)
        await self._wait_until_ready(tenant, port)
        return port

    async def remove_stale(self, clusters: Collection[str]) -> None:
        """End those for compute clusters that are not among these, with their files and logs. Repeatable."""
        for folder in sorted(self._data_dir.glob("tenants/*/names-*")):
            if folder.name.removeprefix(_FOLDER_PREFIX) not in clusters:
                name = f"tenant/{folder.parent.name}/{folder.name}"
                await self._supervisor.remove_group(name)
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                log_file = SupervisorPaths(self._data_dir).log_path(name)
                for file in log_file.parent.glob(f"{log_file.name}*"):
                    file.unlink(missing_ok=True)
                log.info("name server removed", process=name)

    def _choose_port(self, tenant: str, cluster: str) -> int:
        given = {port: str(path.parent) for path in self._corefile_paths() if (port := _corefile_port(path))}
        name = f"{tenant}/{cluster}"
        return choose_port(name, wanted=0, given=given, address=self._address, ports=PORTS, can_bind=self._can_bind)

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
    """Whether a CoreDNS has the plug-in that refuses sources; builds before this release have it not."""
    done = subprocess.run([str(program), "-plugins"], capture_output=True, text=True, timeout=20, check=False)
    if "dns.acl" in done.stdout:
        return True
    log.warning("this CoreDNS has no plug-in acl, so name servers answer every source", program=str(program))
    return False


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_file(path, text.encode())


def _corefile_port(path: Path) -> int:
    """The port that a Corefile names, 0 without one."""
    try:
        found = _PORT_PATTERN.search(path.read_text())
    except FileNotFoundError:
        return 0
    return int(found[1]) if found else 0


def _is_port_free(address: str, port: int) -> bool:
    """Whether a name server could listen there now, over UDP and TCP."""
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
