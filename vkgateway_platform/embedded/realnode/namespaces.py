"""The node's own network and mount namespaces: created, entered, and removed with everything in them.

They contain kube-proxy's rules, CNI interfaces, every mount of a container or volume and every network setting of the
kernel. So two platforms never interfere, and removing the namespaces leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vkgateway_platform.embedded.realnode.cgroups import Cgroups
from vkgateway_platform.embedded.realnode.host import ToolError, run_command
from vkgateway_platform.embedded.realnode.host_network import HostLink
from vkgateway_platform.embedded.realnode.options import NodeNetwork

_KILL_PATIENCE = 10.0
# proc(5): blanks, tabs, newlines and backslashes are written as three octal digits.
_ESCAPED = re.compile(r"\\([0-7]{3})")

# $1.. are pairs: the source of a bind mount (or `tmpfs`), and its target. The namespace receives new mounts of the
# machine (slave), propagates none back, and is shared inside, as mount propagation between pods requires.
_BIND_SCRIPT = """
mount --make-rshared /
while [ $# -gt 1 ]; do
  if [ "$1" = tmpfs ]; then mount -t tmpfs -o mode=0755 tmpfs "$2"; else mount --bind "$1" "$2"; fi
  shift 2
done
"""


@dataclass(frozen=True, slots=True)
class NodeNamespaces:
    """Both namespaces of one node, each kept alive by a file in its own directory."""

    network: NodeNetwork
    folder: Path

    @property
    def network_file(self) -> Path:
        """File that keeps the network namespace alive."""
        return self.folder / "net"

    @property
    def mount_file(self) -> Path:
        """File that keeps the mount namespace alive."""
        return self.folder / "mnt"

    def enter_command(self, *command: str) -> tuple[str, ...]:
        """Return the command line that runs `command` inside, in the same process."""
        return ("nsenter", f"--net={self.network_file}", f"--mount={self.mount_file}", "--", *command)

    @property
    def _link(self) -> HostLink:
        """The host's end of the veth pair; the kernel allows an alias of 255 bytes."""
        return HostLink(self.network, alias=str(self.folder)[-120:])

    @property
    def is_ready(self) -> bool:
        """Return whether both exist."""
        return self._has_network() and self._has_mounts()

    def create(self, *, mounts: Sequence[tuple[str, str]], mtu: int) -> None:
        """Create the namespaces that are missing; `mounts` are pairs of source (or `tmpfs`) and target. Repeatable."""
        if self.is_ready:
            return
        self.destroy()
        try:
            self._create_folder()
            self._create_network(mtu=mtu)
            self._create_mounts(mounts)
        except ToolError:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Remove both with all interfaces, rules and mounts in them; no process may be left inside. Repeatable."""
        for place in (self.mount_file, self.network_file, self.folder):
            # The kernel lists real paths, even if the data directory is behind a link.
            for _ in range(mount_points().count(str(place.resolve()))):
                run_command("umount", str(place))
        self._link.remove()

    def list_members(self) -> set[int]:
        """Return the processes inside either namespace: shims, containerd, the kubelet and their children."""
        held = {identity for path in (self.network_file, self.mount_file) if (identity := _namespace_identity(path))}
        return {pid for pid in _list_pids() if held & _namespaces_of(pid)} if held else set()

    def _has_network(self) -> bool:
        return self._link.exists and _namespace_identity(self.network_file) is not None

    def _has_mounts(self) -> bool:
        return _namespace_identity(self.mount_file) is not None

    def _create_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file can keep a mount namespace alive only on a private mount.
        run_command("mount", "--bind", str(self.folder), str(self.folder))
        run_command("mount", "--make-private", str(self.folder))
        self.network_file.touch()
        self.mount_file.touch()

    def _create_network(self, *, mtu: int) -> None:
        net, inside = self.network, str(self.network_file)
        run_command("unshare", f"--net={inside}", "true")
        self._link.create(netns=inside, mtu=mtu)
        self._run_in_network(
            f"""
ip link set lo up
ip address add {net.node_address}/31 dev eth0
ip link set eth0 up
ip route add default via {net.host_address}
echo 1 >/proc/sys/net/ipv4/ip_forward
"""
        )
        run_command(*f"ip route replace {net.pod_subnet} via {net.node_address}".split())

    def _run_in_network(self, script: str) -> None:
        run_command("nsenter", f"--net={self.network_file}", "--", "sh", "-ec", script)

    def _create_mounts(self, mounts: Sequence[tuple[str, str]]) -> None:
        pairs = [word for pair in mounts for word in pair]
        flags = (f"--mount={self.mount_file}", "--propagation=slave")
        run_command("unshare", *flags, "sh", "-ec", _BIND_SCRIPT, "sh", *pairs)


def mount_points(table: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """Return the target of every mount of this process's namespace; a target with two mounts appears twice.

    `os.path.ismount` does not detect a directory that is bound onto itself.
    """
    lines = table.read_text(errors="surrogateescape").split("\n")
    return [_ESCAPED.sub(_unescape_octal, fields[4]) for line in lines if len(fields := line.split(" ")) > 4]


def kill_all(namespaces: NodeNamespaces, cgroups: Cgroups, *, patience: float = _KILL_PATIENCE) -> None:
    """Kill every process of the node: those in its namespaces and those in its pods' cgroups.

    Raises `ToolError` with their names if some survive `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while pids := (namespaces.list_members() | cgroups.list_members()) - {os.getpid()}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ToolError(f"processes {sorted(pids)} of the real node do not die")
        time.sleep(0.05)


def _unescape_octal(match: re.Match[str]) -> str:
    return chr(int(match[1], base=8))


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _namespaces_of(pid: int) -> set[tuple[int, int]]:
    paths = (Path(f"/proc/{pid}/ns/{kind}") for kind in ("net", "mnt"))
    return {identity for path in paths if (identity := _file_identity(path))}


def _namespace_identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a namespace; None if the file at `path` keeps none alive."""
    own = _file_identity(Path("/proc/self/ns/net"))
    identity = _file_identity(path)
    # All namespaces are on one internal file system (nsfs); a file on any other device is an ordinary file.
    return identity if own and identity and identity[0] == own[0] else None


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:  # the process has exited, or the file does not exist
        return None
    return status.st_dev, status.st_ino
