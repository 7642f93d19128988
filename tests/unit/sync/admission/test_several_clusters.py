"""Tenant with pools in two compute clusters: a gang starts in the cluster with free capacity for all its pods."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import AdjustedClock
from tests.fakes.store import ObjectStore
from tests.support.machine import patience
from tests.support.waiting import wait_until
from tests.unit.sync.admission.cluster_helpers import (
    DEADLINE,
    add_node,
    bind_pod,
    create_gated,
    create_unmanaged,
    event_messages,
    get_annotation,
    get_pod,
    is_deleting,
    is_ungated,
    pinned_node,
    start_low,
    wait_notice,
    wait_ungated,
)
from tests.unit.sync.scopes import FakePlatform, make_arbitration
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, NODE, TENANT, World, make_node
from vkgateway.api.types import Pool
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.catalogue import WATCHES
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.tenant_scope import VirtualNodeBinding
from vkgateway.kube.resources import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
)
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.service import tenant_verdicts
from vkgateway.scheduler.service.arbitration import ArbitrationSettings
from vkgateway.tenants.tenant import TenantSync

pytestmark = pytest.mark.usefixtures("told_soon")

CLUSTERS = ("local", "east")
EAST_NODE = "a100.east"
SELECTOR = {"gpu": "a100"}


@dataclass
class TwoClusters(World):
    """Pool a100 of the preferred cluster `local` has one node; that of `east` has two."""

    east: FakeApiServer | None = None

    @asynccontextmanager
    async def run_gateway(self) -> AsyncIterator[TenantSync]:
        assert self.east is not None
        async with AsyncExitStack() as stack:
            clients = [
                self.tenant_server.client("tenant"),
                self.compute_server.client("local"),
                self.east.client("east"),
            ]
            for client in clients:
                stack.push_async_callback(client.close)
            links = {
                name: ComputeLink(name, client, kinds=WATCHES)
                for name, client in zip(CLUSTERS, clients[1:], strict=True)
            }
            engine = WorkerPool(workers=8)
            arbiter = make_arbitration(
                ArbitrationSettings(gather=0.001, unplaced_delay=0.02, notice=self.notice),
                FakePlatform(
                    links, {name: (Pool(name="a100", node_selector=SELECTOR),) for name in links}, tenants=[TENANT]
                ),
                clock=self.clock,
            )
            self.count_cycles(arbiter)
            sync = TenantSync(
                TenantContext(name=TENANT, api_host="10.213.0.1", api_port=6443),
                clients[0],
                links=dict(links),
                bindings={NODE: self.make_binding(links["local"]), EAST_NODE: east_binding(links["east"])},
                engine=engine,
                arbiter=arbiter,
            )
            for node in (NODE, EAST_NODE):
                sync.set_limit(node, self.limit | {"nvidia.com/gpu": 16_000})
            sync.set_quotas([Quota(tenant=TENANT, pool=(name, "a100"), guarantee=self.guarantee) for name in links])
            self.link, self._engine = links["local"], engine
            parts = [*(link.run() for link in links.values()), sync.run(), engine.run(), arbiter.run()]
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                yield sync
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def east_binding(link: ComputeLink) -> VirtualNodeBinding:
    binding = World.make_binding(link)
    return replace(binding, pool=replace(binding.pool, compute_cluster="east", node_name=EAST_NODE))


@pytest.fixture
async def world() -> AsyncIterator[TwoClusters]:
    async with AsyncExitStack() as stack:
        tenant_server, local, east = [
            await stack.enter_async_context(FakeApiServer(store=ObjectStore(namespaces_must_exist=True)))
            for _ in range(3)
        ]
        for server in (tenant_server, local, east):
            server.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        local.store.create(NODES, make_node(COMPUTE_NODE))
        for name in ("east-1", "east-2"):
            east.store.create(NODES, make_node(name))
        yield TwoClusters(tenant_server, local, east=east)


def chosen_cluster(world: World, name: str) -> str:
    """Return the virtual node that a pod is restricted to."""
    return str(get_pod(world, name)["spec"]["nodeSelector"]["kubernetes.io/hostname"])


async def test_gang_that_does_not_fit_the_first_cluster_starts_in_the_second(world: TwoClusters) -> None:
    assert world.east is not None
    for name in ("one", "two"):
        create_gated(world, name, gpus=8, gang=("train", 2))
    async with world.run_gateway():
        for name in ("one", "two"):
            await wait_ungated(world, name)
            assert chosen_cluster(world, name) == EAST_NODE
            bind_pod(world, name, EAST_NODE)
        east = world.east.store
        compute_pods = [
            await wait_until(functools.partial(east.find, PODS, name, COMPUTE_NAMESPACE)) for name in ("one", "two")
        ]
        assert {pinned_node(compute_pod) for compute_pod in compute_pods} == {"east-1", "east-2"}
        assert world.compute_server.store.find(PODS, "one", COMPUTE_NAMESPACE) is None


async def test_first_cluster_is_used_while_it_has_free_capacity(world: TwoClusters) -> None:
    async with world.run_gateway():
        for name, node in (("one", NODE), ("two", EAST_NODE)):
            create_gated(world, name, gpus=5)
            await wait_ungated(world, name)
            assert chosen_cluster(world, name) == node
            bind_pod(world, name, node)


async def test_refusal_of_one_cluster_does_not_block_the_other(world: TwoClusters) -> None:
    assert world.east is not None
    store, east = world.tenant_server.store, world.east.store
    store.create(CONFIG_MAPS, {"metadata": {"name": "settings"}, "data": {"a": "1"}}, "default")
    main = {"name": "main", "image": "busybox", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    async with world.run_gateway() as sync:
        for name, node in (("one", NODE), ("two", EAST_NODE)):
            world.create_pod(name, node=node, containers=[main])
        await world.wait_forwarded("one")
        await wait_until(lambda: east.find(PODS, "two", COMPUTE_NAMESPACE))
        policies, services = sync.reconcilers.policies, sync.reconcilers.tenant_services
        await wait_until(lambda: services.is_complete and policies.tenant_policies.is_complete)
        for method in ("POST", "PUT", "DELETE"):
            world.compute_server.fail(method, COMPUTE_NAMESPACE, status=403, times=10_000)
        settings = copy.deepcopy(store.get(CONFIG_MAPS, "settings", "default"))
        store.update(CONFIG_MAPS, settings | {"data": {"a": "2"}}, name="settings", namespace="default")
        await wait_until(lambda: east.get(CONFIG_MAPS, "settings", COMPUTE_NAMESPACE)["data"] == {"a": "2"})
        web = {"clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP"}]}
        store.create(SERVICES, {"metadata": {"name": "web"}, "spec": web}, "default")
        await wait_until(lambda: east.find(SERVICES, "web", COMPUTE_NAMESPACE))
        closed = {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}
        fences = len(east.all(NETWORK_POLICIES))
        store.create(NETWORK_POLICIES, {"metadata": {"name": "closed"}, "spec": closed}, "default")
        await wait_until(lambda: len(east.all(NETWORK_POLICIES)) > fences)
        for name in ("one", "two"):
            world.delete_pod(name, grace=0)
        store.delete(NAMESPACES, "default")
        await wait_until(lambda: east.find(NAMESPACES, COMPUTE_NAMESPACE) is None)
    assert world.compute_server.store.find(NAMESPACES, COMPUTE_NAMESPACE) is not None


async def test_healthy_pods_of_other_clusters_count_for_a_disruption_budget(world: TwoClusters) -> None:
    assert world.east is not None
    stores = world.compute_server.store, world.east.store

    def required() -> list[int]:
        found = (store.find(DISRUPTION_BUDGETS, "quorum", COMPUTE_NAMESPACE) for store in stores)
        return [one["spec"]["minAvailable"] for one in found if one is not None]

    def healthy(store: ObjectStore, number: int) -> None:
        """Set the counts of the cluster's disruption controller."""
        found = copy.deepcopy(store.get(DISRUPTION_BUDGETS, "quorum", COMPUTE_NAMESPACE)) | {
            "status": {"currentHealthy": number}
        }
        store.update(DISRUPTION_BUDGETS, found, name="quorum", namespace=COMPUTE_NAMESPACE, status=True)

    document = {"metadata": {"name": "quorum"}, "spec": {"maxUnavailable": 1, "selector": {}}}
    world.tenant_server.store.create(DISRUPTION_BUDGETS, document, "default")
    counted = copy.deepcopy(world.tenant_server.store.get(DISRUPTION_BUDGETS, "quorum", "default"))
    counted["status"] = {"observedGeneration": 1, "desiredHealthy": 3}
    world.tenant_server.store.update(DISRUPTION_BUDGETS, counted, name="quorum", namespace="default", status=True)
    async with world.run_gateway():
        for name, node in (("one", NODE), ("two", EAST_NODE)):
            world.create_pod(name, node=node)
        await wait_until(lambda: required() == [3, 3])
        for store, number in zip(stores, (1, 3), strict=True):
            healthy(store, number)
        await wait_until(lambda: required() == [0, 2])
        healthy(stores[1], 2)
        await wait_until(lambda: required() == [1, 2])


