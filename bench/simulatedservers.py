"""Process with simulated API servers: `python -m bench.simulatedservers DIR COUNT`.

One serves the management cluster, which is the compute cluster, too. `COUNT` others are tenant clusters over TLS, each
with a few pods. The process writes their addresses and credentials to DIR/servers.json and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.platform import POOL
from bench.pods import PodKind, pod_manifest, running_status
from bench.residents import PODS_EACH
from tests.fakes.apiserver import FakeApiServer
from vkgateway.api.times import render_time
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from vkgateway.kube.tls import load_identity
from vkgateway.planes.pki import Authority
from vkgateway.planes.supervisor.file_limit import raise_file_limit
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL, hollow_nodes

FILE: Final = "servers.json"
_NODES: Final = 50
_VERSION: Final = "1.36.3"
_BOOKMARK_SECONDS: Final = 60.0
"""Interval in which API servers send bookmarks."""
_RUN_SECONDS: Final = 0.2
"""Interval in which new compute pods start to run."""


class Servers(msgspec.Struct, kw_only=True):
    """URLs of the servers, and the credentials (PEM) for the tenants' servers."""

    management: str
    tenants: list[str]
    ca: str
    cert: str
    key: str


def main(folder: Path, count: int) -> None:
    """Serve until killed."""
    raise_file_limit()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(folder, count))


async def _serve(folder: Path, count: int) -> None:
    authority = Authority.create("simulated")
    serving = authority.issue("simulated", ips=("127.0.0.1",), server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(context, cert=serving.cert_pem, key=serving.key_pem)
    async with contextlib.AsyncExitStack() as stack:
        management = await stack.enter_async_context(FakeApiServer())
        _add_compute_cluster(management)
        tenants = [
            await stack.enter_async_context(FakeApiServer(streaming_lists=False, tls=context)) for _ in range(count)
        ]
        for server in tenants:
            _add_tenant_objects(server)
        client = authority.issue("gateway", client=True)
        record = Servers(
            management=management.url,
            tenants=[server.url for server in tenants],
            ca=authority.cert_pem.decode(),
            cert=client.cert_pem.decode(),
            key=client.key_pem.decode(),
        )
        temporary = folder / f"{FILE}.new"
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.rename(folder / FILE)
        async with asyncio.TaskGroup() as group:
            group.create_task(_run_pods(management))
            group.create_task(_send_bookmarks([management, *tenants]))


def _add_compute_cluster(server: FakeApiServer) -> None:
    pool = {"name": POOL, "nodeSelector": {POOL_LABEL: POOL}}
    server.store.create(
        COMPUTE_CLUSTERS,
        {
            "apiVersion": COMPUTE_CLUSTERS.api_version,
            "kind": COMPUTE_CLUSTERS.kind,
            "metadata": {"name": "local"},
            "spec": {"pools": [pool]},
        },
    )
    for node in hollow_nodes({POOL: _NODES}, version=_VERSION):
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        server.store.create(NODES, node)


def _add_tenant_objects(server: FakeApiServer) -> None:
    server.store.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    server.store.create(SERVICE_ACCOUNTS, account, "default")
    kind = PodKind(run="resident", node=f"{POOL}.local")
    for number in range(PODS_EACH):
        server.store.create(PODS, pod_manifest(f"p-{number:05d}", kind), "default")


async def _run_pods(server: FakeApiServer) -> None:
    """Set new compute pods to running."""
    running: set[str] = set()
    while True:
        for pod in list(server.store.all(PODS)):
            if (uid := pod["metadata"]["uid"]) not in running:
                running.add(uid)
                _start_pod(server, pod)
        await asyncio.sleep(_RUN_SECONDS)


def _start_pod(server: FakeApiServer, pod: dict[str, Any]) -> None:
    where = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    bound = pod | {"spec": pod["spec"] | {"nodeName": f"{POOL}-0"}}
    bound = server.store.update(PODS, bound, **where)
    status = running_status(render_time(datetime.now(UTC)))
    server.store.update(PODS, bound | {"status": status}, status=True, **where)


async def _send_bookmarks(servers: list[FakeApiServer]) -> None:
    while True:
        for server in servers:
            server.bookmark()
            await asyncio.sleep(_BOOKMARK_SECONDS / len(servers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
