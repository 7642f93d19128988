"""Configuration files of the node's programs, written from what the machine offers."""

from __future__ import annotations

from pathlib import Path

from vkgateway.api.errors import UnavailableError
from vkgateway.planes.atomic_files import write_file
from vkgateway_platform.embedded.netpol import plugin as netpol
from vkgateway_platform.embedded.realnode import configs
from vkgateway_platform.embedded.realnode.host_network import uplink_mtu
from vkgateway_platform.embedded.realnode.options import RealNodeOptions
from vkgateway_platform.embedded.realnode.probe import find_obstacle, find_plugins, find_tool, overlay_works

_SOURCES_OF_NAME_SERVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


def write_configs(options: RealNodeOptions) -> None:
    """Write all files. Raises `UnavailableError` with the reason of `find_obstacle()` if a program is missing."""
    runc, plugins = find_tool("runc"), find_plugins()
    if runc is None or plugins is None:
        raise UnavailableError(f"no real node here: {find_obstacle()}")
    folders = options.folders
    snapshotter = "overlayfs" if overlay_works(folders.containerd_dir) else "native"
    servers = _name_servers()
    files = {
        "containerd.toml": configs.containerd_config(options, runc=runc, plugins=plugins, snapshotter=snapshotter),
        "cni/10-vkgateway.conflist": configs.cni_config(options, mtu=uplink_mtu(), host_ports=_host_ports(plugins)),
        "kubelet.yaml": configs.kubelet_config(options),
        "kube-proxy.yaml": configs.kube_proxy_config(options),
        "Corefile": configs.coredns_config(options, upstreams=servers),
        configs.SITE_FILE: configs.site_config(options).decode(),
        "resolv.conf": "".join(f"nameserver {server}\n" for server in servers),
    }
    for name, text in files.items():
        write_file(folders.config_dir / name, text.encode())
    folders.plugins_dir.mkdir(mode=0o755, exist_ok=True)
    write_file(folders.plugins_dir / netpol.NAME, netpol.plugin_script().encode(), mode=0o755)


def _host_ports(plugins: Path) -> bool:
    """Return whether hostPort works: its CNI plugin writes iptables rules."""
    return (plugins / "portmap").exists() and find_tool("iptables") is not None


def _name_servers() -> list[str]:
    """Return the machine's name servers that the node can reach, from the first file that has any."""
    texts = (path.read_text() for path in _SOURCES_OF_NAME_SERVERS if path.exists())
    return next((servers for text in texts if (servers := configs.name_servers(text))), [])
