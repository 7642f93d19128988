"""Objects of control planes that other clients change or delete: found by watches, applied again, without a loop."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import let_pass, wait_until
from tests.unit.controlplane.drivers.test_kubernetes_driver import (
    NAMESPACE,
    Listener,
    ManagementWorld,
    running,
    start_world,
)
from tests.unit.controlplane.test_provisioner import tenant
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.resources import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    NAMESPACES,
    NETWORK_POLICIES,
    SECRETS,
    SERVICES,
    Resource,
)
from vkgateway.planes.drivers.base import Driver
from vkgateway.planes.drivers.kubernetes.driver import RepairThrottle
from vkgateway.planes.provisioner import Provisioner


class SameDriver:
    """A provisioner that keeps its driver, as a running gateway does."""

    def __init__(self, world: ManagementWorld) -> None:
        self.world = world
        self.driver: Driver = world.create_driver()
        world.create_driver = lambda: self.driver  # type: ignore[method-assign]

    @property
    def provisioner(self) -> Provisioner:
        return self.world.provisioner()

    def writes(self) -> list[str]:
        """Return the writes to the management cluster so far, without those of records."""
        return [one for one in self.world.requests if not one.startswith("GET") and "/vkgateway-system/" not in one]


@pytest.fixture
async def same(tmp_path: Path) -> AsyncIterator[SameDriver]:
    async with start_world(tmp_path) as world:
        yield SameDriver(world)


async def settle(listener: Listener) -> None:
    """Wait until no report arrives for a moment, then forget them."""
    before = -1
    while before != (reports := len(listener.changed) + len(listener.moved)):
        before = reports
        await let_pass(0.05)
    listener.changed.clear()
    listener.moved.clear()


async def test_second_provision_sends_no_write(same: SameDriver) -> None:
    async with running(same.driver):
        await same.provisioner.provision(tenant())
        await let_pass(0.05)
        before = same.writes()
        await same.provisioner.provision(tenant())
        assert same.writes() == before


async def test_own_writes_are_no_changes(same: SameDriver) -> None:
    async with running(same.driver) as listener:
        await same.provisioner.provision(tenant())
        await same.provisioner.provision(tenant(port=7443))
        await let_pass(0.05)
        assert listener.changed == []


@pytest.mark.parametrize(
    ("resource", "name"),
    [(DEPLOYMENTS, "control-plane"), (SERVICES, "api"), (SECRETS, "files"), (NETWORK_POLICIES, "default-deny")],
    ids=lambda one: one.kind if isinstance(one, Resource) else one,
)
async def test_deleted_object_is_applied_again(same: SameDriver, resource: Resource, name: str) -> None:
    async with running(same.driver) as listener:
        await same.provisioner.provision(tenant())
        before = same.world.cluster.get(resource, name, NAMESPACE)
        await settle(listener)
        same.world.cluster.delete(resource, name, NAMESPACE)
        await wait_until(lambda: listener.changed == ["alpha"])
        await same.provisioner.provision(tenant())
        after = same.world.cluster.get(resource, name, NAMESPACE)
        assert after.get("spec") == before.get("spec")
        assert after["metadata"]["uid"] != before["metadata"]["uid"]


def _changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *parents, last = path.split(".")
    document = copy.deepcopy(document)
    part = document
    for parent in parents:
        part = part[parent]
    part[last] = value
    return document


@pytest.mark.parametrize(
    ("resource", "name", "path", "value"),
    [
        (DEPLOYMENTS, "control-plane", "spec.replicas", 0),
        (SERVICES, "api", "spec.ports", [{"port": 1, "protocol": "TCP"}]),
        (SECRETS, "files", "metadata.labels", {"vkgateway.io/control-plane": "alpha"}),
        (NETWORK_POLICIES, "control-plane", "spec.ingress", [{}]),
    ],
    ids=lambda one: one.kind if isinstance(one, Resource) else None,
)
async def test_changed_object_is_reverted_by_one_write(
    same: SameDriver, resource: Resource, name: str, path: str, value: Any
) -> None:
    cluster = same.world.cluster
    async with running(same.driver) as listener:
        await same.provisioner.provision(tenant())
        before = cluster.get(resource, name, NAMESPACE)
        await settle(listener)
        changed = _changed(cluster.get(resource, name, NAMESPACE), path, value)
        cluster.update(resource, changed, name=name, namespace=NAMESPACE)
        await wait_until(lambda: listener.changed == ["alpha"])
        sent = len(same.writes())
        await same.provisioner.provision(tenant())
        after = cluster.get(resource, name, NAMESPACE)
        assert [after.get(key) for key in ("spec", "data")] == [before.get(key) for key in ("spec", "data")]
        assert after["metadata"]["labels"] == before["metadata"]["labels"]
        assert len(same.writes()) == sent + 1
        await settle(listener)
        await same.provisioner.provision(tenant())
        assert len(same.writes()) == sent + 1
        assert listener.changed == []


async def test_fields_of_other_clients_are_no_changes(same: SameDriver) -> None:
    cluster = same.world.cluster
    async with running(same.driver) as listener:
        await same.provisioner.provision(tenant())
        await settle(listener)
        found = cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE)
        labels = found["metadata"]["labels"] | {"team": "any"}
        labelled = {**found, "metadata": {**found["metadata"], "labels": labels}}
        found = cluster.update(DEPLOYMENTS, labelled, name="control-plane", namespace=NAMESPACE)
        status = found | {"status": {"availableReplicas": 1}}
        cluster.update(DEPLOYMENTS, status, name="control-plane", namespace=NAMESPACE, status=True)
        await let_pass(0.05)
        assert listener.changed == []


async def test_deleted_namespace_returns_with_its_address(same: SameDriver) -> None:
    cluster = same.world.cluster
    async with running(same.driver) as listener:
        made = await same.provisioner.provision(tenant())
        await same.provisioner.provision(tenant())
        await settle(listener)
        cluster.delete(NAMESPACES, NAMESPACE)
        await wait_until(lambda: listener.changed)
        again = await same.provisioner.provision(tenant())
        assert (again.url, again.ca) == (made.url, made.ca)
        assert cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE)
        await settle(listener)
        sent = len(same.writes())
        await same.provisioner.provision(tenant())
        assert len(same.writes()) == sent


async def test_namespace_without_its_label_is_still_the_tenants(same: SameDriver) -> None:
    cluster = same.world.cluster
    async with running(same.driver) as listener:
        await same.provisioner.provision(tenant())
        await settle(listener)
        cluster.update(NAMESPACES, {"metadata": {"labels": {}}}, name=NAMESPACE)
        await wait_until(lambda: listener.changed == ["alpha"])
        await same.provisioner.provision(tenant())
        assert cluster.get(NAMESPACES, NAMESPACE)["metadata"]["labels"]["vkgateway.io/control-plane"] == "alpha"
        cluster.update(NAMESPACES, {"metadata": {"labels": {}}}, name=NAMESPACE)
        await same.provisioner.deprovision("alpha")
        assert cluster.find(NAMESPACES, NAMESPACE) is None


async def test_taken_address_is_replaced(same: SameDriver) -> None:
    cluster = same.world.cluster
    made = await same.provisioner.provision(tenant())
    cluster.delete(NAMESPACES, NAMESPACE)
    other = {"metadata": {"name": "other"}, "spec": {"clusterIP": made.address, "ports": [{"port": 1}]}}
    cluster.create(SERVICES, other, "default")
    again = await same.provisioner.provision(tenant())
    assert again.address != made.address
    assert (await same.provisioner.provision(tenant())).address == again.address


async def test_removal_is_no_change(same: SameDriver) -> None:
    async with running(same.driver) as listener:
        await same.provisioner.provision(tenant())
        await settle(listener)
        await same.provisioner.deprovision("alpha")
        await let_pass(0.05)
        assert listener.changed == []


async def test_changes_after_a_restart_are_found(same: SameDriver) -> None:
    await same.provisioner.provision(tenant())
    async with running(same.driver) as listener:
        await let_pass(0.05)
        assert listener.changed == []
        same.world.cluster.delete(SERVICES, "api", NAMESPACE)
        await wait_until(lambda: listener.changed == ["alpha"])


async def test_object_that_was_deleted_meanwhile_is_missed(same: SameDriver) -> None:
    await same.provisioner.provision(tenant())
    same.world.cluster.delete(DEPLOYMENTS, "control-plane", NAMESPACE)
    async with running(same.driver) as listener:
        await wait_until(lambda: listener.changed == ["alpha"])
        await same.provisioner.provision(tenant())
        assert same.world.cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE)


async def test_changed_name_server_is_reconciled_with_the_names(same: SameDriver) -> None:
    servers = same.driver.name_servers
    assert servers is not None
    local = same.world.local
    async with running(same.driver) as listener:
        await same.provisioner.provision(tenant())
        with pytest.raises(UnavailableError):
            await servers.ensure_server("alpha", local, {})
        same.world.publish_pods("names-local", "10.2.0.9", port=1053)
        await wait_until(lambda: listener.moved)
        await settle(listener)
        same.world.cluster.delete(DEPLOYMENTS, "names-local", NAMESPACE)
        await wait_until(lambda: listener.moved == ["alpha"])
        await servers.ensure_server("alpha", local, {})
        assert same.world.cluster.get(DEPLOYMENTS, "names-local", NAMESPACE)
        await settle(listener)
        await servers.remove_stale(set())
        await let_pass(0.05)
        assert (listener.moved, listener.changed) == ([], [])
        assert same.world.cluster.all(ENDPOINT_SLICES)


async def test_repairs_in_a_row_are_delayed() -> None:
    loop = asyncio.get_running_loop()
    done: list[float] = []
    throttle = RepairThrottle(Backoff(base=0.1, cap=1.0, random=lambda: 1.0))
    for _ in range(3):
        throttle.request("alpha", lambda: done.append(loop.time()))
    assert len(done) == 1, "the first repair is not delayed, and the second request covers the third"
    throttle.request("beta", lambda: done.append(loop.time()))
    assert len(done) == 2
    await wait_until(lambda: len(done) == 3)
    assert done[2] - done[0] > 0.09
    throttle.request("alpha", lambda: done.append(loop.time()))
    throttle.close()
    await let_pass(0.3)
    assert len(done) == 3
