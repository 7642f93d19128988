"""A tenant whose pools lie in two compute clusters: whole gangs go where there is room for all of them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.store import ObjectStore
from tests.unit.sync.admission.platform import (
    DEADLINE,
    add_node,
    annotation,
    bind,
    deleted,
    gated,
    is_let_go,
    let_go,
    low_runs,
    noticed,
    pinned_to,
    pod,
    stranger,
    told,
)
from tests.unit.sync.world import BELOW, COMPUTE_NODE, NODE, TENANT, World, compute_node, until
from vkgateway.arbiter.snapshot import Quota
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
from vkgateway.model.api import Pool
from vkgateway.sync.admission.arbitration import Arbitration, ArbitrationSettings
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.tenant import TenantSync
from vkgateway.sync.workers import WorkerPool
from vkgateway.translate.context import TenantContext

pytestmark = pytest.mark.usefixtures("told_soon")

CLUSTERS = ("local", "east")
EAST_NODE = "a100.east"
SELECTOR = {"gpu": "a100"}


@dataclass
class TwoClusters(World):
    """Pool a100 of `local`, which is liked best, has one node; that of `east` has two."""

    east: FakeApiServer | None = None

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[TenantSync]:
        assert self.east is not None
        async with AsyncExitStack() as stack:
            clients = [self.above.client("tenant"), self.below.client("local"), self.east.client("east")]
            for client in clients:
                stack.push_async_callback(client.close)
            links = {name: ComputeLink(name, client) for name, client in zip(CLUSTERS, clients[1:], strict=True)}
            engine = WorkerPool(workers=8)
            arbiter = Arbitration(
                ArbitrationSettings(gather=0.001, unplaced_delay=0.02, notice=self.notice),
                links=lambda: links,
                specs=lambda: {name: (Pool(name="a100", node_selector=SELECTOR),) for name in links},
                expected=lambda: [TENANT],
            )
            sync = TenantSync(
                TenantContext(name=TENANT, api_host="10.213.0.1", api_port=6443),
                clients[0],
                links=dict(links),
                bindings={NODE: self.binding(links["local"]), EAST_NODE: east_binding(links["east"])},
                engine=engine,
                arbiter=arbiter,
            )
            for node in (NODE, EAST_NODE):
                sync.set_limit(node, self.limit | {"nvidia.com/gpu": 16_000})
            sync.set_quotas([Quota(tenant=TENANT, pool=(name, "a100"), guarantee=self.guarantee) for name in links])
            self.link = links["local"]
            parts = [*(link.run() for link in links.values()), sync.run(), engine.run(), arbiter.run()]
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                yield sync
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def east_binding(link: ComputeLink) -> VirtualNodeBinding:
    binding = World.binding(link)
    return replace(binding, pool=replace(binding.pool, compute_cluster="east", node_name=EAST_NODE))


@pytest.fixture
async def here() -> AsyncIterator[TwoClusters]:
    async with AsyncExitStack() as stack:
        above, local, east = [
            await stack.enter_async_context(FakeApiServer(store=ObjectStore(namespaces_must_exist=True)))
            for _ in range(3)
        ]
        for server in (above, local, east):
            server.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        local.store.create(NODES, compute_node(COMPUTE_NODE))
        for name in ("east-1", "east-2"):
            east.store.create(NODES, compute_node(name))
        yield TwoClusters(above, local, east=east)


def chosen(here: World, name: str) -> str:
    """The virtual node that a pod was narrowed to."""
    return str(pod(here, name)["spec"]["nodeSelector"]["kubernetes.io/hostname"])


async def test_a_gang_that_does_not_fit_into_the_first_cluster_starts_in_the_second(here: TwoClusters) -> None:
    assert here.east is not None
    for name in ("one", "two"):
        gated(here, name, gpus=8, gang=("train", 2))
    async with here.gateway():
        for name in ("one", "two"):
            await let_go(here, name)
            assert chosen(here, name) == EAST_NODE
            bind(here, name, EAST_NODE)
        east = here.east.store
        below = [await until(lambda name=name: east.find(PODS, name, BELOW)) for name in ("one", "two")]  # type: ignore[misc]
        assert {pinned_to(each) for each in below} == {"east-1", "east-2"}
        assert here.below.store.find(PODS, "one", BELOW) is None


async def test_the_first_cluster_is_taken_as_long_as_it_has_room(here: TwoClusters) -> None:
    async with here.gateway():
        for name, node in (("one", NODE), ("two", EAST_NODE)):
            gated(here, name, gpus=5)
            await let_go(here, name)
            assert chosen(here, name) == node
            bind(here, name, node)


async def test_what_one_cluster_refuses_reaches_the_other(here: TwoClusters) -> None:
    assert here.east is not None
    store, east = here.above.store, here.east.store
    store.create(CONFIG_MAPS, {"metadata": {"name": "settings"}, "data": {"a": "1"}}, "default")
    main = {"name": "main", "image": "busybox", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    async with here.gateway() as sync:
        for name, node in (("one", NODE), ("two", EAST_NODE)):
            here.create(name, node=node, containers=[main])
        await here.forwarded("one")
        await until(lambda: east.find(PODS, "two", BELOW))
        await until(lambda: sync.network.services.is_complete and sync.network.policies.tenant_policies.is_complete)
        for method in ("POST", "PUT", "DELETE"):
            here.below.fail(method, BELOW, status=403, times=10_000)
        settings = copy.deepcopy(store.get(CONFIG_MAPS, "settings", "default"))
        store.update(CONFIG_MAPS, settings | {"data": {"a": "2"}}, name="settings", namespace="default")
        await until(lambda: east.get(CONFIG_MAPS, "settings", BELOW)["data"] == {"a": "2"})
        web = {"clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP"}]}
        store.create(SERVICES, {"metadata": {"name": "web"}, "spec": web}, "default")
        await until(lambda: east.find(SERVICES, "web", BELOW))
        closed = {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}
        fences = len(east.all(NETWORK_POLICIES))
        store.create(NETWORK_POLICIES, {"metadata": {"name": "closed"}, "spec": closed}, "default")
        await until(lambda: len(east.all(NETWORK_POLICIES)) > fences)
        for name in ("one", "two"):
            here.delete(name, grace=0)
        store.delete(NAMESPACES, "default")
        await until(lambda: east.find(NAMESPACES, BELOW) is None)
    assert here.below.store.find(NAMESPACES, BELOW) is not None


async def test_healthy_pods_of_other_clusters_count_for_a_disruption_budget(here: TwoClusters) -> None:
    assert here.east is not None
    stores = here.below.store, here.east.store

    def required() -> list[int]:
        found = (store.find(DISRUPTION_BUDGETS, "quorum", BELOW) for store in stores)
        return [one["spec"]["minAvailable"] for one in found if one is not None]

    def healthy(store: ObjectStore, number: int) -> None:
        """As that cluster's disruption controller counts."""
        found = copy.deepcopy(store.get(DISRUPTION_BUDGETS, "quorum", BELOW)) | {"status": {"currentHealthy": number}}
        store.update(DISRUPTION_BUDGETS, found, name="quorum", namespace=BELOW, status=True)

    document = {"metadata": {"name": "quorum"}, "spec": {"maxUnavailable": 1, "selector": {}}}
    here.above.store.create(DISRUPTION_BUDGETS, document, "default")
    counted = copy.deepcopy(here.above.store.get(DISRUPTION_BUDGETS, "quorum", "default"))
    counted["status"] = {"observedGeneration": 1, "desiredHealthy": 3}
    here.above.store.update(DISRUPTION_BUDGETS, counted, name="quorum", namespace="default", status=True)
    async with here.gateway():
        for name, node in (("one", NODE), ("two", EAST_NODE)):
            here.create(name, node=node)
        await until(lambda: required() == [3, 3])
        for store, number in zip(stores, (1, 3), strict=True):
            healthy(store, number)
        await until(lambda: required() == [0, 2])
        healthy(stores[1], 2)
        await until(lambda: required() == [1, 2])


