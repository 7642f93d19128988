"""Control planes in pods that are stopped and started again: what ends, and what stays for their kubeconfigs."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

import msgspec
import pytest

from tests.support.waiting import let_pass, wait_until
from tests.unit.controlplane.drivers.test_kubernetes_driver import NAMESPACE, running, start_world
from tests.unit.controlplane.test_provisioner import tenant
from vkgateway.api.errors import UnavailableError
from vkgateway.api.types import ApiServerExposure, Tenant
from vkgateway.kube.resources import DEPLOYMENTS, NAMESPACES, PODS, SERVICES
from vkgateway.planes.drivers.kubernetes import namespaces


def exposed(kind: str) -> Tenant:
    """Return a tenant whose API server is exposed with this type."""
    found = tenant()
    server = msgspec.structs.replace(found.spec.api_server, exposure=ApiServerExposure(type=kind))  # type: ignore[arg-type]
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, api_server=server))


async def test_stopped_control_plane_has_no_pods_and_keeps_its_addresses(tmp_path: Path) -> None:
    async with start_world(tmp_path) as world:
        made = await world.provisioner().provision(exposed("NodePort"))
        services = copy.deepcopy(world.cluster.all(SERVICES))
        assert {found["metadata"]["name"] for found in services} == {"api", "api-published"}
        record = await world.store.load("alpha")

        await world.create_driver().stop("alpha")

        assert world.cluster.all(DEPLOYMENTS) == []
        assert world.cluster.all(SERVICES) == services, "no other Service can get the address or the node port"
        again = await world.provisioner().provision(exposed("NodePort"))
        assert (again.url, again.ca) == (made.url, made.ca)
        assert await world.store.load("alpha") == record, "the kubeconfig stays valid"
        assert world.cluster.find(DEPLOYMENTS, "control-plane", NAMESPACE) is not None


async def test_stop_returns_after_the_last_pod_has_ended(tmp_path: Path) -> None:
    async with start_world(tmp_path) as world:
        await world.provisioner().provision(tenant())
        world.cluster.create(PODS, {"metadata": {"name": "server-0"}, "spec": {}}, NAMESPACE)
        stopping = asyncio.create_task(world.create_driver().stop("alpha"))
        await wait_until(lambda: world.cluster.find(DEPLOYMENTS, "control-plane", NAMESPACE) is None)
        await asyncio.sleep(0)
        assert not stopping.done(), "its pod may still write to etcd"
        world.cluster.delete(PODS, "server-0", NAMESPACE)
        await stopping


async def test_pods_that_do_not_end_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_REMOVAL_SECONDS", 0.0)
    async with start_world(tmp_path) as world:
        await world.provisioner().provision(tenant())
        world.cluster.create(PODS, {"metadata": {"name": "server-0"}, "spec": {}}, NAMESPACE)
        with pytest.raises(UnavailableError, match=f"pods in namespace {NAMESPACE} are still terminating"):
            await world.create_driver().stop("alpha")


async def test_stop_is_no_change_by_another_client(tmp_path: Path) -> None:
    async with start_world(tmp_path) as world:
        await world.provisioner().provision(tenant())
        driver = world.create_driver()
        async with running(driver) as listener:
            await driver.stop("alpha")
            await let_pass(0.1)
            assert listener.changed == []


async def test_stop_touches_no_foreign_namespace(tmp_path: Path) -> None:
    async with start_world(tmp_path) as world:
        await world.create_driver().stop("alpha")
        world.cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {"team": "other"}}})
        deployment = {"metadata": {"name": "web"}, "spec": {}}
        world.cluster.create(DEPLOYMENTS, deployment, NAMESPACE)
        await world.create_driver().stop("alpha")
        assert world.cluster.find(DEPLOYMENTS, "web", NAMESPACE) is not None


async def test_stopped_control_plane_is_removed_completely(tmp_path: Path) -> None:
    async with start_world(tmp_path) as world:
        await world.provisioner().provision(tenant())
        await world.create_driver().stop("alpha")
        await world.provisioner().deprovision("alpha")
        assert world.cluster.find(NAMESPACES, NAMESPACE) is None
        assert world.cluster.find(SERVICES, "api", NAMESPACE) is None
