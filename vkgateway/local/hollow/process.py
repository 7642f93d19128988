"""KWOK among the platform's processes."""

from __future__ import annotations

from pathlib import Path

from vkgateway.local.hollow import kwok
from vkgateway.local.hollow.kubelet import process as kubelet
from vkgateway.local.paths import Paths
from vkgateway.programs.supervisor.spec import ProcessSpec


def spec(paths: Paths, *, port: int, program: Path) -> ProcessSpec:
    """Write its configuration and describe the process; `port` is that of the hollow kubelet."""
    config = kwok.write_config(paths.hollow, kubelet=kwok.HollowKubelet(address=kubelet.HOST, port=port))
    return kwok.spec(program=program, config=config, kubeconfig=paths.kubeconfig)
