"""The provisioner among the platform's processes: what it reads, its objects, and how it is started."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

import yaml

from vkgateway.controlplane.plane import Plane
from vkgateway.kube import kubeconfig
from vkgateway.local.paths import Paths
from vkgateway.local.pki import PROVISIONER, PROVISIONER_USER, PlatformPki
from vkgateway.programs.supervisor.spec import ProcessSpec

NAME = "provisioner"
_STOP_RANK = 70


def objects() -> list[dict[str, Any]]:
    """Return the storage class, and the provisioner's rights."""
    text = (resources.files("vkgateway.local.provisioner") / "manifests.yaml").read_text()
    return [document for document in yaml.safe_load_all(text) if document]


def write_kubeconfig(paths: Paths, *, plane: Plane, pki: PlatformPki) -> None:
    """Write by what it proves itself; it reads that anew once it is refused."""
    config = kubeconfig.build(
        plane.cluster,
        server=plane.url,
        ca=pki.compute.ca.cert_pem,
        cert=(paths.pki / f"{PROVISIONER}.crt").read_bytes(),
        key=(paths.pki / f"{PROVISIONER}.key").read_bytes(),
        user=PROVISIONER_USER,
    )
    kubeconfig.write(paths.provisioner_kubeconfig, config)


def spec(paths: Paths, *, plane: Plane, pki: PlatformPki) -> ProcessSpec:
    """Write its kubeconfig and describe the process. It runs on the machine, whose folders the real node sees."""
    write_kubeconfig(paths, plane=plane, pki=pki)
    return ProcessSpec(
        name=NAME,
        argv=(
            sys.executable,
            "-m",
            "vkgateway.local.provisioner",
            str(paths.provisioner_kubeconfig),
            str(paths.volumes),
        ),
        stop_rank=_STOP_RANK,
        stop_timeout=5.0,
        batch=True,
    )
