"""Processes of the node, which run in its namespaces."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded.realnode.configs import SITE_FILE
from vkgateway_platform.embedded.realnode.host import TOOL_PATH
from vkgateway_platform.embedded.realnode.namespaces import NodeNamespaces
from vkgateway_platform.embedded.realnode.options import RealNodeOptions

GROUP = "node"
"""First segment of the names of the node's processes."""


def process_specs(options: RealNodeOptions, namespaces: NodeNamespaces) -> tuple[ProcessSpec, ...]:
    """Return the node's processes; containerd is first, since the kubelet exits without it."""
    config, pki = options.folders.config_dir, options.folders.pki_dir
    tools = f"{options.programs['containerd-shim-runc-v2'].parent}:{TOOL_PATH}"

    def spec(name: str, *arguments: str, stop_rank: int, reads: Path | None = None) -> ProcessSpec:
        """Return the spec of a process; `reads` is a file that it reads only at start, so that a changed file restarts
        it.
        """
        return ProcessSpec(
            name=f"{GROUP}/{name}",
            argv=namespaces.enter_command(str(options.programs[name]), *arguments),
            env={"PATH": tools} | ({"CONFIG_DIGEST": _file_digest(reads)} if reads is not None else {}),
            stop_rank=stop_rank,
        )

    kubelet = (
        f"--config={config / 'kubelet.yaml'}",
        f"--kubeconfig={pki / 'kubelet.kubeconfig'}",
        f"--hostname-override={options.name}",
        f"--node-ip={options.network.node_address}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in sorted(options.labels.items()))}",
    )
    return (
        spec("containerd", f"--config={config / 'containerd.toml'}", stop_rank=80),
        _netpol_spec(options, namespaces, stop_rank=85),
        spec("kubelet", *kubelet, stop_rank=90),
        spec("kube-proxy", f"--config={config / 'kube-proxy.yaml'}", stop_rank=90),
        spec("coredns", f"-conf={config / 'Corefile'}", stop_rank=90, reads=config / "Corefile"),
    )


def _netpol_spec(options: RealNodeOptions, namespaces: NodeNamespaces, *, stop_rank: int) -> ProcessSpec:
    """Return the spec of the process that enforces NetworkPolicies; containerd starts no pod without it."""
    site = options.folders.config_dir / SITE_FILE
    arguments = (str(options.folders.pki_dir / "netpol.kubeconfig"), str(site))
    return ProcessSpec(
        name=f"{GROUP}/netpol",
        argv=namespaces.enter_command(sys.executable, "-m", "vkgateway_platform.embedded.netpol", *arguments),
        env={"PATH": TOOL_PATH, "CONFIG_DIGEST": _file_digest(site)},
        stop_rank=stop_rank,
    )


def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else ""
