"""Real etcd, management cluster and supervisor for tests of tenants' control planes."""

from __future__ import annotations

import asyncio
import datetime
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support.machine import patience
from tests.support.ports import free_port
from vkgateway.kube.client import Client
from vkgateway.kube.errors import ApiError
from vkgateway.planes import serving
from vkgateway.planes.components import PROGRAMS
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.driver_set import DriverSet
from vkgateway.planes.drivers.process.driver import ProcessDriver, component_process
from vkgateway.planes.drivers.process.plane_directory import write_plane_files
from vkgateway.planes.etcd.client import EtcdClient
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.errors import EtcdUnavailable
from vkgateway.planes.etcd.tenancy import Tenancy
from vkgateway.planes.pki import Authority
from vkgateway.planes.plane import ControlPlaneSpec, compute_plane_spec
from vkgateway.planes.plane_files import Authorities
from vkgateway.planes.plane_records import PlatformEndpoints
from vkgateway.planes.provisioner import Provisioner
from vkgateway.planes.record_store import SecretStore
from vkgateway.planes.supervisor.client import SupervisorClient, start_supervisor
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway.planes.templates import Templates
from vkgateway.planes.webhook_ranges import parse_webhook_range
from vkgateway_platform.binaries.resolver import Resolver

_START_SECONDS = 60
"""Timeout for the start of one program."""


@dataclass(kw_only=True)
class World:
    """Infrastructure of tenants' control planes."""

    data_dir: Path
    address: str
    endpoint: str
    authorities: Authorities
    programs: Mapping[str, Path]
    supervisor: SupervisorClient
    etcd: EtcdClient
    management: Client
    drivers: list[ProcessDriver] = field(default_factory=list)

    def provisioner(self, *, webhook_ranges: Sequence[str] = (), gateway_port: int = 0) -> Provisioner:
        """Return a new provisioner without state, as after a restart of the gateway."""
        driver = ProcessDriver(
            data_dir=self.data_dir,
            address=self.address,
            supervisor=self.supervisor,
            programs=lambda version: Resolver(report=print, kubernetes_version=version),
            authorities=self.authorities,
            gateway=ServerEndpoint(self.address, gateway_port),
            webhook_ranges=[parse_webhook_range(text) for text in webhook_ranges],
        )
        self.drivers.append(driver)
        return Provisioner(
            store=self.store(),
            datastore=Tenancy(self.etcd),
            drivers=DriverSet({"process": driver}, default="process"),
            templates=Templates(),
            endpoints=PlatformEndpoints(etcd=(self.endpoint,)),
        )

    def store(self) -> SecretStore:
        """Return the Secret store of the management cluster."""
        return SecretStore(self.management)

    def kubeconfig(self, tenant: str) -> Path:
        """Return the kubeconfig of a tenant's admin."""
        return self.data_dir / "tenants" / tenant / "admin.kubeconfig"

    def management_ca(self) -> bytes:
        """Return the CA of the management cluster."""
        return (self.data_dir / "compute" / "ca.crt").read_bytes()

    def etcd_as(self, user: str, *, authority: Authority | None = None) -> EtcdClient:
        """Return an etcd client that authenticates as `user`."""
        return EtcdClient([self.endpoint], tls=_client_tls(self.authorities.etcd, user, signer=authority))

    async def kubectl(self, kubeconfig: Path, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """Run kubectl, and return its exit code and output."""
        process = await asyncio.create_subprocess_exec(
            str(self.programs["kubectl"]),
            "--kubeconfig",
            str(kubeconfig),
            *arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), patience(60))
        return process.returncode or 0, output.decode()


def own_address() -> str:
    """Return an address of this machine other than loopback, which API servers refuse to call."""
    found = [
        address.address
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for address in addresses
        if address.family is socket.AF_INET and name != "lo" and not name.startswith("vkg")
    ]
    return found[0]