async def test_what_pods_refer_to_is_copied_only_to_where_they_run(here: TwoClusters) -> None:
    assert here.east is not None
    store, east = here.above.store, here.east.store
    secret = {"metadata": {"name": "key"}, "data": {"a": "MQ=="}}
    store.create(SECRETS, secret, "default")
    main = {"name": "main", "image": "busybox", "envFrom": [{"secretRef": {"name": "key"}}]}
    async with here.gateway():
        here.create("one", node=NODE)
        await here.forwarded("one")
        here.create("two", node=EAST_NODE, containers=[main])
        await until(lambda: east.find(PODS, "two", BELOW))
        store.update(SECRETS, secret | {"data": {"a": "Mg=="}}, name="key", namespace="default")
        await until(lambda: east.get(SECRETS, "key", BELOW)["data"] == {"a": "Mg=="})
        east.delete(SECRETS, "key", BELOW)
        await until(lambda: east.find(SECRETS, "key", BELOW))
        await here.settled()
        assert here.below.store.find(SECRETS, "key", BELOW) is None


async def test_a_pod_that_one_cluster_does_not_let_go_holds_up_none_of_its_name_in_the_other(here: TwoClusters) -> None:
    assert here.east is not None
    east = here.east.store
    async with here.gateway():
        here.create("web", node=NODE)
        await here.forwarded()
        here.below.fail("DELETE", f"{BELOW}/pods/web", status=403, times=10_000)
        here.delete(grace=0)
        here.create("web", node=EAST_NODE)
        await until(lambda: east.find(PODS, "web", BELOW))
        assert here.compute_pod() is not None


