"""The process of the volume provisioner: its kubeconfig and its objects."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

import yaml

from vkgateway.kube import kubeconfig
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import PROVISIONER, PROVISIONER_USER, PlatformPki

NAME = "provisioner"
_STOP_RANK = 70


def manifest_objects() -> list[dict[str, Any]]:
    """Return the storage class and the provisioner's permissions."""
    text = (resources.files("vkgateway_platform.embedded.provisioner") / "manifests.yaml").read_text()
    return [document for document in yaml.safe_load_all(text) if document]


def write_kubeconfig(paths: PlatformPaths, *, plane: ControlPlaneSpec, pki: PlatformPki) -> None:
    """Write the provisioner's kubeconfig; it reads the file again when the API server refuses it."""
    config = kubeconfig.build_document(
        plane.cluster,
        server=plane.server_url,
        ca=pki.compute.ca.cert_pem,
        cert=(paths.pki_dir / f"{PROVISIONER}.crt").read_bytes(),
        key=(paths.pki_dir / f"{PROVISIONER}.key").read_bytes(),
        user=PROVISIONER_USER,
    )
    kubeconfig.write_file(paths.provisioner_kubeconfig, config)


def process_spec(paths: PlatformPaths, *, plane: ControlPlaneSpec, pki: PlatformPki) -> ProcessSpec:
    """Write the kubeconfig and return the spec of the process. It runs on the machine, whose directories the real node
    sees.
    """
    write_kubeconfig(paths, plane=plane, pki=pki)
    return ProcessSpec(
        name=NAME,
        argv=(
            sys.executable,
            "-m",
            "vkgateway_platform.embedded.provisioner",
            str(paths.provisioner_kubeconfig),
            str(paths.volumes_dir),
        ),
        stop_rank=_STOP_RANK,
        stop_timeout=5.0,
        batch=True,
    )
