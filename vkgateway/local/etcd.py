"""The one etcd that holds the compute cluster's and every tenant's state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vkgateway.controlplane.etcd.endpoints import Tls
from vkgateway.controlplane.etcd.errors import EtcdUnavailable
from vkgateway.local import cores
from vkgateway.local.paths import Paths
from vkgateway.local.pki import ETCD_CA, ETCD_PEER, ETCD_PEER_CA, ETCD_ROOT, ETCD_SERVER
from vkgateway.programs.supervisor.spec import ProcessSpec

if TYPE_CHECKING:  # gRPC takes long to load, and `vkgateway status` asks etcd nothing
    from vkgateway.controlplane.etcd.client import EtcdClient

NAME = "etcd"
HOST = "127.0.0.1"
_STOP_RANK = 10
_QUOTA_BYTES = 8 << 30


def endpoint(port: int) -> str:
    """Return the URL at which etcd serves its clients."""
    return f"https://{HOST}:{port}"


def spec(paths: Paths, *, program: Path, port: int, peer_port: int, durable: bool) -> ProcessSpec:
    """Describe the process. Without `durable` it does not wait for the disk: for benchmarks only."""
    pki = paths.pki
    flags = {
        "name": "platform",
        "data-dir": paths.etcd,
        "listen-client-urls": endpoint(port),
        "advertise-client-urls": endpoint(port),
        "listen-peer-urls": endpoint(peer_port),
        "initial-advertise-peer-urls": endpoint(peer_port),
        "initial-cluster": f"platform={endpoint(peer_port)}",
        "cert-file": pki / f"{ETCD_SERVER}.crt",
        "key-file": pki / f"{ETCD_SERVER}.key",
        "trusted-ca-file": pki / f"{ETCD_CA}.crt",
        "client-cert-auth": "true",
        "peer-cert-file": pki / f"{ETCD_PEER}.crt",
        "peer-key-file": pki / f"{ETCD_PEER}.key",
        "peer-trusted-ca-file": pki / f"{ETCD_PEER_CA}.crt",
        "peer-client-cert-auth": "true",
        # Tenants' API servers may not compact (the key for that lies outside their range), so etcd does. Two to four
        # minutes are kept: whoever takes up a watch without a cache after five or more is told to list anew, instead
        # of having etcd go through everything that all tenants have written since.
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "2m",
        "quota-backend-bytes": _QUOTA_BYTES,
        "enable-grpc-gateway": "false",
        "log-level": "warn",
    }
    arguments = [f"--{flag}={value}" for flag, value in flags.items()]
    if not durable:
        arguments.append("--unsafe-no-fsync")
    argv = str(program), *arguments
    return ProcessSpec(name=NAME, argv=argv, env=cores.limited(), stop_rank=_STOP_RANK, stop_timeout=20.0, batch=True)


def root_client(paths: Paths, *, port: int) -> EtcdClient:
    """Return a client that is etcd's root user; close it after use."""
    from vkgateway.controlplane.etcd.client import EtcdClient

    return EtcdClient(
        (endpoint(port),),
        tls=Tls(
            ca=(paths.pki / f"{ETCD_CA}.crt").read_bytes(),
            cert=(paths.pki / f"{ETCD_ROOT}.crt").read_bytes(),
            key=(paths.pki / f"{ETCD_ROOT}.key").read_bytes(),
        ),
    )


async def serves(client: EtcdClient) -> bool:
    """Whether etcd answers."""
    try:
        await client.auth_enabled()
    except EtcdUnavailable:
        return False
    return True
