"""Owner records: a tenant of a compute cluster belongs to one gateway, and others don't touch its objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.owners import delete_record, record_owner, recorded_owner
from tests.support.waiting import wait_until
from tests.unit.background import in_background
from tests.unit.sync.scopes import tenant_scope
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.api.errors import ConflictError
from vkgateway.api.names import (
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    SYSTEM_NAMESPACE,
    TENANT_LABEL,
    UID_ANNOTATION,
)
from vkgateway.clusters.cluster_watches import TRUST
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kinds.sources import COMPUTE_REACHABLE, Watches
from vkgateway.kube import errors
from vkgateway.kube.resources import NAMESPACES, PODS


@pytest.fixture
async def compute() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(rights=Rights.of_compute()) as server:
        server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        yield server


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.gateway = GatewayIdentity("this")
        yield world


@asynccontextmanager
async def connected(server: FakeApiServer, gateway: GatewayIdentity) -> AsyncIterator[ComputeLink]:
    """Connect a gateway to a compute cluster, and list the cluster."""
    async with server.client("compute") as client:
        link = ComputeLink("local", client, gateway)
        async with in_background(link.run()):
            await wait_until(lambda: link.is_trusted)
            yield link


def add_namespace(server: FakeApiServer, tenant: str) -> None:
    """Create a compute namespace of a tenant, as any gateway does."""
    metadata = {
        "name": f"{tenant}--default",
        "labels": {TENANT_LABEL: tenant},
        "annotations": {NAME_ANNOTATION: "default", UID_ANNOTATION: "namespace-of-another"},
    }
    server.store.create(NAMESPACES, {"metadata": metadata})


def add_foreign_pod(world: World) -> None:
    """Create a pod of another gateway's tenant of the same name."""
    add_namespace(world.compute_server, "alpha")
    marks = {NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "theirs", UID_ANNOTATION: "another"}
    metadata = {"name": "theirs", "labels": {TENANT_LABEL: "alpha"}, "annotations": marks}
    world.compute_server.store.create(PODS, {"metadata": metadata, "spec": {"containers": []}}, COMPUTE_NAMESPACE)


def compute_writes(world: World) -> list[str]:
    return [request for request in world.compute_server.requests if not request.startswith("GET")]


async def test_one_of_two_gateways_gets_the_name(compute: FakeApiServer) -> None:
    async with (
        connected(compute, GatewayIdentity("one")) as first,
        connected(compute, GatewayIdentity("two")) as second,
    ):
        results = await asyncio.gather(first.take_tenant("alpha"), second.take_tenant("alpha"), return_exceptions=True)
        (refusal,) = [result for result in results if result is not None]
        assert isinstance(refusal, ConflictError)
        assert "ConfigMap tenant-alpha in namespace vkgateway-system" in refusal.advice
        owner, other = (first, second) if recorded_owner(compute, "alpha") == "one" else (second, first)
        assert (owner.is_usable_by("alpha"), other.is_usable_by("alpha")) == (True, False)
        assert other.owners.is_foreign("alpha")
        other.reachability.set_watching(False, "away")
        assert not other.is_usable_by("alpha")
        other.reachability.set_watching(True, "")

        await owner.take_tenant("alpha")
        await other.owners.release("alpha")
        assert recorded_owner(compute, "alpha") is not None
        await owner.owners.release("alpha")
        await other.take_tenant("alpha")
        assert other.is_usable_by("alpha")


async def test_tenant_is_told_when_it_may_use_the_cluster(compute: FakeApiServer) -> None:
    calls: list[str] = []
    async with connected(compute, GatewayIdentity("this")) as link:
        link.watches.tenants["alpha"] = watches = Watches()
        watches.add(COMPUTE_REACHABLE, lambda: calls.append("alpha"))
        await link.take_tenant("alpha")
        await link.take_tenant("alpha")
    assert calls == ["alpha"]