async def test_objects_are_copied_only_to_clusters_that_run_their_pods(world: TwoClusters) -> None:
    assert world.east is not None
    store, east = world.tenant_server.store, world.east.store
    secret = {"metadata": {"name": "key"}, "data": {"a": "MQ=="}}
    store.create(SECRETS, secret, "default")
    main = {"name": "main", "image": "busybox", "envFrom": [{"secretRef": {"name": "key"}}]}
    async with world.run_gateway():
        world.create_pod("one", node=NODE)
        await world.wait_forwarded("one")
        world.create_pod("two", node=EAST_NODE, containers=[main])
        await wait_until(lambda: east.find(PODS, "two", COMPUTE_NAMESPACE))
        store.update(SECRETS, secret | {"data": {"a": "Mg=="}}, name="key", namespace="default")
        await wait_until(lambda: east.get(SECRETS, "key", COMPUTE_NAMESPACE)["data"] == {"a": "Mg=="})
        east.delete(SECRETS, "key", COMPUTE_NAMESPACE)
        await wait_until(lambda: east.find(SECRETS, "key", COMPUTE_NAMESPACE))
        await world.wait_settled()
        assert world.compute_server.store.find(SECRETS, "key", COMPUTE_NAMESPACE) is None


async def test_retained_pod_in_one_cluster_does_not_block_its_name_in_another(world: TwoClusters) -> None:
    assert world.east is not None
    east = world.east.store
    async with world.run_gateway():
        world.create_pod("web", node=NODE)
        await world.wait_forwarded()
        world.compute_server.fail("DELETE", f"{COMPUTE_NAMESPACE}/pods/web", status=403, times=10_000)
        world.delete_pod(grace=0)
        world.create_pod("web", node=EAST_NODE)
        await wait_until(lambda: east.find(PODS, "web", COMPUTE_NAMESPACE))
        assert world.compute_pod() is not None


