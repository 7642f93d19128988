"""The real node as a whole: its preparation, its programs, and its removal."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from vkgateway.controlplane.atomic_files import write_file
from vkgateway.controlplane.pki import Authority, is_matching_pair, needs_renewal
from vkgateway.controlplane.plane import SERVICE_CIDR
from vkgateway.local.netpol import plugin as netpol
from vkgateway.local.realnode import configs, images, manifests
from vkgateway.local.realnode.cgroups import Cgroups
from vkgateway.local.realnode.host import TOOL_PATH, HostChanges, ToolError, run_command
from vkgateway.local.realnode.namespaces import (
    NodeNamespaces,
    enable_masquerade,
    forwarding_settings,
    kill_all,
    uplink_mtu,
)
from vkgateway.local.realnode.options import RealNodeOptions
from vkgateway.local.realnode.probe import find_obstacle, find_plugins, find_tool, overlay_works
from vkgateway.model.errors import UnavailableError
from vkgateway.programs.supervisor.spec import ProcessSpec

log = structlog.get_logger(__name__)

_SITE = "netpol.json"

GROUP = "node"
"""First segment of the names of the node's processes."""

_LOAD_SECONDS = 600.0

# Fixed directories of containerd and the kubelet that no setting changes.
_FIXED_DIRS = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods")
# Machine-wide settings that the kubelet requires. In the node's namespace, a file with the required value is mounted
# over each, so the machine keeps its own.
_KERNEL_SETTINGS = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}
# A file in the directory of device plugins. The kubelet takes an empty directory for that of a new machine, and sets
# extended resources to zero at each start.
_KEEP_RESOURCES = Path("device-plugins/vkgateway-keeps-extended-resources")
_SOURCES_OF_NAME_SERVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


@dataclass(frozen=True, slots=True)
class _Certificate:
    """One certificate of the node: its file name, its subject, and its purpose."""

    file: str
    user: str
    organizations: tuple[str, ...] = ()
    server: bool = False


