"""KWOK among the platform's processes."""

from __future__ import annotations

from pathlib import Path

from vkgateway.local.hollow import kwok
from vkgateway.local.paths import Paths
from vkgateway.local.pki import HOLLOW_SERVER
from vkgateway.programs.supervisor.spec import ProcessSpec


def spec(paths: Paths, *, port: int, program: Path) -> ProcessSpec:
    """Write its configuration and describe the process; other certificates make another."""
    kubelet = kwok.HollowKubelet(
        address=kwok.HOST,
        port=port,
        cert=paths.hollow / f"{HOLLOW_SERVER}.crt",
        key=paths.hollow / f"{HOLLOW_SERVER}.key",
    )
    config = kwok.write_config(paths.hollow, kubelet=kubelet)
    return kwok.spec(program=program, config=config, kubeconfig=paths.kubeconfig, kubelet=kubelet)