async def test_a_gang_is_not_parted_between_clusters_and_starts_where_room_comes_first(here: TwoClusters) -> None:
    stranger(TwoClusters(here.above, here.east or here.below), gpus=1, node="east-1")
    for name in ("one", "two"):
        gated(here, name, gpus=8, gang=("train", 2))
    async with here.gateway():
        await told(here, "WaitingForRoom", "one")
        assert not is_let_go(here, "two")
        here.below.store.create(NODES, compute_node("local-2"))
        for name in ("one", "two"):
            await let_go(here, name)
            assert chosen(here, name) == NODE


async def test_a_pod_whose_node_is_up_to_other_pods_is_left_to_the_scheduler_and_placed_where_that_puts_it(
    here: TwoClusters,
) -> None:
    assert here.east is not None
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "example.com/zone"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with here.gateway():
        gated(here, "one", gpus=5, affinity=apart)
        found = await let_go(here, "one")
        assert not found["spec"].get("nodeSelector")
        bind(here, "one", EAST_NODE)
        below = await until(lambda: here.east is not None and here.east.store.find(PODS, "one", BELOW))
        assert pinned_to(below) in ("east-1", "east-2")
        assert here.below.store.find(PODS, "one", BELOW) is None

        for name in ("two", "three"):
            gated(here, name, gpus=8, gang=("train", 2), affinity=apart)
        await told(here, "WaitingForRoom", "two")
        add_node(here)
        for name in ("two", "three"):
            await let_go(here, name)
            assert chosen(here, name) == NODE, "a gang stays together"


async def test_nobody_leaves_a_cluster_that_was_away_for_a_gang_that_meanwhile_started_in_another(
    here: TwoClusters,
) -> None:
    assert here.east is not None
    east = TwoClusters(here.above, here.east)
    here.notice, here.guarantee = 1, {"nvidia.com/gpu": 8000}
    for node in ("east-1", "east-2"):
        stranger(east, gpus=8, node=node, name=f"on-{node}")
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
        port = here.below.port
        await here.below.stop()
        await until(lambda: here.link is not None and not here.link.is_reachable)
        east.below.store.delete(PODS, "on-east-1", "default", grace=0)
        await let_go(here, "high")
        assert chosen(here, "high") == EAST_NODE
        await asyncio.sleep(1.5)
        await here.below.start(port)
        await until(lambda: not annotation(here.tenant_pod("low"), DEADLINE))
        await here.settled()
        assert not deleted(here.compute_pod("low"))
        assert here.phase("low") == "Running"
