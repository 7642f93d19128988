"""KWOK's configuration file and process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vkgateway.planes.atomic_files import SECRET_MODE, write_file
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded import core_limit
from vkgateway_platform.embedded.hollow.kubelet.process import HOST as KUBELET_HOST
from vkgateway_platform.embedded.hollow.nodes import MANAGED_ANNOTATION
from vkgateway_platform.embedded.network import HOLLOW_PODS
from vkgateway_platform.embedded.paths import PlatformPaths

NAME = "compute/kwok"
LEASE_SECONDS = 20
"""Duration of a node's Lease; it is renewed every quarter of it. KWOK has a new identity at each start and waits for
its old Leases to expire before it acts on their nodes, so the duration is short.
"""
_STOP_RANK = 70
_KUBELET_PORT = "KUBELET_PORT"
"""Placeholder for the hollow kubelet's port in the stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowKubelet:
    """The kubelet endpoint of hollow nodes; KWOK serves none, since it cannot authenticate callers."""

    address: str
    port: int


def write_config(directory: Path, *, kubelet: HollowKubelet, parallelism: int = 64) -> Path:
    """Write the configuration, and return its path."""
    documents = [_kwok_configuration(kubelet, parallelism=parallelism), *load_stages(kubelet.port)]
    config = directory / "kwok.yaml"
    write_file(config, yaml.safe_dump_all(documents, sort_keys=False).encode(), mode=SECRET_MODE)
    return config


def prepare_process(paths: PlatformPaths, *, port: int, program: Path) -> ProcessSpec:
    """Write the platform's configuration and return the spec of the process; `port` is the hollow kubelet's."""
    config = write_config(paths.hollow_dir, kubelet=HollowKubelet(address=KUBELET_HOST, port=port))
    return process_spec(program=program, config=config, kubeconfig=paths.admin_kubeconfig)


def process_spec(*, program: Path, config: Path, kubeconfig: Path) -> ProcessSpec:
    """Return the spec of the process; its files must exist."""
    # KWOK reads its files only at start: a renewed certificate changes the spec, and the supervisor restarts the
    # process.
    content = b"".join(file.read_bytes() for file in (config, kubeconfig))
    return ProcessSpec(
        name=NAME,
        argv=(str(program), f"--config={config}", f"--kubeconfig={kubeconfig}", "--v=WARN"),
        # A home without ~/.kwok, so that only this configuration counts.
        env={
            "HOME": str(config.parent),
            "CONFIG_DIGEST": hashlib.sha256(content).hexdigest()[:16],
            "GOGC": "400",  # a small heap that fills quickly
            **core_limit.limit_cores(),
        },
        stop_rank=_STOP_RANK,
        batch=True,
    )


def load_stages(kubelet_port: int) -> list[dict[str, Any]]:
    """Return the Stage documents, which define how hollow nodes and pods change state."""
    text = (resources.files(__package__) / "stages.yaml").read_text()
    return list(yaml.safe_load_all(text.replace(_KUBELET_PORT, str(kubelet_port))))


def _kwok_configuration(kubelet: HollowKubelet, *, parallelism: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "cidr": HOLLOW_PODS,
            "nodeIP": kubelet.address,
            "manageNodesWithAnnotationSelector": "=".join(MANAGED_ANNOTATION),
            "nodeLeaseDurationSeconds": LEASE_SECONDS,
            "nodeLeaseParallelism": 8,
            "nodePlayStageParallelism": 8,
            "podPlayStageParallelism": parallelism,
            "podsOnNodeSyncParallelism": 8,
            "enablePodsOnNodeSyncListPager": True,
            # The platform's API servers refuse streaming lists; with them, KWOK would see no pod of a node that it
            # takes over.
            "enablePodsOnNodeSyncStreamWatch": False,
            "enableDebuggingHandlers": False,
            "enableProfilingHandler": False,
        },
    }
