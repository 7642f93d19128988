"""Specs and files of control planes for tests."""

from __future__ import annotations

import datetime
from pathlib import Path

from vkgateway.planes.components import PROGRAMS
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.drivers.process.driver import component_process
from vkgateway.planes.drivers.process.plane_directory import write_plane_files
from vkgateway.planes.pki import Authority
from vkgateway.planes.plane import ComponentName, ControlPlaneSpec, Tuning, tenant_plane_spec
from vkgateway.planes.plane_files import Authorities, PlaneFiles
from vkgateway.planes.supervisor.spec import ProcessSpec

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ETCD = ("https://10.0.0.1:2379",)
AUTHORITIES = Authorities(etcd=Authority.create("etcd", now=NOW), kubelet=Authority.create("kubelet", now=NOW))
ALPHA = Credentials.create("alpha")
BIN = {program: Path("/bin") / program for program in PROGRAMS.values()}


def tenant_plane(
    *, port: int = 20001, flags: dict[str, str | None] | None = None, names: tuple[str, ...] = ()
) -> ControlPlaneSpec:
    return tenant_plane_spec(
        "alpha",
        address="10.0.0.1",
        port=port,
        etcd_endpoints=ETCD,
        subject_alt_names=names,
        tuning={"apiserver": Tuning(flags=flags)} if flags else {},
    )


def versioned_plane(version: str) -> ControlPlaneSpec:
    """Return a tenant's control plane of that version, with the address of the gateway's webhook."""
    return tenant_plane_spec(
        "alpha",
        address="10.0.0.1",
        port=20001,
        etcd_endpoints=ETCD,
        kubernetes_version=version,
        webhooks_at="10.0.0.1:10352",
    )


def write(directory: Path, plane: ControlPlaneSpec, *, now: datetime.datetime = NOW) -> PlaneFiles:
    return write_plane_files(directory, plane=plane, credentials=ALPHA, authorities=AUTHORITIES, now=now)


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def component(
    name: ComponentName, *, plane: ControlPlaneSpec, files: PlaneFiles, group: str = "tenant/alpha"
) -> ProcessSpec:
    return component_process(name, group=group, plane=plane, files=files, programs=BIN)
