"""The gateway of an embedded platform: its settings file and its process."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from vkgateway.planes.atomic_files import SECRET_MODE, write_file
from vkgateway.planes.supervisor.spec import ProcessSpec, SupervisorPaths
from vkgateway.settings import config
from vkgateway.settings import file as settingsfile
from vkgateway_platform.embedded import etcd
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import ETCD_CA, ETCD_ROOT
from vkgateway_platform.embedded.realnode.options import NodeNetwork
from vkgateway_platform.embedded.record import PlatformRecord

NAME = "gateway"
_LOOPBACK = "127.0.0.1"
# Long enough to be visible, short enough to watch.
_NOTICE_SECONDS = 5.0
_TENANT_PREFIX = 24
# The gateway stops before its clusters, so that it does not see them fail.
_STOP_RANK = 95


def gateway_settings(paths: PlatformPaths, *, record: PlatformRecord, cache_dir: Path | None = None) -> config.Config:
    """Return the gateway's settings for this platform."""
    return config.Config(
        data_dir=str(paths.data_dir),
        address=record.address,
        management_cluster=config.ManagementCluster(kubeconfig=str(paths.gateway.kubeconfig)),
        # A restarted gateway acquires its Lease at once, and a busy machine renews it late.
        leader_election=config.LeaderElection(lease_seconds=15, renew_seconds=5.0, retry_seconds=1.0),
        kubelet=config.Kubelet(port=record.ports["gateway-kubelet"]),
        datastore=config.Datastore(
            endpoints=(etcd.client_url(record.ports["etcd"]),),
            ca=str(paths.pki_dir / f"{ETCD_CA}.crt"),
            ca_key=str(paths.pki_dir / f"{ETCD_CA}.key"),
            cert=str(paths.pki_dir / f"{ETCD_ROOT}.crt"),
            key=str(paths.pki_dir / f"{ETCD_ROOT}.key"),
        ),
        control_planes=config.ControlPlanes(
            templates_dir=record.templates_dir,
            program_dirs=record.program_dirs,
            cache_dir=str(cache_dir or ""),
            supervisor_socket=str(SupervisorPaths(paths.data_dir).socket_path),
            webhook_ranges=record.webhook_ranges,
        ),
        names=_name_settings(record),
        services=config.Services(range=NodeNetwork(record.number).tenant_services, tenant_prefix=_TENANT_PREFIX),
        arbiter=config.Arbiter(
            notice_seconds=_NOTICE_SECONDS,
            decision_log=str(paths.gateway.arbiter_dir / "decisions.jsonl"),
            usage_log=str(paths.gateway.arbiter_dir / "usage.jsonl"),
        ),
        observability=config.Observability(
            address=_LOOPBACK, port=record.ports["gateway-health"], secure_port=record.ports["gateway-metrics"]
        ),
        page=config.Page(port=record.ports["gateway-page"]),
    )


def _name_settings(record: PlatformRecord) -> config.Names:
    """Return the DNS settings: names are served on a real node only, and only to its pods and to the node."""
    if record.real_node_why_not:
        return config.Names()
    network = NodeNetwork(record.number)
    return config.Names(forwarder=network.dns_forwarder, sources=(network.pod_subnet, f"{network.node_address}/32"))


def write_settings(paths: PlatformPaths, wanted: config.Config) -> bytes:
    """Write the settings file, which also serves a gateway started by hand; return its content."""
    text = settingsfile.render_settings(wanted).encode()
    write_file(paths.gateway.config_file, text, mode=SECRET_MODE)
    return text


def process_spec(paths: PlatformPaths, wanted: config.Config) -> ProcessSpec:
    """Write the settings and return the spec of the process. It runs this Python, so the CLI and the daemon have the
    same version.
    """
    text = write_settings(paths, wanted)
    return ProcessSpec(
        name=NAME,
        argv=(sys.executable, "-m", "vkgateway", "serve", "--config", str(paths.gateway.config_file)),
        # Changed settings change the spec, so that the supervisor restarts the process.
        env={"SETTINGS_DIGEST": hashlib.sha256(text).hexdigest()[:16]},
        stop_rank=_STOP_RANK,
        stop_timeout=20.0,
        batch=True,
    )


async def is_ready(record: PlatformRecord) -> bool:
    """Return whether the gateway is ready."""
    import aiohttp

    url = f"http://{_LOOPBACK}:{record.ports['gateway-health']}/readyz"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3)) as session, session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
