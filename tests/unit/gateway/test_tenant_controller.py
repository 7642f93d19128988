"""Tests of the Tenant controller with fake control planes and runtimes."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import AdjustedClock
from tests.support.owners import record_owner, recorded_owner
from tests.support.waiting import wait_until
from tests.unit.gateway.conftest import add_compute_cluster, condition, tenant_document
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import (
    MIRROR_FINALIZER,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    TENANT_FINALIZER,
    TENANT_LABEL,
)
from vkgateway.api.times import render_time
from vkgateway.api.types import Tenant
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.controller import ComputeController
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kinds.services.platform_service import Endpoint
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import EVENTS, NAMESPACES, PODS, TENANTS
from vkgateway.planes.drivers.base import DriverListener
from vkgateway.planes.publication import Publication
from vkgateway.runtime.events import EventRecorder
from vkgateway.tenants.accepted_specs import ACCEPTED_FOR_ANNOTATION, ACCEPTED_SPEC_ANNOTATION, AcceptedSpecs
from vkgateway.tenants.control_plane_reconciler import (
    FIRST_RENEWAL_SECONDS,
    MAX_FAILED_PROBES,
    PROBE_SECONDS,
    RENEW_RETRY_SECONDS,
    RENEW_SECONDS,
    RESTORE_SECONDS,
)
from vkgateway.tenants.controller import TenantController
from vkgateway.tenants.interfaces import ApiServerAccess, OnStep, VirtualNodesState
from vkgateway.tenants.store import TenantStore


class Planes:
    """Fake control planes that are provisioned at once, blocked or failing; `there` has the existing ones."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.there: set[str] = set()
        self.made: Counter[str] = Counter()
        self.recalled: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.removed: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        self.held: dict[str, asyncio.Event] = {}
        self.waited: Counter[str] = Counter()
        self.broken: dict[str, str] = {}
        self.publication = Publication()
        """What the API servers of all tenants are published as."""

    def template_names(self) -> list[str]:
        return ["default"]

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> ApiServerAccess:
        name = tenant.metadata.name
        await on_step("StartingControlPlane", "it is being started")
        if name in self.held:
            self.waited[name] += 1
            await self.held[name].wait()
        if name in self.broken:
            raise UnavailableError(self.broken[name])
        self.there.add(name)
        self.made[name] += 1
        return ApiServerAccess(
            client=self.server.client(name),
            url=self.server.url,
            host="127.0.0.1",
            port=self.server.port,
            publication=self.publication,
        )

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        name = tenant.metadata.name
        if name not in self.there:
            return None
        self.recalled[name] += 1
        return ApiServerAccess(
            client=self.server.client(name), url=self.server.url, host="127.0.0.1", port=self.server.port
        )

    async def api_server_endpoints(
        self, tenant: str, cluster: ClusterIdentity, *, listening: Endpoint
    ) -> Collection[Endpoint]:
        return [listening]

    async def run(self, listener: DriverListener) -> None:
        """Nothing changes by itself."""

    async def check_publication(self, tenant: Tenant, access: ApiServerAccess) -> Publication:
        return self.publication

    async def restore_kept_objects(self, tenant: Tenant, access: ApiServerAccess) -> None:
        self.kept[tenant.metadata.name] += 1
        if tenant.metadata.name in self.broken:
            raise UnavailableError(self.broken[tenant.metadata.name])

    async def stop(self, name: str) -> None:
        self.there.discard(name)
        self.stopped[name] += 1

    async def remove(self, name: str, *, on_step: OnStep) -> None:
        await on_step("StoppingControlPlane", "it is being stopped")
        if name in self.broken:
            raise UnavailableError(self.broken[name])
        self.there.discard(name)
        self.removed[name] += 1


class Runtimes:
    """Fake runtimes of tenants."""

    def __init__(self) -> None:
        self.serving: dict[str, Tenant] = {}
        self.served: Counter[str] = Counter()
        self.nodes = true_verdict("Ready", "1 virtual node is ready")

    async def ensure_running(self, tenant: Tenant, access: ApiServerAccess) -> VirtualNodesState:
        self.serving[tenant.metadata.name] = tenant
        self.served[tenant.metadata.name] += 1
        return VirtualNodesState(self.nodes)

    async def stop(self, name: str) -> None:
        self.serving.pop(name, None)