async def test_objects_without_record_belong_to_the_gateway_that_finds_them_first(compute: FakeApiServer) -> None:
    add_namespace(compute, "old")
    async with connected(compute, GatewayIdentity("this")) as link:
        assert link.is_usable_by("old")
        add_namespace(compute, "new")
        await wait_until(lambda: link.namespaces.find_namespace("new", "default"))
        assert not link.is_usable_by("new")
        record_owner(compute, "old", "other")
        await wait_until(lambda: not link.is_usable_by("old"))


async def test_deleted_record_is_reported_and_the_tenant_stays_until_another_takes_it(compute: FakeApiServer) -> None:
    lost: list[bool] = []
    async with connected(compute, GatewayIdentity("this")) as link:
        await link.take_tenant("alpha")
        await wait_until(lambda: ("vkgateway-system", "tenant-alpha") in link.copies["configmaps"].store)
        link.watches.add(TRUST, lambda: lost.append(True))
        delete_record(compute, "alpha")
        await wait_until(lambda: lost)
        assert link.is_usable_by("alpha")
        record_owner(compute, "alpha", "other")
        await wait_until(lambda: link.owners.is_foreign("alpha"))
        assert not link.is_usable_by("alpha")


async def test_gateway_without_id_owns_nothing_and_waits(compute: FakeApiServer) -> None:
    record_owner(compute, "alpha", "this")
    gateway = GatewayIdentity()
    async with connected(compute, gateway) as link:
        assert not link.owners.is_own("alpha")
        assert not link.owners.is_foreign("alpha")
        taking = asyncio.create_task(link.take_tenant("alpha"))
        await asyncio.sleep(0.01)
        gateway.set("this")
        await taking
        assert link.owners.is_own("alpha")


async def test_missing_namespace_is_an_error(compute: FakeApiServer) -> None:
    compute.store.namespaces_must_exist = True
    compute.store.delete(NAMESPACES, SYSTEM_NAMESPACE)
    async with connected(compute, GatewayIdentity("this")) as link:
        with pytest.raises(errors.NotFound):
            await link.take_tenant("alpha")


async def test_nothing_is_changed_in_a_cluster_where_another_gateway_owns_the_name(world: World) -> None:
    add_foreign_pod(world)
    record_owner(world.compute_server, "alpha", "other")
    world.create_pod("ours")
    world.create_pod("theirs")
    async with world.run_gateway():
        await wait_until(lambda: world.link is not None and world.link.is_trusted)
        await world.wait_settled()
        world.delete_pod("ours")
        await world.wait_settled()
    assert compute_writes(world) == []
    assert world.compute_pod("theirs") is not None
    assert world.pod_phase("theirs") == "Pending"


async def test_pod_of_older_version_without_tenant_pod_is_deleted(world: World) -> None:
    """Objects without a record belong to the gateway: it deletes orphans, as before."""
    add_foreign_pod(world)
    async with world.run_gateway():
        await wait_until(lambda: world.compute_pod("theirs") is None)


async def test_pods_are_forwarded_once_the_gateway_owns_the_tenant(world: World) -> None:
    world.compute_server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: world.link is not None and world.link.is_trusted)
        await world.wait_settled()
        assert compute_writes(world) == []
        assert world.link is not None
        await world.link.take_tenant("alpha")
        await world.wait_forwarded()


async def test_reconcilers_see_only_clusters_that_the_tenant_may_use(compute: FakeApiServer) -> None:
    record_owner(compute, "alpha", "other")
    async with (
        connected(compute, GatewayIdentity("this")) as theirs,
        connected(compute, GatewayIdentity("other")) as own,
        compute.client("tenant") as client,
    ):
        scope = tenant_scope(client, links={"theirs": theirs, "own": own}, name="alpha")
        assert scope.links == {"own": own}
        delete_record(compute, "alpha")
        record_owner(compute, "alpha", "this")
        await wait_until(lambda: scope.links == {"theirs": theirs})
