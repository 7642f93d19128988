"""Fixtures of the daemon's tests: fake management and compute clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NODES, TENANTS

Document = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """Management cluster, which is also a compute cluster."""
    async with FakeApiServer(rights=Rights.of_both()) as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    """Client of the management cluster."""
    async with server.client("management") as client:
        yield client


def tenant_document(name: str, **spec: Any) -> Document:
    return {"apiVersion": "vkgateway.io/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}


def gpu_node(name: str, gpus: int = 8, *, ready: bool = True) -> Document:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": "a100"}},
        "status": status,
    }


def add_compute_cluster(server: FakeApiServer, name: str = "local", *, nodes: int = 2, **spec: Any) -> None:
    """Create a ComputeCluster for the management cluster itself, with a pool of nodes with 8 GPUs."""
    server.store.create(
        COMPUTE_CLUSTERS,
        {
            "apiVersion": "vkgateway.io/v1alpha1",
            "kind": "ComputeCluster",
            "metadata": {"name": name},
            "spec": {"pools": [{"name": "a100", "nodeSelector": {"pool": "a100"}}], **spec},
        },
    )
    for number in range(nodes):
        server.store.create(NODES, gpu_node(f"{name}-{number}"))


def condition(server: FakeApiServer, kind: str, name: str, *, tenant: bool = True) -> Document:
    """Return a condition of an object on the server; empty if there is none."""
    document = server.store.find(TENANTS if tenant else COMPUTE_CLUSTERS, name) or {}
    conditions = document.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})
