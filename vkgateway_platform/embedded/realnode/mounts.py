"""Paths whose content differs between the node's mount namespace and the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vkgateway.planes.atomic_files import write_file
from vkgateway_platform.embedded.realnode.options import NodeFolders

FIXED_DIRS = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods")
"""Directories of containerd and the kubelet that no setting changes."""
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


def bind_mounts(folders: NodeFolders) -> Iterator[tuple[str, str]]:
    """Yield the source (or `tmpfs`) and the target of each mount; create the sources."""
    sources = {
        "/var/lib/kubelet": folders.kubelet_dir,
        "/var/log/pods": folders.logs_dir / "pods",
        "/var/log/containers": folders.logs_dir / "containers",
    }
    for target in FIXED_DIRS:
        source = sources.get(target)
        if source is not None:
            source.mkdir(mode=0o755, parents=True, exist_ok=True)
        yield str(source or "tmpfs"), target
    for name, value in _KERNEL_SETTINGS.items():
        if Path("/proc/sys", name).exists():
            file = folders.sysctl_dir / name.replace("/", ".")
            write_file(file, f"{value}\n".encode())
            yield str(file), f"/proc/sys/{name}"
    yield str(folders.config_dir / "resolv.conf"), "/etc/resolv.conf"
    write_file(folders.kubelet_dir / _KEEP_RESOURCES, b"")
