"""The process of the hollow kubelet."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import HOLLOW_SERVER

NAME = "compute/hollow-kubelet"
HOST = "127.0.0.1"
"""API servers refuse to proxy to nodes on loopback, but fetch logs and run commands there."""
CALLER = "kube-apiserver-kubelet-client"
"""Common name of the compute API server at kubelets (`planes.plane.compute_plane_spec`)."""
_STOP_RANK = 70


def process_spec(paths: PlatformPaths, *, port: int) -> ProcessSpec:
    """Return the spec of the process; other certificates change it."""
    files = certificate_path(paths), key_path(paths), authority_path(paths), paths.admin_kubeconfig
    content = b"".join(file.read_bytes() for file in files)
    return ProcessSpec(
        name=NAME,
        argv=(sys.executable, "-m", "vkgateway_platform.embedded.hollow.kubelet", str(paths.data_dir), str(port)),
        env={"FILES_DIGEST": hashlib.sha256(content).hexdigest()[:16]},
        stop_rank=_STOP_RANK,
        stop_timeout=5.0,
        batch=True,
    )


async def is_listening(port: int) -> bool:
    """Return whether the process accepts connections."""
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


def certificate_path(paths: PlatformPaths) -> Path:
    """Return the serving certificate."""
    return paths.hollow_dir / f"{HOLLOW_SERVER}.crt"


def key_path(paths: PlatformPaths) -> Path:
    """Return the key of the serving certificate."""
    return paths.hollow_dir / f"{HOLLOW_SERVER}.key"


def authority_path(paths: PlatformPaths) -> Path:
    """Return the CA of the compute API server's client certificate."""
    return paths.compute_credentials / "ca.crt"