@asynccontextmanager
async def run_world(data_dir: Path, *, quota: int = 0) -> AsyncIterator[World]:
    """Start all components, yield them, and stop them. `quota` is etcd's in bytes, 0 for its default."""
    address = own_address()
    resolver = Resolver(report=print)
    programs = await resolver.resolve(*PROGRAMS.values(), "etcd", "kubectl")
    supervisor = await start_supervisor(data_dir)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(serving, "_SERVING_SECONDS", patience(_START_SECONDS))
    try:
        etcd_authority, kubelet_authority = Authority.create("etcd"), Authority.create("kubelet")
        endpoint = await _start_etcd(supervisor, programs["etcd"], data_dir, etcd_authority, quota)
        async with EtcdClient([endpoint], tls=_client_tls(etcd_authority, "root")) as etcd:
            await _wait_for_etcd(etcd)
            tenancy = Tenancy(etcd)
            await tenancy.ensure_root()
            await tenancy.ensure_compute()
            authorities = Authorities(etcd=etcd_authority, kubelet=kubelet_authority)
            management = await _start_management(supervisor, programs, data_dir, address, endpoint, etcd_authority)
            async with management:
                world = World(
                    data_dir=data_dir,
                    address=address,
                    endpoint=endpoint,
                    authorities=authorities,
                    programs=programs,
                    supervisor=supervisor,
                    etcd=etcd,
                    management=management,
                )
                yield world
                for driver in world.drivers:
                    await driver.close()
    finally:
        monkeypatch.undo()
        await supervisor.shutdown()


async def _start_etcd(
    supervisor: SupervisorClient, program: Path, folder: Path, authority: Authority, quota: int
) -> str:
    client, peer = (f"https://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}")
    cert, key = authority.issue("etcd", server=True, ips=("127.0.0.1",)).write(folder / "etcd-pki", "server")
    ca, _ = authority.write(folder / "etcd-pki")
    flags = {
        "data-dir": folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "cert-file": cert,
        "key-file": key,
        "trusted-ca-file": ca,
        "client-cert-auth": "true",
        "quota-backend-bytes": quota,
        "log-level": "warn",
    }
    argv = (str(program), *(f"--{name}={value}" for name, value in flags.items()))
    await supervisor.ensure_process(ProcessSpec(name="etcd", argv=argv, stop_rank=10))
    return client


async def _wait_for_etcd(etcd: EtcdClient) -> None:
    async with asyncio.timeout(patience(_START_SECONDS)):
        while True:
            try:
                await etcd.maintenance.member_status()
                return
            except EtcdUnavailable:
                await asyncio.sleep(0.05)


async def _start_management(
    supervisor: SupervisorClient,
    programs: Mapping[str, Path],
    folder: Path,
    address: str,
    endpoint: str,
    etcd_authority: Authority,
) -> Client:
    """Start an API server. The management cluster stores only Secrets."""
    plane: ControlPlaneSpec = compute_plane_spec(address=address, port=free_port(address), etcd_endpoints=(endpoint,))
    credentials = Credentials.create("compute")
    files = write_plane_files(
        folder / "compute",
        plane=plane,
        credentials=credentials,
        authorities=Authorities(etcd=etcd_authority, kubelet=credentials.ca),
        now=datetime.datetime.now(datetime.UTC),
    )
    await supervisor.ensure_process(
        component_process("apiserver", group="compute", plane=plane, files=files, programs=programs)
    )
    client = Client.from_kubeconfig(files.kubeconfig_path("admin"))
    async with asyncio.timeout(patience(_START_SECONDS)):
        while True:
            try:
                await client.request("GET", "/readyz")
                return client
            except ApiError:
                await asyncio.sleep(0.05)


def _client_tls(authority: Authority, user: str, *, signer: Authority | None = None) -> ClientTls:
    pair = (signer or authority).issue(user, client=True)
    return ClientTls(ca=authority.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
