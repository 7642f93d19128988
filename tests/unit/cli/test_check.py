"""`vkgateway check` against fake API servers of the management cluster and of the tenant."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from tests.support.waiting import wait_until
from tests.unit.cli.test_tenant import Cli, all_true, cli
from vkgateway.api.names import SYSTEM_NAMESPACE, tenant_secret_name
from vkgateway.cli.check import TENANT
from vkgateway.kube.resources import COMPUTE_CLUSTERS, PODS, SECRETS, TENANTS

__all__ = ["cli"]


class Installation:
    """A gateway that makes tenants ready, and a tenant whose pods get a given status."""

    def __init__(self, cli: Cli, tenant: FakeApiServer) -> None:
        self._cli = cli
        self._tenant = tenant
        self.pods: list[dict[str, Any]] = []

    async def serve(self, status: dict[str, Any]) -> None:
        """Act as the gateway for one tenant and one pod."""
        await self._cli.when_made(TENANT, all_true(self._cli, TENANT))
        await wait_until(lambda: self._tenant.store.find(PODS, "check", namespace="default") is not None, seconds=10)
        pod = self._tenant.store.get(PODS, "check", namespace="default")
        self.pods.append(pod)
        self._tenant.store.update(PODS, pod | {"status": status}, name="check", namespace="default", status=True)


def installed_tenant(management: FakeApiServer, tenant: FakeApiServer) -> None:
    """Store the kubeconfig that the gateway makes for the tenant."""
    document = {
        "clusters": [{"name": "c", "cluster": {"server": tenant.url}}],
        "users": [],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": tenant_secret_name(TENANT), "namespace": SYSTEM_NAMESPACE},
        "data": {"kubeconfig": base64.b64encode(yaml.safe_dump(document).encode()).decode()},
    }
    management.store.create(SECRETS, secret)


@pytest.fixture
async def installation(cli: Cli) -> AsyncIterator[Installation]:
    async with FakeApiServer() as tenant:
        installed_tenant(cli.server, tenant)
        yield Installation(cli, tenant)


RUNNING = {"phase": "Running"}


async def test_a_tenant_and_a_pod_are_created_and_deleted(cli: Cli, installation: Installation) -> None:
    code, _ = await asyncio.gather(cli("check", "--image", "pause:1"), installation.serve(RUNNING))
    assert code == 0, cli.err
    assert cli.out == "The check passed.\n"
    (pod,) = installation.pods
    assert pod["spec"]["containers"][0]["image"] == "pause:1"
    for line in ("pool a100.local is available", "pod runs on", "log read", f"tenant {TENANT} is deleted"):
        assert line in cli.err
    assert cli.server.store.find(TENANTS, TENANT) is None


async def test_a_pod_that_does_not_run_is_reported_and_the_tenant_deleted(cli: Cli, installation: Installation) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "main", **waiting}]}
    code, _ = await asyncio.gather(cli("check", "--timeout", str(patience(1))), installation.serve(status))
    assert code == 5
    assert "ImagePullBackOff: no such image" in cli.err
    assert cli.server.store.find(TENANTS, TENANT) is None


async def test_a_tenant_of_an_earlier_check_is_deleted_first(cli: Cli, installation: Installation) -> None:
    old = {"apiVersion": "vkgateway.io/v1alpha1", "kind": "Tenant", "metadata": {"name": TENANT}, "spec": {"pools": []}}
    uid = cli.server.store.create(TENANTS, old)["metadata"]["uid"]

    async def serve() -> None:
        await wait_until(
            lambda: (found := cli.server.store.find(TENANTS, TENANT)) is not None and found["metadata"]["uid"] != uid,
            seconds=10,
        )
        await installation.serve(RUNNING)

    code, _ = await asyncio.gather(cli("check"), serve())
    assert code == 0, cli.err


async def test_without_a_pool_the_error_names_the_way_out(cli: Cli) -> None:
    cli.server.store.delete(COMPUTE_CLUSTERS, "local")
    assert await cli("check") == 2
    assert "no ComputeCluster has a pool" in cli.err
    assert cli.server.store.find(TENANTS, TENANT) is None


async def test_the_service_account_is_used_in_a_pod(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkgateway.cli.cluster.has_service_account", lambda: True)
    (tmp_path / "compute.kubeconfig").unlink()
    assert await cli("check") == 2
    assert "does not run in a Kubernetes pod" in cli.err