class RealNode:
    """One node with kubelet, containerd, kube-proxy and CoreDNS, in its own namespaces.

    The order is: `prepare()`; start the first of `process_specs()`, containerd; `import_images()`; start the others;
    apply `cluster_objects()` and, once the Node exists, `status_patch()`. At the end stop the processes and call
    `teardown()`. All methods block, and each may be repeated at any point, also after a crash.
    """

    def __init__(self, options: RealNodeOptions, *, authority: Authority, claims: HostChanges | None = None) -> None:
        self.options = options
        self._authority = authority
        self._host_changes = claims or HostChanges()
        self._cgroups = Cgroups(options.cgroup_name)
        self._namespaces = NodeNamespaces(options.network, options.folders.namespaces_dir)

    @staticmethod
    def find_obstacle() -> str | None:
        """Return why this machine cannot run a real node, or None. Changes nothing."""
        return find_obstacle()

    @property
    def has_namespaces(self) -> bool:
        """Return whether the namespaces of its programs exist."""
        return self._namespaces.is_ready

    def prepare(self) -> None:
        """Create certificates, configuration, images, cgroups and namespaces; keep existing ones.

        Raises `UnavailableError` with the reason of `find_obstacle()`, and `ToolError` if the machine refuses
        something.
        """
        folders = self.options.folders
        for folder in (
            folders.config_dir,
            folders.pki_dir,
            folders.images_dir,
            folders.containerd_dir,
            folders.kubelet_dir,
            folders.sysctl_dir,
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write_certificates()
        self._write_configs()
        self._write_images()
        self._cgroups.create(memory=self.options.pods_memory)
        self._create_namespaces()

    def renew_certificates(self) -> None:
        """Renew certificates that expire soon; nothing else changes."""
        self._write_certificates()

    def process_specs(self) -> tuple[ProcessSpec, ...]:
        """Return the node's processes; containerd is first, since the kubelet exits without it."""
        config = self.options.folders.config_dir
        kubelet = (
            f"--config={config / 'kubelet.yaml'}",
            f"--kubeconfig={self.options.folders.pki_dir / 'kubelet.kubeconfig'}",
            f"--hostname-override={self.options.name}",
            f"--node-ip={self.options.network.node_address}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in sorted(self.options.labels.items()))}",
        )
        return (
            self._process_spec("containerd", f"--config={config / 'containerd.toml'}", stop_rank=80),
            self._netpol_spec(stop_rank=85),
            self._process_spec("kubelet", *kubelet, stop_rank=90),
            self._process_spec("kube-proxy", f"--config={config / 'kube-proxy.yaml'}", stop_rank=90),
            self._process_spec("coredns", f"-conf={config / 'Corefile'}", stop_rank=90, reads=config / "Corefile"),
        )

    def import_images(self, *, timeout: float = 60.0) -> None:
        """Import the platform's images into containerd, and wait up to `timeout` seconds for it.

        An image whose archive has not changed since its last import is skipped.
        """
        present = self._known_images(deadline=time.monotonic() + timeout)
        for name, path in self._archive_paths().items():
            imported, digest = path.with_suffix(".imported"), _file_digest(path)
            if name not in present or not imported.exists() or imported.read_text() != digest:
                self.run_ctr("images", "import", str(path))
                write_file(imported, digest.encode())
                log.info("image imported", image=name)

    def cluster_objects(self) -> list[dict[str, Any]]:
        """Return what to apply in the compute cluster: the name service and its rights."""
        return manifests.cluster_objects(self.options)

    def status_patch(self) -> dict[str, Any]:
        """Return the merge patch for the Node's `status` that gives it its extended resources."""
        return manifests.node_status_patch(self.options)

    def load_archive(self, archive: Path) -> None:
        """Load the images of an archive (docker or OCI, tar) into containerd; existing names are replaced.

        Raises `ToolError` if containerd rejects the archive.
        """
        self.run_ctr("images", "import", str(archive), timeout=_LOAD_SECONDS)

    def list_images(self) -> list[str]:
        """Return the names of the images on the node. Raises `ToolError` if containerd does not answer."""
        # containerd also lists each image by its digest, which is not a name.
        return [name for name in self.run_ctr("images", "list", "--quiet").split() if not name.startswith("sha256:")]

    def run_ctr(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run containerd's client in the namespace of Kubernetes, for at most `timeout` seconds; return its output."""
        command = (str(self.options.programs["ctr"]), "--address", configs.CONTAINERD_SOCKET, "-n", "k8s.io")
        return run_command(*self._namespaces.enter_command(*command, *arguments), timeout=timeout)

    def teardown(self) -> None:
        """Remove everything from the machine except the files in the node's directory; its programs must be stopped.

        Every process still inside (containers, shims) is killed. Repeatable, also after a crash or a reboot.
        """
        kill_all(self._namespaces, self._cgroups)
        self._namespaces.destroy()
        self._cgroups.remove()
        self._host_changes.release_changes(self.options.owner_key)

    def _process_spec(self, name: str, *arguments: str, stop_rank: int, reads: Path | None = None) -> ProcessSpec:
        """Return the spec of a process; `reads` is a file that it reads only at start, so that a changed file restarts
        it.
        """
        program = str(self.options.programs[name])
        tools = f"{self.options.programs['containerd-shim-runc-v2'].parent}:{TOOL_PATH}"
        return ProcessSpec(
            name=f"{GROUP}/{name}",
            argv=self._namespaces.enter_command(program, *arguments),
            env={"PATH": tools} | ({"CONFIG_DIGEST": _file_digest(reads)} if reads is not None else {}),
            stop_rank=stop_rank,
        )

    def _netpol_spec(self, *, stop_rank: int) -> ProcessSpec:
        """Return the spec of the process that enforces NetworkPolicies; containerd starts no pod without it."""
        folders = self.options.folders
        site = folders.config_dir / _SITE
        arguments = (str(folders.pki_dir / "netpol.kubeconfig"), str(site))
        return ProcessSpec(
            name=f"{GROUP}/netpol",
            argv=self._namespaces.enter_command(sys.executable, "-m", "vkgateway.local.netpol", *arguments),
            env={"PATH": TOOL_PATH, "CONFIG_DIGEST": _file_digest(site)},
            stop_rank=stop_rank,
        )

    def _certificate_specs(self) -> tuple[_Certificate, ...]:
        return (
            _Certificate("kubelet", f"system:node:{self.options.name}", ("system:nodes",)),
            _Certificate("kubelet-server", f"system:node:{self.options.name}", ("system:nodes",), server=True),
            _Certificate("kube-proxy", "system:kube-proxy"),
            _Certificate("coredns", "system:coredns"),
            _Certificate("netpol", manifests.NETPOL_USER),
        )

    def _write_certificates(self) -> None:
        pki = self.options.folders.pki_dir
        write_file(pki / "ca.crt", self._authority.cert_pem)
        for wanted in self._certificate_specs():
            if not self._is_valid(pki / f"{wanted.file}.crt"):
                self._authority.issue(
                    wanted.user,
                    organizations=wanted.organizations,
                    dns=(self.options.name,) if wanted.server else (),
                    ips=(self.options.network.node_address,) if wanted.server else (),
                    client=not wanted.server,
                    server=wanted.server,
                ).write(pki, wanted.file)
        for user in ("kubelet", "kube-proxy", "coredns", "netpol"):
            write_file(
                pki / f"{user}.kubeconfig", configs.user_kubeconfig(self.options, user=user).encode(), mode=0o600
            )

    def _is_valid(self, certificate: Path) -> bool:
        try:
            pem, key = certificate.read_bytes(), certificate.with_suffix(".key").read_bytes()
        except FileNotFoundError:
            return False
        fits = is_matching_pair(pem, key) and self._authority.has_signed(pem)
        return fits and not needs_renewal(pem, now=datetime.now(UTC))

    def _write_configs(self) -> None:
        runc, plugins = find_tool("runc"), find_plugins()
        if runc is None or plugins is None:
            raise UnavailableError(f"no real node here: {find_obstacle()}")
        snapshotter = "overlayfs" if overlay_works(self.options.folders.containerd_dir) else "native"
        servers = _name_servers()
        config = self.options.folders.config_dir
        cni = configs.cni_config(self.options, mtu=uplink_mtu(), host_ports=_host_ports(plugins))
        files = {
            "containerd.toml": configs.containerd_config(
                self.options, runc=runc, plugins=plugins, snapshotter=snapshotter
            ),
            "cni/10-vkgateway.conflist": cni,
            "kubelet.yaml": configs.kubelet_config(self.options),
            "kube-proxy.yaml": configs.kube_proxy_config(self.options),
            "Corefile": configs.coredns_config(self.options, upstreams=servers),
            _SITE: configs.site_config(self.options).decode(),
            "resolv.conf": "".join(f"nameserver {server}\n" for server in servers),
        }
        for name, text in files.items():
            write_file(config / name, text.encode())
        self.options.folders.plugins_dir.mkdir(mode=0o755, exist_ok=True)
        write_file(self.options.folders.plugins_dir / netpol.NAME, netpol.plugin_script().encode(), mode=0o755)

    def _write_images(self) -> None:
        images.write_images(self.options.folders.images_dir)

    def _archive_paths(self) -> dict[str, Path]:
        return {name: images.archive_path(self.options.folders.images_dir, name) for name in images.IMAGE_NAMES}

    def _known_images(self, *, deadline: float) -> set[str]:
        while True:
            try:
                return set(self.run_ctr("images", "list", "--quiet").split())
            except ToolError as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"containerd does not answer: {error}") from error
                time.sleep(0.2)

    def _create_namespaces(self) -> None:
        options = self.options
        self._host_changes.apply_changes(options.owner_key, settings={}, directories=_FIXED_DIRS)
        if not self._namespaces.is_ready:
            # One namespace may be gone while programs run in the other, where nothing else would find them.
            kill_all(self._namespaces, self._cgroups)
        self._namespaces.create(mounts=list(self._bind_mounts()), mtu=uplink_mtu())
        run_command(*f"ip route replace {options.service_network} via {options.network.node_address}".split())
        run_command(*f"ip route replace {options.network.tenant_services} via {options.network.node_address}".split())
        # Packets to addresses in the range that no Service has are dropped here and do not loop.
        ends = f"ip route replace {options.network.tenant_services} dev lo src {options.network.node_address}"
        run_command(*self._namespaces.enter_command(*ends.split()))
        # Tenants without a Service range of their own use these addresses, which must not exist on the machine's
        # networks.
        run_command(*self._namespaces.enter_command("ip", "route", "replace", "unreachable", SERVICE_CIDR))
        # A pod may send from its own address only: the reply to a packet's source must leave where the packet came in.
        run_command(*self._namespaces.enter_command("sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter"))
        enable_masquerade(options.network)
        self._host_changes.apply_changes(
            options.owner_key, settings=forwarding_settings(options.network), directories=()
        )

    def _bind_mounts(self) -> Iterator[tuple[str, str]]:
        """Yield the paths whose content differs between the node's mount namespace and the machine."""
        folders = self.options.folders
        sources: dict[str, Callable[[], str]] = {
            "/var/lib/kubelet": lambda: _make_folder(folders.kubelet_dir),
            "/var/log/pods": lambda: _make_folder(folders.logs_dir / "pods"),
            "/var/log/containers": lambda: _make_folder(folders.logs_dir / "containers"),
        }
        for place in _FIXED_DIRS:
            yield sources.get(place, lambda: "tmpfs")(), place
        for name, value in _KERNEL_SETTINGS.items():
            if Path("/proc/sys", name).exists():
                file = folders.sysctl_dir / name.replace("/", ".")
                write_file(file, f"{value}\n".encode())
                yield str(file), f"/proc/sys/{name}"
        yield str(folders.config_dir / "resolv.conf"), "/etc/resolv.conf"
        write_file(folders.kubelet_dir / _KEEP_RESOURCES, b"")


def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else ""


def _make_folder(path: Path) -> str:
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return str(path)


def _host_ports(plugins: Path) -> bool:
    """Return whether hostPort works: its CNI plugin writes iptables rules."""
    return (plugins / "portmap").exists() and find_tool("iptables") is not None


def _name_servers() -> list[str]:
    """Return the machine's name servers that the node can reach, from the first file that has any."""
    texts = (path.read_text() for path in _SOURCES_OF_NAME_SERVERS if path.exists())
    return next((servers for text in texts if (servers := configs.name_servers(text))), [])
