"""Check of whether this machine can run a real node, and if not, why."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from vkgateway_platform.embedded.realnode.cgroups import Cgroups
from vkgateway_platform.embedded.realnode.host import TOOL_PATH, ToolError, run_command
from vkgateway_platform.embedded.realnode.images import BUSYBOX

# Debian package of each program.
_TOOLS: Mapping[str, str] = {
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
_CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
_CNI_PLUGINS = ("ptp", "host-local", "loopback")
_KMSG = Path("/dev/kmsg")
# Long enough to contain the name of a program's loader.
_HEAD = 4096

# Runs in temporary namespaces and checks what the kernel offers.
_REHEARSAL = """
ip link add name vkgprobe type veth peer name vkgprobe0
echo 1 >/proc/sys/net/ipv4/ip_forward
nft add table ip vkgprobe
nft 'add chain ip vkgprobe nat { type nat hook postrouting priority 100; }'
nft add rule ip vkgprobe nat ip saddr 10.0.0.0/8 masquerade
nft add map ip vkgprobe services '{ type ipv4_addr . inet_proto . inet_service : verdict; }'
nft add set ip vkgprobe pairs '{ type ipv4_addr . ipv4_addr; }'
nft add chain ip vkgprobe filter '{ type filter hook forward priority 0; }'
nft add rule ip vkgprobe filter ct state established,related accept
nft add rule ip vkgprobe filter ip saddr . ip daddr @pairs accept
nft add rule ip vkgprobe filter ip daddr . tcp dport '{ 10.0.0.1 . 80 }' ip saddr '{ 10.0.0.0/8 }' accept
nft add rule ip vkgprobe filter reject with icmp type admin-prohibited
mount -t tmpfs tmpfs /mnt
"""


def find_obstacle() -> str | None:
    """Return the first reason why this machine cannot run a real node, or None. Changes nothing."""
    checks: tuple[Callable[[], str | None], ...] = (
        _check_system,
        _check_privileges,
        _check_programs,
        _check_cgroups,
        _check_kernel,
    )
    return next((reason for check in checks if (reason := check())), None)


def find_tool(name: str) -> Path | None:
    """Return the path of one of the system's programs, `sbin` included; None if it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{TOOL_PATH}")
    return Path(found) if found else None


def find_plugins() -> Path | None:
    """Return the directory of the CNI plugins; None if no directory has all required ones."""
    has_all = (path for path in _CNI_DIRECTORIES if all((path / name).exists() for name in _CNI_PLUGINS))
    return next(has_all, None)


def static_busybox() -> bool:
    """Return whether the busybox for images exists and is static."""
    try:
        with BUSYBOX.open("rb") as file:
            return b"/ld-" not in file.read(_HEAD)
    except FileNotFoundError:
        return False


def overlay_works(directory: Path) -> bool:
    """Whether overlay mounts work in `directory` (not on top of another overlay, as in many containers)."""
    trial = directory / ".overlay"
    try:
        for name in ("lower", "upper", "work", "merged"):
            (trial / name).mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
        run_command("unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", f"{trial}/merged")
    except (ToolError, OSError):
        return False
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return True


def _check_system() -> str | None:
    if sys.platform != "linux":
        return "a real node needs Linux"
    return None if _KMSG.exists() else f"the kubelet needs {_KMSG}, which is not there"


def _check_privileges() -> str | None:
    return None if os.geteuid() == 0 else "a real node needs root"


def _check_programs() -> str | None:
    packages = {name: package for name, package in _TOOLS.items() if find_tool(name) is None}
    if find_plugins() is None:
        packages["the CNI plugins"] = "containernetworking-plugins"
    if not static_busybox():
        packages[f"a static {BUSYBOX}"] = "busybox-static"
    if not packages:
        return None
    names, wanted = ", ".join(packages), " ".join(sorted(set(packages.values())))
    return f"missing {names}: apt-get install {wanted}"


def _check_cgroups() -> str | None:
    return Cgroups("vkgprobe").find_obstacle()


def _check_kernel() -> str | None:
    try:
        run_command("unshare", "--net", "--mount", "sh", "-ec", _REHEARSAL)
    except ToolError as error:
        return f"the kernel does not let us build network and mount namespaces ({error})"
    return None