class World:
    """Management cluster that is also the compute cluster, and a gateway that can be restarted."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.planes = Planes(server)
        self.runtimes = Runtimes()
        self.guarantees: dict[str, Verdict] = {}
        self.writable: dict[str, Verdict] = {}
        self.begun: Counter[str] = Counter()
        """Number of reconciliations by tenant."""
        self.ended: Counter[str] = Counter()

    @asynccontextmanager
    async def gateway(self, *, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[TenantController]:
        recorder = EventRecorder(self.client, counts_repeats=False)
        clusters = ComputeClusters(self.client, GatewayIdentity("this"))
        store = TenantStore(self.client, AcceptedSpecs(clusters.pool_facts, clusters.guaranteed_pods))
        computes = ComputeController(
            self.client,
            clusters=clusters,
            recorder=recorder,
            connect=lambda name, _: self.server.client(name),
            on_change=lambda: tenants.enqueue_all(),  # noqa: PLW0108 - there is no `tenants` yet
            total_guarantee=store.accepted_specs.total_guarantee,
            tenants_of=store.tenants_of,
        )
        tenants = TenantController(
            self.client,
            tenants=store,
            recorder=recorder,
            computes=computes,
            planes=self.planes,
            runtimes=self.runtimes,
            guarantee=self.guarantees.get,
            datastore=self.writable.get,
            clock=clock,
        )
        self._count_reconciliations(tenants)
        tasks = [asyncio.create_task(computes.run()), asyncio.create_task(tenants.run())]
        try:
            yield tenants
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await tenants.close()

    def _count_reconciliations(self, tenants: TenantController) -> None:
        reconcile = tenants._queue._reconcile

        async def reconcile_and_count(name: str) -> float | None:
            self.begun[name] += 1
            try:
                return await reconcile(name)
            finally:
                self.ended[name] += 1

        tenants._queue._reconcile = reconcile_and_count

    def create(self, name: str, **spec: Any) -> None:
        self.server.store.create(TENANTS, tenant_document(name, **spec))

    def get(self, name: str) -> dict[str, Any]:
        return copy.deepcopy(self.server.store.get(TENANTS, name))

    def remove_by_force(self, name: str) -> None:
        """Remove all finalizers of a Tenant and delete it."""
        document = self.get(name)
        document["metadata"]["finalizers"] = []
        self.server.store.update(TENANTS, document, name=name)
        self.server.store.delete(TENANTS, name)

    def phase(self, name: str) -> str:
        return str((self.server.store.find(TENANTS, name) or {}).get("status", {}).get("phase", ""))

    def gone(self, name: str) -> bool:
        return self.server.store.find(TENANTS, name) is None

    def add_pod(self, tenant: str, name: str, *, namespace: str = "default") -> None:
        """Create a compute pod of the tenant in its compute namespace."""
        below = f"{tenant}--{namespace}"
        labels = {TENANT_LABEL: tenant}
        if self.server.store.find(NAMESPACES, below) is None:
            annotations = {NAME_ANNOTATION: namespace}
            metadata = {"name": below, "labels": labels, "annotations": annotations}
            self.server.store.create(NAMESPACES, {"kind": "Namespace", "metadata": metadata})
        annotations = {NAMESPACE_ANNOTATION: namespace, NAME_ANNOTATION: name}
        metadata = {"name": name, "labels": labels, "annotations": annotations, "finalizers": [MIRROR_FINALIZER]}
        self.server.store.create(PODS, {"kind": "Pod", "metadata": metadata, "spec": {}}, below)


@pytest.fixture
def world(server: FakeApiServer, client: Client) -> World:
    add_compute_cluster(server)
    return World(server, client)


def pool(guarantee: int = 0, limit: int = 16) -> dict[str, Any]:
    return {"name": "a100", "guarantee": {"nvidia.com/gpu": guarantee}, "limit": {"nvidia.com/gpu": limit}}


async def test_tenant_becomes_ready_step_by_step(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")

        found = world.get("alpha")
        assert found["metadata"]["finalizers"] == [TENANT_FINALIZER]
        assert found["status"]["apiServer"]["url"] == world.server.url
        assert {one["type"]: one["status"] for one in found["status"]["conditions"]} == {
            "Accepted": "True",
            "ControlPlaneReady": "True",
            "VirtualNodesReady": "True",
            "Ready": "True",
        }
        await wait_until(lambda: reasons(world) >= {"Accepted", "StartingControlPlane", "Serving", "Ready"})


def reasons(world: World) -> set[str]:
    events = world.server.store.all(EVENTS)
    return {event["reason"] for event in events if event["involvedObject"]["kind"] == "Tenant"}


async def test_reduced_guarantee_is_reported_until_restored(world: World) -> None:
    def guarantee_condition() -> tuple[str, str, int]:
        found = condition(world.server, "GuaranteeKept", "alpha")
        return found.get("status", ""), found.get("reason", ""), found.get("observedGeneration", 0)

    world.create("alpha", pools=[pool(16)])
    world.guarantees["alpha"] = true_verdict("Kept")
    async with world.gateway() as tenants:
        await wait_until(lambda: guarantee_condition() == ("True", "Kept", 1))
        world.guarantees["alpha"] = false_verdict("NodesMissing", "a100.local: nvidia.com/gpu 16 -> 8, cells 2x8 -> 8")
        tenants.enqueue("alpha")
        await wait_until(lambda: guarantee_condition() == ("False", "NodesMissing", 1))
        await wait_until(lambda: "NodesMissing" in reasons(world))
        assert world.phase("alpha") == "Ready"
    del world.guarantees["alpha"]
    async with world.gateway() as tenants:
        await wait_until(lambda: world.runtimes.served["alpha"] > 2)
        await looked_at(world, tenants)
        assert guarantee_condition() == ("False", "NodesMissing", 1)  # stays while unknown
        world.guarantees["alpha"] = true_verdict("Kept")
        tenants.enqueue("alpha")
        await wait_until(lambda: guarantee_condition() == ("True", "Kept", 1))
        await wait_until(lambda: "Kept" in reasons(world))


async def test_blocked_datastore_is_reported_until_unblocked(world: World) -> None:
    def writable_condition() -> tuple[str, str]:
        found = condition(world.server, "DatastoreWritable", "alpha")
        return found.get("status", ""), found.get("reason", "")

    world.create("alpha")
    world.writable["alpha"] = true_verdict("Writable")
    async with world.gateway() as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert writable_condition() == ("", "")  # no condition for a tenant that was never blocked
        world.writable["alpha"] = false_verdict("DatastoreFull", "6.0 GiB of 8.0 GiB are in use")
        tenants.enqueue("alpha")
        await wait_until(lambda: writable_condition() == ("False", "DatastoreFull"))
        await wait_until(lambda: "DatastoreFull" in reasons(world))
        assert world.phase("alpha") == "Ready"
    # A virtual node that registers again cannot be updated.
    world.runtimes.nodes = unknown_verdict("Registering", "virtual node a100.local is being registered")
    async with world.gateway() as tenants:
        await wait_until(lambda: condition(world.server, "VirtualNodesReady", "alpha").get("reason") == "DatastoreFull")
        world.runtimes.nodes = true_verdict("Ready", "1 virtual node is ready")
        world.writable["alpha"] = true_verdict("Writable")
        tenants.enqueue("alpha")
        await wait_until(lambda: writable_condition() == ("True", "Writable"))
        await wait_until(lambda: world.phase("alpha") == "Ready")


async def test_refused_tenant_gets_no_control_plane(world: World) -> None:
    world.create("alpha", pools=[pool(64, limit=64)])
    async with world.gateway():
        await wait_until(lambda: condition(world.server, "Accepted", "alpha").get("status") == "False")
        assert condition(world.server, "Accepted", "alpha")["reason"] == "GuaranteeBeyondPool"
        assert world.phase("alpha") == "Pending"
        assert "finalizers" not in world.get("alpha")["metadata"]
        assert not world.planes.there


async def test_capacity_is_not_guaranteed_twice(world: World) -> None:
    world.create("alpha", pools=[pool(12)])
    world.create("beta", pools=[pool(12)])
    async with world.gateway():
        await wait_until(lambda: sorted((world.phase("alpha"), world.phase("beta"))) == ["Pending", "Ready"])
        (winner,) = world.planes.there
        world.server.store.delete(TENANTS, winner)
        await wait_until(lambda: world.gone(winner))
        (loser,) = {"alpha", "beta"} - {winner}
        await wait_until(lambda: world.phase(loser) == "Ready")


async def test_failing_tenant_does_not_block_others(world: World) -> None:
    world.planes.held["stuck"] = asyncio.Event()
    world.planes.broken["bad"] = "port 6443 is in use"
    for name in ("stuck", "bad", "good"):
        world.create(name)
    async with world.gateway():
        await wait_until(lambda: world.phase("good") == "Ready")
        await wait_until(lambda: condition(world.server, "ControlPlaneReady", "bad").get("status") == "False")
        assert condition(world.server, "Ready", "bad")["message"] == "port 6443 is in use"
        assert world.phase("stuck") == "Provisioning"
        del world.planes.broken["bad"]
        world.planes.held["stuck"].set()
        await wait_until(lambda: world.phase("bad") == world.phase("stuck") == "Ready")


async def test_management_cluster_errors_are_not_reported_on_tenant(world: World) -> None:
    world.server.fail("PATCH", "/tenants/alpha", status=503, times=2)
    world.create("alpha", pools=[pool(8)])
    seen: set[str] = set()
    async with world.gateway():

        def ready() -> bool:
            seen.update(str(one.get("status")) for one in (condition(world.server, "Accepted", "alpha"),))
            return world.phase("alpha") == "Ready"

        await wait_until(ready)
        world.server.fail("PATCH", "/tenants/alpha/status", status=503, times=3)
        document = world.get("alpha")
        document["spec"]["pools"] = []
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: world.get("alpha")["status"].get("observedGeneration") == 2)
        assert world.phase("alpha") == "Ready"
    assert "False" not in seen
    warnings = [event["message"] for event in world.server.store.all(EVENTS) if event["type"] == "Warning"]
    assert all(message.startswith("SpecEffective: spec.pools is empty") for message in warnings), warnings


async def test_certificates_are_checked_daily_without_events(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha", pools=[pool(8)])
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        version = world.get("alpha")["metadata"]["resourceVersion"]
        clock.passed += RENEW_SECONDS - 60
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 1
        clock.passed += 120
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 2
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 2
        assert world.get("alpha")["metadata"]["resourceVersion"] == version


async def test_failed_certificate_check_is_retried_silently(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha", pools=[pool(8)])
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        version = world.get("alpha")["metadata"]["resourceVersion"]
        world.planes.broken["alpha"] = "etcd does not answer"
        clock.passed += RENEW_SECONDS
        await looked_at(world, tenants)
        del world.planes.broken["alpha"]
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 1
        clock.passed += RENEW_RETRY_SECONDS
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 2
        assert world.get("alpha")["metadata"]["resourceVersion"] == version


async def test_changed_control_plane_is_provisioned_again_without_a_status(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway() as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        version = world.get("alpha")["metadata"]["resourceVersion"]
        tenants.repair_control_plane("alpha")
        tenants.repair_control_plane("unknown")
        await wait_until(lambda: world.planes.made["alpha"] == 2)
        await looked_at(world, tenants)
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 2
        assert world.get("alpha")["metadata"]["resourceVersion"] == version


async def test_repair_of_a_tenant_that_is_not_reconciled_yet_follows(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    async with world.gateway() as tenants:
        tenants.repair_control_plane("alpha")
        await wait_until(lambda: world.planes.made["alpha"] == 2)
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 2


async def test_change_during_a_repair_starts_it_again(world: World) -> None:
    """The repair may wait for an API server that the change stopped."""
    world.create("alpha", pools=[pool(8)])
    async with world.gateway() as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.planes.held["alpha"] = asyncio.Event()
        tenants.repair_control_plane("alpha")
        await wait_until(lambda: world.planes.waited["alpha"] == 1)
        tenants.repair_control_plane("alpha")
        tenants.repair_control_plane("alpha")
        await wait_until(lambda: world.planes.waited["alpha"] == 2)
        world.planes.held.pop("alpha").set()
        await wait_until(lambda: world.planes.made["alpha"] == 2)
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 2


async def test_tenant_is_deleted_during_a_repair(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway() as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.planes.held["alpha"] = asyncio.Event()
        tenants.repair_control_plane("alpha")
        await wait_until(lambda: world.planes.waited["alpha"] == 1)
        tenants.repair_control_plane("alpha")
        world.server.store.delete(TENANTS, "alpha")
        await wait_until(lambda: world.server.store.find(TENANTS, "alpha") is None)


async def test_failed_repair_is_retried_at_the_next_probe(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway() as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.planes.broken["alpha"] = "the namespace is being deleted"
        tenants.repair_control_plane("alpha")
        await looked_at(world, tenants)
        await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 1
        del world.planes.broken["alpha"]
        await looked_at(world, tenants)
        await wait_until(lambda: world.planes.made["alpha"] == 2)


async def test_api_server_is_published_while_its_tenant_stays_ready(world: World) -> None:
    clock = AdjustedClock()
    world.planes.publication = Publication.pending("LoadBalancer", "AddressPending", "no address yet")
    world.create("alpha", pools=[pool(8)])
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert condition(world.server, "Published", "alpha")["message"] == "no address yet"
        assert world.get("alpha")["status"]["apiServer"]["url"] == world.planes.server.url
        world.planes.publication = Publication.at("LoadBalancer", host="192.0.2.7", port=443)
        clock.passed += PROBE_SECONDS
        await looked_at(world, tenants)
        await wait_until(lambda: condition(world.server, "Published", "alpha").get("status") == "True")
        assert world.get("alpha")["status"]["apiServer"]["url"] == "https://192.0.2.7:443"
        assert (world.phase("alpha"), world.planes.made["alpha"]) == ("Ready", 2)


async def test_lasting_certificate_failure_is_reported(world: World) -> None:
    """For example a removed template: the tenant runs until its certificates expire."""
    clock = AdjustedClock()
    world.create("alpha", pools=[pool(8)])
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.planes.broken["alpha"] = "template 'default' does not exist"
        for _ in range(2):
            assert world.phase("alpha") == "Ready"
            clock.passed += RENEW_SECONDS + 60
            await looked_at(world, tenants)
            await looked_at(world, tenants)
        await wait_until(lambda: world.phase("alpha") == "Degraded")
        (ready_condition,) = (
            one for one in world.get("alpha")["status"]["conditions"] if one["type"] == "ControlPlaneReady"
        )
        assert ready_condition["reason"] == "NotRenewed"
        assert "template 'default' does not exist" in ready_condition["message"]
        version = world.get("alpha")["metadata"]["resourceVersion"]
        await looked_at(world, tenants)
        assert world.get("alpha")["metadata"]["resourceVersion"] == version
        del world.planes.broken["alpha"]
        clock.passed += RENEW_RETRY_SECONDS
        await looked_at(world, tenants)
        await looked_at(world, tenants)
        await wait_until(lambda: world.phase("alpha") == "Ready")


async def test_kept_objects_are_restored_periodically(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha", pools=[pool(8)])
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        version = world.get("alpha")["metadata"]["resourceVersion"]
        clock.passed += RESTORE_SECONDS - 60
        await looked_at(world, tenants)
        assert world.planes.kept["alpha"] == 0
        clock.passed += 120
        world.planes.broken["alpha"] = "its API server refuses"
        await looked_at(world, tenants)
        await looked_at(world, tenants)
        assert world.planes.kept["alpha"] == 1
        clock.passed += RESTORE_SECONDS
        await looked_at(world, tenants)
        assert world.planes.kept["alpha"] == 2
        assert world.planes.made["alpha"] == 1
        assert world.get("alpha")["metadata"]["resourceVersion"] == version


async def test_changed_policy_updates_kept_objects_at_once(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        document = world.get("alpha")
        document["spec"]["policy"] = {"runtimeClasses": ["kata"]}
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: world.planes.kept["alpha"] == 1)
        assert world.planes.made["alpha"] == 1
        document = world.get("alpha")
        document["spec"]["policy"] = {"podSecurity": "restricted"}
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: world.planes.made["alpha"] == 2)


async def looked_at(world: World, tenants: TenantController) -> None:
    """Reconcile alpha once more, completely; a run that has begun before does not count."""
    begun, served = world.begun["alpha"], world.runtimes.served["alpha"]
    tenants.enqueue("alpha")
    await wait_until(lambda: world.ended["alpha"] > begun and world.runtimes.served["alpha"] > served)


async def test_refused_change_leaves_tenant_running(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        document = world.get("alpha")
        document["spec"]["pools"][0]["guarantee"]["nvidia.com/gpu"] = 17
        document["spec"]["pools"][0]["limit"]["nvidia.com/gpu"] = 17
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: condition(world.server, "Accepted", "alpha").get("status") == "False")
        assert world.runtimes.serving["alpha"].spec.pools[0].guarantee == {"nvidia.com/gpu": 8}
    async with world.gateway():
        await wait_until(lambda: "alpha" in world.runtimes.serving)
        assert world.runtimes.serving["alpha"].spec.pools[0].guarantee == {"nvidia.com/gpu": 8}


async def test_changed_pool_does_not_reprovision_control_plane(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        document = world.get("alpha")
        document["spec"]["pools"] = []
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: not world.runtimes.serving["alpha"].spec.pools)
        assert world.planes.made["alpha"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"budget": [{"resource": "nvidia.com/gpu", "hours": 1}]},
        {"preemption": {"withinTenant": "Never"}},
        {"deletionProtection": True},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_field_without_effect_on_the_control_plane_does_not_reprovision_it(
    world: World, change: dict[str, Any]
) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        document = world.get("alpha")
        document["spec"] |= change
        changed = world.server.store.update(TENANTS, document, name="alpha")["metadata"]["generation"]
        await wait_until(lambda: world.get("alpha")["status"]["observedGeneration"] == changed)
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert world.planes.made["alpha"] == 1


async def test_restart_resumes_tenant_without_status_writes(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    before = world.get("alpha")["metadata"]["resourceVersion"]
    events = len(world.server.store.all(EVENTS))
    async with world.gateway() as tenants:
        await wait_until(lambda: "alpha" in world.runtimes.serving)
        await wait_until(lambda: tenants.accepted_specs.total_guarantee("local", "a100"))
        assert world.get("alpha")["metadata"]["resourceVersion"] == before
        assert len(world.server.store.all(EVENTS)) == events


async def test_restart_resumes_at_once_and_provisions_later(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha", pools=[pool(8)])
    async with world.gateway(clock=clock):
        await wait_until(lambda: world.phase("alpha") == "Ready")
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.planes.recalled["alpha"] == 1)
        await wait_until(lambda: "alpha" in world.runtimes.serving)
        assert world.planes.made["alpha"] == 1
        clock.passed += 2 * FIRST_RENEWAL_SECONDS
        await looked_at(world, tenants)
        assert (world.planes.made["alpha"], world.planes.recalled["alpha"]) == (2, 1)


async def test_only_consecutive_failed_probes_reprovision(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha", pools=[pool(8)])
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.server.fail("GET", "/readyz", status=500, times=MAX_FAILED_PROBES - 1)
        for _ in range(MAX_FAILED_PROBES):
            clock.passed += PROBE_SECONDS
            await looked_at(world, tenants)
        assert world.planes.made["alpha"] == 1
        assert world.phase("alpha") == "Ready"
        world.server.fail("GET", "/readyz", status=500, times=MAX_FAILED_PROBES)
        for _ in range(MAX_FAILED_PROBES):
            assert world.planes.made["alpha"] == 1
            clock.passed += PROBE_SECONDS
            await looked_at(world, tenants)
        await wait_until(lambda: world.planes.made["alpha"] == 2)


async def test_unresponsive_control_plane_is_reprovisioned_after_restart(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    world.server.fail("GET", "/readyz", status=503, times=1)
    async with world.gateway():
        await wait_until(lambda: world.planes.made["alpha"] == 2)
        await wait_until(lambda: "alpha" in world.runtimes.serving)


async def test_deletion_removes_exactly_the_tenant(world: World) -> None:
    for name in ("alpha", "beta"):
        world.create(name, pools=[pool(4)])
        world.add_pod(name, "web")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == world.phase("beta") == "Ready")
        world.server.store.delete(TENANTS, "alpha")
        await wait_until(lambda: world.gone("alpha"))

        assert world.planes.there == {"beta"}
        assert list(world.runtimes.serving) == ["beta"]
        assert world.server.store.find(NAMESPACES, "alpha--default") is None
        assert world.server.store.find(PODS, "web", "alpha--default") is None
        kept = world.server.store.get(PODS, "web", "beta--default")
        assert kept["metadata"]["finalizers"] == [MIRROR_FINALIZER]


async def delete_owned_tenant(world: World, *, owner: str) -> None:
    """Delete the Tenant alpha, whose pod belongs to the tenant of a gateway, and wait until the Tenant is gone."""
    record_owner(world.server, "alpha", owner)
    world.create("alpha")
    world.add_pod("alpha", "web")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.server.store.delete(TENANTS, "alpha")
        await wait_until(lambda: world.gone("alpha"))


async def test_deletion_leaves_objects_of_another_gateway_s_tenant(world: World) -> None:
    await delete_owned_tenant(world, owner="other")
    assert not world.planes.there
    assert world.server.store.get(PODS, "web", "alpha--default")["metadata"]["finalizers"] == [MIRROR_FINALIZER]
    assert recorded_owner(world.server, "alpha") == "other"


async def test_deletion_gives_up_ownership(world: World) -> None:
    await delete_owned_tenant(world, owner="this")
    assert world.server.store.find(NAMESPACES, "alpha--default") is None
    assert recorded_owner(world.server, "alpha") is None


async def test_deletion_resumes_after_restart_and_retries(world: World) -> None:
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.planes.broken["alpha"] = "etcd does not answer"
        world.server.store.delete(TENANTS, "alpha")
        await wait_until(lambda: condition(world.server, "Ready", "alpha").get("reason") == "DeletionStuck")
        assert condition(world.server, "Ready", "alpha")["message"] == "etcd does not answer"
        assert world.phase("alpha") == "Deleting"
    world.planes.broken.clear()
    async with world.gateway():
        await wait_until(lambda: world.gone("alpha"))
    assert not world.planes.there


async def test_deletion_interrupts_provisioning(world: World) -> None:
    world.planes.held["alpha"] = asyncio.Event()
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: condition(world.server, "ControlPlaneReady", "alpha"))
        world.server.store.delete(TENANTS, "alpha")
        await wait_until(lambda: world.gone("alpha"))
    assert not any(event["type"] == "Warning" for event in world.server.store.all(EVENTS))


def set_deletion(world: World, name: str, after: str | None) -> None:
    """Set or remove the time after which a tenant is deleted."""
    document = world.get(name)
    document["spec"] |= {"deleteAfter": after}
    if after is None:
        del document["spec"]["deleteAfter"]
    world.server.store.update(TENANTS, document, name=name)


async def test_tenant_that_is_deleted_later_keeps_its_data_and_can_be_restored(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha", pools=[pool(12)])
    world.add_pod("alpha", "web")
    async with world.gateway(clock=clock):
        await wait_until(lambda: world.phase("alpha") == "Ready")
        set_deletion(world, "alpha", render_time(clock.now() + timedelta(days=7)))
        await wait_until(lambda: condition(world.server, "Ready", "alpha")["reason"] == "DataKept")

        assert world.planes.stopped["alpha"] == 1
        assert "alpha" not in world.runtimes.serving
        assert world.server.store.find(PODS, "web", "alpha--default") is None
        assert world.server.store.find(NAMESPACES, "alpha--default") is not None, "its volumes stay"
        world.create("beta", pools=[pool(12)])
        await wait_until(lambda: world.phase("beta") == "Ready")
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.planes.stopped["alpha"] == 2)
        assert "alpha" not in world.planes.there
        set_deletion(world, "alpha", None)
        await wait_until(lambda: condition(world.server, "Accepted", "alpha")["status"] == "False")
        world.server.store.delete(TENANTS, "beta")
        await wait_until(lambda: world.gone("beta"))
        tenants.enqueue_all()
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert world.planes.removed["alpha"] == 1, "only before its creation"
        assert "alpha" in world.runtimes.serving


async def test_tenant_is_deleted_when_its_time_comes(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha")
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        set_deletion(world, "alpha", render_time(clock.now() + timedelta(minutes=5)))
        await wait_until(lambda: condition(world.server, "Ready", "alpha")["reason"] == "DataKept")
        clock.passed += 301
        tenants.enqueue("alpha")
        await wait_until(lambda: world.gone("alpha"))
    assert world.planes.removed["alpha"] == 2, "before its creation, and now"


async def test_tenant_restored_during_its_provisioning_becomes_ready(world: World) -> None:
    world.planes.held["alpha"] = asyncio.Event()
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: condition(world.server, "ControlPlaneReady", "alpha"))
        set_deletion(world, "alpha", "2999-01-01T00:00:00Z")
        await wait_until(lambda: condition(world.server, "Ready", "alpha")["reason"] == "DataKept")
        world.planes.held["alpha"].set()
        set_deletion(world, "alpha", None)
        await wait_until(lambda: world.phase("alpha") == "Ready")


async def test_accepted_spec_is_stored_before_provisioning(world: World) -> None:
    world.planes.held["alpha"] = asyncio.Event()
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: condition(world.server, "ControlPlaneReady", "alpha"))
        metadata = world.get("alpha")["metadata"]
        assert metadata["finalizers"] == [TENANT_FINALIZER]
        assert ACCEPTED_SPEC_ANNOTATION in metadata["annotations"]
        assert not world.planes.there


async def test_forced_deletion_is_cleaned_up(world: World) -> None:
    world.create("alpha")
    world.add_pod("alpha", "web")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.remove_by_force("alpha")
        await wait_until(lambda: world.server.store.find(NAMESPACES, "alpha--default") is None)
        await wait_until(lambda: not world.planes.there)


def written_conditions(world: World, name: str, generation: int) -> list[dict[str, str]]:
    """Return the conditions by type of every status that was written for a generation of a Tenant."""
    changes = [one.new for one in world.server.store.history if one.resource is TENANTS and one.new is not None]
    statuses = [one.get("status") or {} for one in changes if one["metadata"]["name"] == name]
    return [
        {one["type"]: one["status"] for one in status["conditions"]}
        for status in statuses
        if status.get("observedGeneration") == generation
    ]


async def test_changed_tenant_is_ready_only_after_reconciliation(world: World) -> None:
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.planes.held["alpha"] = asyncio.Event()
        document = world.get("alpha")
        document["spec"]["kubernetesVersion"] = "1.36.4"
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: written_conditions(world, "alpha", 2))
        assert not any(conditions["Ready"] == "True" for conditions in written_conditions(world, "alpha", 2))
        world.planes.held.pop("alpha").set()
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert written_conditions(world, "alpha", 2)[-1]["Ready"] == "True"


async def test_failure_of_old_spec_does_not_affect_new_spec(world: World) -> None:
    world.planes.held["alpha"] = asyncio.Event()
    world.create("alpha", pools=[pool(8)])
    async with world.gateway() as tenants:
        await wait_until(
            lambda: condition(world.server, "ControlPlaneReady", "alpha").get("reason") == "StartingControlPlane"
        )
        document = world.get("alpha")
        document["spec"]["pools"] = [pool(64, limit=64)]
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: tenants.tenants.reflector.store["", "alpha"].metadata.generation == 2)
        world.planes.held["alpha"].set()
        await wait_until(lambda: written_conditions(world, "alpha", 2))
        assert {conditions["Accepted"] for conditions in written_conditions(world, "alpha", 2)} == {"False"}


async def test_removed_finalizer_is_added_again(world: World) -> None:
    async def taken_off(tenants: TenantController, *, guarantee: int) -> None:
        """Replace the object without finalizers and annotations, as `kubectl replace` does; they are added again."""
        before = world.get("alpha")["metadata"]["annotations"][ACCEPTED_SPEC_ANNOTATION]
        document = world.get("alpha")
        document["spec"]["pools"] = [pool(guarantee, limit=64)]
        document["metadata"] |= {"finalizers": ["of/another"], "annotations": {}}
        world.server.store.update(TENANTS, document, name="alpha")
        version = int(world.get("alpha")["metadata"]["resourceVersion"])
        await wait_until(lambda: int(tenants.tenants.reflector.store["", "alpha"].metadata.resource_version) >= version)
        tenants.enqueue("alpha")
        await wait_until(lambda: world.get("alpha")["metadata"]["finalizers"] == ["of/another", TENANT_FINALIZER])
        assert world.get("alpha")["metadata"]["annotations"][ACCEPTED_SPEC_ANNOTATION] == before

    world.create("alpha", pools=[pool(8, limit=64)])
    async with world.gateway() as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        await taken_off(tenants, guarantee=8)
    async with world.gateway() as tenants:
        await wait_until(lambda: world.planes.recalled["alpha"])
        await taken_off(tenants, guarantee=8)
        await taken_off(tenants, guarantee=17)  # refused: the accepted spec is stored again


async def test_new_tenant_gets_no_data_of_predecessor(world: World) -> None:
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    world.remove_by_force("alpha")
    world.create("alpha")
    world.planes.removed.clear()
    world.planes.broken["alpha"] = "etcd does not answer"
    async with world.gateway():
        await wait_until(lambda: condition(world.server, "ControlPlaneReady", "alpha").get("status") == "False")
        assert condition(world.server, "Ready", "alpha")["message"] == "etcd does not answer"
        assert "finalizers" not in world.get("alpha")["metadata"]
        del world.planes.broken["alpha"]
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert (world.planes.removed["alpha"], world.planes.made["alpha"]) == (1, 2)


async def test_tenant_without_annotations_keeps_its_data(world: World) -> None:
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    document = world.get("alpha")
    document["metadata"] |= {"finalizers": [], "annotations": {}}
    world.server.store.update(TENANTS, document, name="alpha")
    world.planes.removed.clear()
    async with world.gateway():
        await wait_until(lambda: world.get("alpha")["metadata"]["finalizers"] == [TENANT_FINALIZER])
        await wait_until(lambda: world.planes.recalled["alpha"])
        assert not world.planes.removed


async def test_copied_annotations_do_not_mean_acceptance(world: World) -> None:
    """The copy is the renamed output of `kubectl get -o yaml`: with annotations and finalizers, without status."""
    world.create("alpha", pools=[pool(12)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    found = world.get("alpha")
    kept = {key: found["metadata"][key] for key in ("annotations", "finalizers")}
    world.server.store.create(TENANTS, {**found, "metadata": {"name": "copy", **kept}, "status": {}})
    async with world.gateway() as tenants:
        await wait_until(lambda: condition(world.server, "Accepted", "copy").get("reason") == "GuaranteeBeyondPool")
        assert tenants.accepted_specs.tenants_of("local") == ["alpha"]
        assert "copy" not in world.planes.there


async def test_copied_tenant_gets_no_data_of_predecessor(world: World) -> None:
    for name in ("alpha", "copy"):
        world.create(name)
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == world.phase("copy") == "Ready")
    world.remove_by_force("copy")
    found = world.get("alpha")
    kept = {key: found["metadata"][key] for key in ("annotations", "finalizers")}
    world.server.store.create(TENANTS, {**found, "metadata": {"name": "copy", **kept}, "status": {}})
    world.planes.removed.clear()
    async with world.gateway():
        await wait_until(lambda: world.phase("copy") == "Ready")
    assert world.planes.removed == {"copy": 1}


async def test_restored_tenant_keeps_its_data(world: World) -> None:
    """The Tenant for which the spec was accepted no longer exists, but its data do."""
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    found = world.get("alpha")
    world.remove_by_force("alpha")
    kept = {key: found["metadata"][key] for key in ("annotations", "finalizers")}
    world.server.store.create(TENANTS, {**found, "metadata": {"name": "alpha", **kept}, "status": {}})
    world.planes.removed.clear()
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    assert not world.planes.removed


async def test_accepted_spec_without_uid_is_migrated(world: World) -> None:
    world.create("alpha", pools=[pool(12)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
    found = world.get("alpha")
    del found["metadata"]["annotations"][ACCEPTED_FOR_ANNOTATION]
    found["spec"]["pools"] = [pool(64, limit=64)]
    world.server.store.update(TENANTS, found, name="alpha")
    async with world.gateway() as tenants:
        await wait_until(lambda: ACCEPTED_FOR_ANNOTATION in world.get("alpha")["metadata"]["annotations"])
        assert world.get("alpha")["metadata"]["annotations"][ACCEPTED_FOR_ANNOTATION] == found["metadata"]["uid"]
        assert tenants.accepted_specs.total_guarantee("local", "a100") == {"nvidia.com/gpu": "12"}


async def test_unavailable_version_can_be_reverted(world: World) -> None:
    async def ask_for(version: str) -> None:
        document = world.get("alpha")
        document["spec"]["kubernetesVersion"] = version
        world.server.store.update(TENANTS, document, name="alpha")
        generation = world.get("alpha")["metadata"]["generation"]
        await wait_until(lambda: world.get("alpha")["status"]["observedGeneration"] == generation)

    world.create("alpha", kubernetesVersion="1.35.4")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert world.get("alpha")["status"]["apiServer"]["version"] == "1.35.4"
        world.planes.broken["alpha"] = "there is no release 1.36.99"
        await ask_for("1.36.99")
        await wait_until(lambda: condition(world.server, "ControlPlaneReady", "alpha").get("status") == "False")
    async with world.gateway():
        await ask_for("1.35.4")
        del world.planes.broken["alpha"]
        await wait_until(lambda: world.phase("alpha") == "Ready")
        await ask_for("1.34.9")
        await wait_until(lambda: condition(world.server, "Accepted", "alpha").get("reason") == "VersionGoesBack")
        assert world.runtimes.serving["alpha"].spec.kubernetes_version == "1.35.4"


async def test_recreated_tenant_starts_with_empty_status(world: World) -> None:
    made = world.planes.held["alpha"] = asyncio.Event()
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.planes.waited["alpha"] == 1)
        world.remove_by_force("alpha")
        world.planes.held["alpha"] = asyncio.Event()
        world.create("alpha")
        made.set()
        await wait_until(lambda: world.planes.waited["alpha"] == 2)
        uid = world.get("alpha")["metadata"]["uid"]
        states = [one.new for one in world.server.store.history if one.resource is TENANTS and one.new is not None]
        phases = [one.get("status", {}).get("phase") for one in states if one["metadata"]["uid"] == uid]
        assert "Ready" not in phases
        world.planes.held.pop("alpha").set()
        await wait_until(lambda: world.phase("alpha") == "Ready")


async def test_tenant_runs_on_existing_control_plane_while_provisioning_fails(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        world.planes.broken["alpha"] = "there is no release 1.36.99"
        document = world.get("alpha")
        document["spec"]["kubernetesVersion"] = "1.36.99"
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: condition(world.server, "ControlPlaneReady", "alpha").get("status") == "False")
    world.runtimes.serving.clear()
    async with world.gateway():
        await wait_until(lambda: "alpha" in world.runtimes.serving)
        await wait_until(lambda: condition(world.server, "Ready", "alpha")["message"] == "there is no release 1.36.99")
        document = world.get("alpha")
        document["spec"]["pools"] = []
        world.server.store.update(TENANTS, document, name="alpha")
        await wait_until(lambda: not world.runtimes.serving["alpha"].spec.pools)
        world.server.store.delete(TENANTS, "alpha")
        await wait_until(lambda: "alpha" not in world.runtimes.serving)
        del world.planes.broken["alpha"]
        await wait_until(lambda: world.gone("alpha"))


async def test_uid_of_a_name_is_that_of_the_current_tenant(world: World) -> None:
    world.create("alpha", pools=[pool(8)])
    async with world.gateway() as gateway:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert gateway.tenants.uid_of("alpha") == world.get("alpha")["metadata"]["uid"]
        assert gateway.tenants.uid_of("beta") == ""
