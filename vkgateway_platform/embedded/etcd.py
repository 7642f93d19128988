"""The etcd with the state of the compute cluster and of every tenant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.errors import EtcdUnavailable
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded import core_limit
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import ETCD_CA, ETCD_PEER, ETCD_PEER_CA, ETCD_ROOT, ETCD_SERVER

if TYPE_CHECKING:  # gRPC takes long to load, and `vkgateway status` does not call etcd
    from vkgateway.planes.etcd.client import EtcdClient

NAME = "etcd"
HOST = "127.0.0.1"
_STOP_RANK = 10
_QUOTA_BYTES = 8 << 30


def client_url(port: int) -> str:
    """Return the URL at which etcd serves clients."""
    return f"https://{HOST}:{port}"


def process_spec(paths: PlatformPaths, *, program: Path, port: int, peer_port: int, durable: bool) -> ProcessSpec:
    """Return the spec of the process. Without `durable`, etcd does not wait for the disk; for benchmarks only."""
    pki = paths.pki_dir
    flags = {
        "name": "platform",
        "data-dir": paths.etcd_dir,
        "listen-client-urls": client_url(port),
        "advertise-client-urls": client_url(port),
        "listen-peer-urls": client_url(peer_port),
        "initial-advertise-peer-urls": client_url(peer_port),
        "initial-cluster": f"platform={client_url(peer_port)}",
        "cert-file": pki / f"{ETCD_SERVER}.crt",
        "key-file": pki / f"{ETCD_SERVER}.key",
        "trusted-ca-file": pki / f"{ETCD_CA}.crt",
        "client-cert-auth": "true",
        "peer-cert-file": pki / f"{ETCD_PEER}.crt",
        "peer-key-file": pki / f"{ETCD_PEER}.key",
        "peer-trusted-ca-file": pki / f"{ETCD_PEER_CA}.crt",
        "peer-client-cert-auth": "true",
        # Tenants' API servers may not compact, since the key for that is outside of their range, so etcd does. It keeps
        # two to four minutes of history. A client that resumes a watch without a watch cache after five minutes must
        # list again. Otherwise etcd would scan all tenants' writes since then.
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
    return ProcessSpec(
        name=NAME, argv=argv, env=core_limit.limit_cores(), stop_rank=_STOP_RANK, stop_timeout=20.0, batch=True
    )


def root_client(paths: PlatformPaths, *, port: int) -> EtcdClient:
    """Return a client with etcd's root user; the caller closes it."""
    from vkgateway.planes.etcd.client import EtcdClient

    return EtcdClient(
        (client_url(port),),
        tls=ClientTls(
            ca=(paths.pki_dir / f"{ETCD_CA}.crt").read_bytes(),
            cert=(paths.pki_dir / f"{ETCD_ROOT}.crt").read_bytes(),
            key=(paths.pki_dir / f"{ETCD_ROOT}.key").read_bytes(),
        ),
    )


async def is_serving(client: EtcdClient) -> bool:
    """Return whether etcd answers."""
    try:
        await client.auth.is_enabled()
    except EtcdUnavailable:
        return False
    return True
