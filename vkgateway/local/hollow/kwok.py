"""What KWOK is told: its configuration file and its process."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vkgateway.controlplane.files import SECRET_MODE, write_file
from vkgateway.local import cores
from vkgateway.local.hollow.nodes import MANAGED
from vkgateway.programs.supervisor.spec import ProcessSpec

NAME = "compute/kwok"
HOST = "127.0.0.1"
"""KWOK asks nobody who he is before it executes a command, so only this machine's own processes may reach it.

API servers refuse to proxy to nodes on loopback, but fetch logs and run commands there.
"""
LEASE_SECONDS = 20
"""KWOK calls itself by a new name at each start, and waits for the leases of its former self to run out before it does
anything for their nodes; so a node's lease is short, and is renewed every quarter of it."""
# Pods of hollow nodes have addresses that lead nowhere; this range is set aside for them.
_POD_ADDRESSES = "10.232.0.0/14"
_NOBODY = 65534
NO_EXEC = "/dev/null/commands in pods on hollow nodes need a platform that runs as root"
"""A working directory that can never be, since /dev/null is no directory: whoever tries reads this in the refusal."""
_STOP_RANK = 70
_API = "kwok.x-k8s.io/v1alpha1"
_LOG = (
    "2026-01-01T00:00:00.000000000Z stdout F This pod runs on a hollow node: nothing is executed.\n"
    "2026-01-01T00:00:00.000000001Z stdout F Pods that should really run belong on a real node.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowKubelet:
    """Where KWOK serves logs and exec for all hollow nodes, and by which certificate."""

    address: str
    port: int
    cert: Path
    key: Path


def write_config(directory: Path, *, kubelet: HollowKubelet, parallelism: int = 64) -> Path:
    """Write the configuration and the log it serves; the configuration's path."""
    log = directory / "pod.log"
    write_file(log, _LOG.encode())
    documents = [_options(kubelet, parallelism=parallelism), *_debugging(log), *stages()]
    config = directory / "kwok.yaml"
    write_file(config, yaml.safe_dump_all(documents, sort_keys=False).encode(), mode=SECRET_MODE)
    return config


def spec(*, program: Path, config: Path, kubeconfig: Path, kubelet: HollowKubelet) -> ProcessSpec:
    """Describe the process; what it reads must have been written."""
    # It reads all of them once: what is renewed makes another spec, so the supervisor starts the process anew.
    content = b"".join(file.read_bytes() for file in (config, kubeconfig, kubelet.cert))
    return ProcessSpec(
        name=NAME,
        argv=(str(program), f"--config={config}", f"--kubeconfig={kubeconfig}", "--v=WARN"),
        # A home without ~/.kwok: nothing but our configuration counts. PATH is what `exec` finds programs on.
        env={
            "HOME": str(config.parent),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "CONFIG_DIGEST": hashlib.sha256(content).hexdigest()[:16],
            "GOGC": "400",  # a small heap that is filled fast
            **cores.limited(),
        },
        stop_rank=_STOP_RANK,
        batch=True,
    )


def stages() -> list[dict[str, Any]]:
    """Return the Stage documents: how hollow nodes and pods move on."""
    text = (resources.files(__package__) / "stages.yaml").read_text()
    return list(yaml.safe_load_all(text))


def _options(kubelet: HollowKubelet, *, parallelism: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "cidr": _POD_ADDRESSES,
            "nodeIP": kubelet.address,
            "nodePort": kubelet.port,
            "serverAddress": f"{kubelet.address}:{kubelet.port}",
            "tlsCertFile": str(kubelet.cert),
            "tlsPrivateKeyFile": str(kubelet.key),
            "manageNodesWithAnnotationSelector": "=".join(MANAGED),
            "nodeLeaseDurationSeconds": LEASE_SECONDS,
            "nodeLeaseParallelism": 8,
            "nodePlayStageParallelism": 8,
            "podPlayStageParallelism": parallelism,
            "podsOnNodeSyncParallelism": 8,
            "enablePodsOnNodeSyncListPager": True,
            # Streaming lists are refused by our API servers: KWOK would learn of no pod on a node that it takes over.
            "enablePodsOnNodeSyncStreamWatch": False,
            "enableDebuggingHandlers": True,
            "enableProfilingHandler": False,
        },
    }


def _debugging(log: Path) -> list[dict[str, Any]]:
    """Logs come from a file; exec runs on this machine, as root's opposite and without the platform's files.

    Without root it could only run as the platform's own user, with all that is his: so there it cannot run at all.
    """
    local: dict[str, Any] = {"workDir": "/", "envs": [{"name": "HOME", "value": "/nonexistent"}]}
    if os.geteuid() == 0:
        local["securityContext"] = {"runAsUser": _NOBODY, "runAsGroup": _NOBODY}
    else:
        local["workDir"] = NO_EXEC
    return [
        _rule("ClusterLogs", logs=[{"logsFile": str(log), "previousLogsFile": str(log)}]),
        _rule("ClusterAttach", attaches=[{"logsFile": str(log)}]),
        _rule("ClusterExec", execs=[{"local": local}]),
    ]


def _rule(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": "hollow"}, "spec": spec}
