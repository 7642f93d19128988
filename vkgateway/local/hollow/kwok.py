"""What KWOK is told: its configuration file and its process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vkgateway.controlplane.atomic_files import SECRET_MODE, write_file
from vkgateway.local import core_limit
from vkgateway.local.hollow.nodes import MANAGED_ANNOTATION
from vkgateway.programs.supervisor.spec import ProcessSpec

NAME = "compute/kwok"
LEASE_SECONDS = 20
"""KWOK calls itself by a new name at each start, and waits for the leases of its former self to run out before it does
anything for their nodes; so a node's lease is short, and is renewed every quarter of it."""
# Pods of hollow nodes have addresses that lead nowhere; this range is set aside for them.
_POD_ADDRESSES = "10.232.0.0/14"
_STOP_RANK = 70
_KUBELET_PORT = "KUBELET_PORT"
"""Stands for the port of the hollow kubelet in the stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowKubelet:
    """Where hollow nodes say that their kubelet is; KWOK itself serves nothing, since it knows no callers."""

    address: str
    port: int


def write_config(directory: Path, *, kubelet: HollowKubelet, parallelism: int = 64) -> Path:
    """Write the configuration, and return its path."""
    documents = [_kwok_configuration(kubelet, parallelism=parallelism), *load_stages(kubelet.port)]
    config = directory / "kwok.yaml"
    write_file(config, yaml.safe_dump_all(documents, sort_keys=False).encode(), mode=SECRET_MODE)
    return config


def process_spec(*, program: Path, config: Path, kubeconfig: Path) -> ProcessSpec:
    """Describe the process; what it reads must have been written."""
    # It reads all of them once: what is renewed makes another spec, so the supervisor starts the process anew.
    content = b"".join(file.read_bytes() for file in (config, kubeconfig))
    return ProcessSpec(
        name=NAME,
        argv=(str(program), f"--config={config}", f"--kubeconfig={kubeconfig}", "--v=WARN"),
        # A home without ~/.kwok: nothing but our configuration counts.
        env={
            "HOME": str(config.parent),
            "CONFIG_DIGEST": hashlib.sha256(content).hexdigest()[:16],
            "GOGC": "400",  # a small heap that is filled fast
            **core_limit.limit_cores(),
        },
        stop_rank=_STOP_RANK,
        batch=True,
    )


def load_stages(kubelet_port: int) -> list[dict[str, Any]]:
    """Return the Stage documents: how hollow nodes and pods move on."""
    text = (resources.files(__package__) / "stages.yaml").read_text()
    return list(yaml.safe_load_all(text.replace(_KUBELET_PORT, str(kubelet_port))))


def _kwok_configuration(kubelet: HollowKubelet, *, parallelism: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "cidr": _POD_ADDRESSES,
            "nodeIP": kubelet.address,
            "manageNodesWithAnnotationSelector": "=".join(MANAGED_ANNOTATION),
            "nodeLeaseDurationSeconds": LEASE_SECONDS,
            "nodeLeaseParallelism": 8,
            "nodePlayStageParallelism": 8,
            "podPlayStageParallelism": parallelism,
            "podsOnNodeSyncParallelism": 8,
            "enablePodsOnNodeSyncListPager": True,
            # Streaming lists are refused by our API servers: KWOK would learn of no pod on a node that it takes over.
            "enablePodsOnNodeSyncStreamWatch": False,
            "enableDebuggingHandlers": False,
            "enableProfilingHandler": False,
        },
    }
