"""The process of KWOK."""

from __future__ import annotations

from pathlib import Path

from vkgateway.local.hollow import kwok
from vkgateway.local.hollow.kubelet import process as kubelet
from vkgateway.local.paths import PlatformPaths
from vkgateway.programs.supervisor.spec import ProcessSpec


def process_spec(paths: PlatformPaths, *, port: int, program: Path) -> ProcessSpec:
    """Write the configuration and return the spec of the process; `port` is the hollow kubelet's."""
    config = kwok.write_config(paths.hollow_dir, kubelet=kwok.HollowKubelet(address=kubelet.HOST, port=port))
    return kwok.process_spec(program=program, config=config, kubeconfig=paths.admin_kubeconfig)