async def test_gang_is_not_split_and_starts_where_capacity_is_free_first(world: TwoClusters) -> None:
    create_unmanaged(TwoClusters(world.tenant_server, world.east or world.compute_server), gpus=1, node="east-1")
    for name in ("one", "two"):
        create_gated(world, name, gpus=8, gang=("train", 2))
    async with world.run_gateway():
        await event_messages(world, "WaitingForRoom", "one")
        assert not is_ungated(world, "two")
        world.compute_server.store.create(NODES, make_node("local-2"))
        for name in ("one", "two"):
            await wait_ungated(world, name)
            assert chosen_cluster(world, name) == NODE


async def test_pod_with_affinity_to_other_pods_is_placed_by_the_scheduler(
    world: TwoClusters,
) -> None:
    assert world.east is not None
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "example.com/zone"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with world.run_gateway():
        create_gated(world, "one", gpus=5, affinity=apart)
        found = await wait_ungated(world, "one")
        assert not found["spec"].get("nodeSelector")
        bind_pod(world, "one", EAST_NODE)
        compute_pods = await wait_until(
            lambda: world.east is not None and world.east.store.find(PODS, "one", COMPUTE_NAMESPACE)
        )
        assert pinned_node(compute_pods) in ("east-1", "east-2")
        assert world.compute_server.store.find(PODS, "one", COMPUTE_NAMESPACE) is None

        for name in ("two", "three"):
            create_gated(world, name, gpus=8, gang=("train", 2), affinity=apart)
        await event_messages(world, "WaitingForRoom", "two")
        add_node(world)
        for name in ("two", "three"):
            await wait_ungated(world, name)
            assert chosen_cluster(world, name) == NODE, "a gang stays together"


async def test_returning_cluster_is_not_drained_for_a_gang_started_elsewhere(
    world: TwoClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_verdicts, "_MIN_NOTICE_AFTER_RETURN", patience(5))
    assert world.east is not None
    east = TwoClusters(world.tenant_server, world.east)
    world.clock = clock = AdjustedClock()
    world.notice, world.guarantee = 30, {"nvidia.com/gpu": 8000}
    for node in ("east-1", "east-2"):
        create_unmanaged(east, gpus=8, node=node, name=f"on-{node}")
    async with world.run_gateway() as sync:
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        await world.compute_server.stop()
        await wait_until(lambda: world.link is not None and not world.link.is_reachable)
        east.compute_server.store.delete(PODS, "on-east-1", "default", grace=0)
        await wait_ungated(world, "high")
        assert chosen_cluster(world, "high") == EAST_NODE
        clock.passed += 31
        sync.resync()
        await world.wait_settled()
        await world.compute_server.start()
        await wait_until(lambda: not get_annotation(world.tenant_pod("low"), DEADLINE))
        await world.wait_settled()
        assert not is_deleting(world.compute_pod("low"))
        assert world.pod_phase("low") == "Running"
