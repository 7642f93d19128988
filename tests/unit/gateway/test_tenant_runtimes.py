"""Tests of tenant runtimes: virtual nodes follow pools and compute clusters."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import AdjustedClock
from tests.support.machine import patience
from tests.support.owners import delete_record, record_owner, recorded_owner
from tests.support.waiting import let_pass, wait_until
from tests.unit.gateway.conftest import add_compute_cluster
from tests.unit.sync.scopes import FakePlatform, make_arbitration
from vkgateway.api.errors import NotFoundError, UnavailableError
from vkgateway.api.objects import Meta
from vkgateway.api.types import ComputeClusterSpec, Pool, Tenant, TenantPool, TenantSpec
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.controller import ComputeController
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NAMESPACES, NODES, PODS
from vkgateway.nodes.node_source import NodeSource
from vkgateway.nodes.target import NoComputePodError
from vkgateway.nodes.virtualnode import SETTLE_SECONDS
from vkgateway.runtime.events import EventRecorder
from vkgateway.runtime.views.pods import decode_tenant_pod
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.service.arbitration import ArbitrationSettings
from vkgateway.settings.config import Nodes
from vkgateway.tenants.interfaces import ApiServerAccess, VirtualNodesState
from vkgateway.tenants.running_tenants import RunningTenants
from vkgateway.tenants.runtime import TenantRuntime
from vkgateway.tenants.runtimes import TenantRuntimes

GPU = "nvidia.com/gpu"


@dataclass
class Endpoint:
    """Fake kubelet endpoint that records the admitted tenants."""

    port: int = 10250
    admitted: dict[str, set[str]] = field(default_factory=dict)

    def admit_tenant(self, tenant: str, *, fingerprints: Collection[str] = (), front_proxy: bytes = b"") -> None:
        self.admitted[tenant] = set(fingerprints)

    def revoke_tenant(self, tenant: str) -> None:
        self.admitted.pop(tenant, None)


class Setting:
    """Compute cluster, tenant cluster, and the runtimes between them."""

    def __init__(self, compute: FakeApiServer, tenant: FakeApiServer, computes: ComputeController) -> None:
        self.compute = compute
        self.tenant = tenant
        self.computes = computes
        self.endpoint = Endpoint()
        self.engine = WorkerPool(workers=2)
        self.woken: list[str] = []
        self.running = RunningTenants()
        self.clock = AdjustedClock()
        self.runtimes = TenantRuntimes(
            running=self.running,
            computes=computes.clusters,
            kubelet=self.endpoint,
            engine=self.engine,
            arbiter=make_arbitration(ArbitrationSettings(), FakePlatform(computes.clusters.links)),
            address="10.0.0.1",
            settings=Nodes(),
            on_change=self.woken.append,
            clock=self.clock,
        )
        client = tenant.client("alpha")
        self.access = ApiServerAccess(
            client=client, url=tenant.url, host="10.0.0.1", port=6443, kubelet_clients=frozenset({"first"})
        )

    async def serve(self, *pools: TenantPool) -> VirtualNodesState:
        spec = TenantSpec(pools=pools)
        return await self.runtimes.ensure_running(Tenant(metadata=Meta(name="alpha", uid="u"), spec=spec), self.access)

    async def ready(self, *pools: TenantPool) -> VirtualNodesState:
        """Reconcile until the nodes are ready, like the controller."""
        async with asyncio.timeout(patience(10)):
            while not (seen := await self.serve(*pools)).verdict.is_true:  # noqa: ASYNC110 - asked, as it is in the daemon
                await asyncio.sleep(0.01)
        return seen

    @property
    def alpha(self) -> TenantRuntime:
        """The tenant's runtime, which must exist."""
        runtime = self.running.get("alpha")
        assert runtime is not None
        return runtime

    @property
    def link(self) -> ComputeLink:
        return self.computes.clusters.links["local"]

    def node(self, name: str) -> dict[str, Any] | None:
        return self.tenant.store.find(NODES, name)


@asynccontextmanager
async def setting(compute: FakeApiServer, management: Client) -> AsyncIterator[Setting]:
    computes = ComputeController(
        management,
        clusters=ComputeClusters(management, GatewayIdentity("this")),
        recorder=EventRecorder(management, counts_repeats=False),
        connect=lambda name, _: compute.client(name),
        on_change=lambda: None,
    )
    async with FakeApiServer() as tenant:
        it = Setting(compute, tenant, computes)
        tasks = [asyncio.create_task(computes.run()), asyncio.create_task(it.engine.run())]
        try:
            await wait_until(lambda: "local" in computes.clusters.links)
            yield it
        finally:
            await it.runtimes.stop("alpha")
            await it.access.client.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def world(server: FakeApiServer, client: Client) -> AsyncIterator[Setting]:
    add_compute_cluster(server)
    async with setting(server, client) as it:
        yield it


A100 = TenantPool(name="a100", limit={GPU: 4})


async def test_pool_becomes_virtual_node_with_capacity_of_limit(world: Setting) -> None:
    seen = await world.ready(A100)
    node = world.node("a100.local")
    assert node is not None
    assert node["status"]["allocatable"][GPU] == "4"
    assert {"type": "InternalIP", "address": "10.0.0.1"} in node["status"]["addresses"]
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250
    path = node["metadata"]["annotations"]["metrics.k8s.io/resource-metrics-path"]
    assert path == "/tenants/alpha/nodes/a100.local/metrics/resource"
    assert (seen.pools[0].node_name, seen.pools[0].ready, seen.pools[0].capacity[GPU]) == ("a100.local", True, "4")
    assert world.endpoint.admitted == {"alpha": {"first"}}
    assert "alpha" in world.woken


@pytest.mark.parametrize("what", ["nodes", "pods"])
async def test_virtual_node_appears_when_compute_nodes_are_known(
    server: FakeApiServer, client: Client, what: str
) -> None:
    """Earlier, the node would be briefly empty or NotReady. Pods may be listed later."""
    add_compute_cluster(server)
    gate = server.hold("GET", f"/api/v1/{what}", times=2 if what == "pods" else 1)
    async with setting(server, client) as it:
        if what == "nodes":
            await wait_until(lambda: it.link.pods.is_complete)
            assert (await it.serve(A100)).verdict.reason == "ComputeClusterUnknown"
            assert it.node("a100.local") is None
            gate.set()
        assert (await it.ready(A100)).pools[0].ready
        gate.set()
        await wait_until(lambda: it.link.is_trusted)
    patches = [request for request in it.tenant.requests if request.startswith("PATCH") and "/nodes/" in request]
    assert len(patches) == 2, patches


async def test_virtual_node_follows_limit_and_compute_nodes(world: Setting) -> None:
    await world.ready(A100)
    wide = TenantPool(name="a100", limit={GPU: 100})
    await world.serve(wide)
    await wait_until(lambda: (world.node("a100.local") or {})["status"]["allocatable"][GPU] == "16")
    world.compute.store.delete(NODES, "local-0")
    await wait_until(lambda: len(world.link.nodes.store) == 1)
    await world.serve(wide)
    await wait_until(lambda: (world.node("a100.local") or {})["status"]["allocatable"][GPU] == "8")


ZONE = "topology.kubernetes.io/zone"


async def set_pool(world: Setting, **spec: Any) -> None:
    """Set fields of the pool, and wait until the gateway knows them."""
    cluster = world.compute.store.get(COMPUTE_CLUSTERS, "local")
    pool = {"name": "a100", "nodeSelector": {"pool": "a100"}, **spec}
    written = world.compute.store.update(COMPUTE_CLUSTERS, {**cluster, "spec": {"pools": [pool]}}, name="local")

    def version() -> int:
        known = world.computes.clusters.find_cluster("local")
        return int(known.metadata.resource_version) if known is not None else 0

    await wait_until(lambda: version() >= int(written["metadata"]["resourceVersion"]))


async def test_keys_that_a_pool_sets_are_taken_from_its_tenants(world: Setting) -> None:
    await world.ready(A100)

    def keys() -> tuple[str, ...]:
        return world.alpha._sync.scope.tenant.pool_keys

    assert not keys()
    scheduling = {"mode": "external", "schedulerName": "s", "podLabels": {"queue": "q"}, "podAnnotations": {"x/y": "1"}}
    await set_pool(world, scheduling=scheduling)
    await world.serve(A100)
    assert keys() == ("queue", "x/y")
    await set_pool(world)
    await world.serve(A100)
    assert not keys()


async def divide(world: Setting, *zones: str) -> None:
    """Divide the pool by zone, and label its nodes."""
    for number, zone in enumerate(zones):
        node = copy.deepcopy(world.compute.store.get(NODES, f"local-{number}"))
        node["metadata"]["labels"][ZONE] = zone
        world.compute.store.update(NODES, node, name=f"local-{number}")
    await set_pool(world, virtualNodesBy=ZONE)
    await wait_until(lambda: {node.metadata.labels.get(ZONE) for node in world.link.nodes.store.values()} == set(zones))


async def test_divided_pool_has_node_per_value_and_one_limit(world: Setting) -> None:
    await divide(world, "zone-a", "Zone_B")
    wide = TenantPool(name="a100", limit={GPU: 12})
    seen = await world.ready(wide)

    first, second = sorted(pool.node_name for pool in seen.pools)
    assert (first, second.startswith("a100.zone-b.local-")) == ("a100.zone-a.local", True)
    for name, zone in ((first, "zone-a"), (second, "Zone_B")):
        node = world.node(name)
        assert node is not None
        assert node["status"]["allocatable"][GPU] == "8"
        assert node["metadata"]["labels"][ZONE] == zone
        assert node["metadata"]["labels"]["vkgateway.io/pool"] == "a100"
    assert world.node("a100.local") is None


async def test_undivided_node_stays_until_its_last_pod_ends(world: Setting) -> None:
    await world.ready(TenantPool(name="a100"))
    pod = {"metadata": {"name": "old", "namespace": "default"}, "spec": {"nodeName": "a100.local", "containers": []}}
    world.tenant.store.create(PODS, pod)
    await wait_until(lambda: world.alpha.pods.is_occupied("a100.local"))
    await divide(world, "a", "b")
    pool = TenantPool(name="a100")

    seen = await world.ready(pool)
    assert {one.node_name for one in seen.pools} == {"a100.a.local", "a100.b.local", "a100.local"}
    await wait_until(lambda: (world.node("a100.local") or {})["status"]["allocatable"][GPU] == "0")
    assert (world.node("a100.local") or {})["status"]["allocatable"]["pods"] == "0"

    ended = {**pod, "status": {"phase": "Succeeded"}}
    world.tenant.store.update(PODS, ended, name="old", namespace="default", status=True)
    await wait_until(lambda: not world.alpha.pods.is_occupied("a100.local"))
    await world.ready(pool)
    assert world.node("a100.local") is None


async def test_passthrough_resources_are_shown(world: Setting) -> None:
    await set_pool(world, passedThrough=["nvidia.com/gpumem", GPU])
    await world.ready(TenantPool(name="a100"))
    offered = (world.node("a100.local") or {})["status"]["allocatable"]
    assert (offered["nvidia.com/gpumem"], offered[GPU]) == ("1000000000", "16")


async def test_removed_pool_deletes_its_node(world: Setting) -> None:
    await world.ready(A100)
    seen = await world.serve()
    assert world.node("a100.local") is None
    assert seen.verdict.reason == "NoPools"


@pytest.mark.parametrize("comes_back", [False, True])
async def test_failed_node_deletion_is_retried(world: Setting, *, comes_back: bool) -> None:
    pool = TenantPool(name="a100")
    await world.ready(pool)
    world.tenant.fail("DELETE", "/nodes/a100.local", status=503)
    with pytest.raises(errors.ApiError):
        await world.serve()
    assert world.node("a100.local") is not None
    if comes_back:
        await world.ready(pool)
        world.tenant.store.delete(NODES, "a100.local")
        await wait_until(lambda: world.node("a100.local"))
    else:
        await world.ready()
        assert world.node("a100.local") is None


async def test_sweep_deletes_only_nodes_of_lost_pools(world: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkgateway.tenants.runtime._FIRST_SWEEP_SECONDS", 0.01)
    ours = {"type": "virtual-kubelet", "vkgateway.io/compute-cluster": "local"}
    for name, labels in (("old.local", ours), ("own", {"type": "virtual-kubelet"})):
        world.tenant.store.create(NODES, {"kind": "Node", "metadata": {"name": name, "labels": labels}})
    await world.ready(A100)
    await wait_until(lambda: world.node("old.local") is None)
    assert world.node("own") is not None


async def test_missing_pool_is_reported(world: Setting) -> None:
    seen = await world.serve(TenantPool(name="h100"))
    assert (seen.verdict.reason, seen.verdict.is_failure) == ("PoolMissing", True)


async def test_taken_name_is_reported_until_it_is_free(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    record_owner(server, "alpha", "other")
    async with setting(server, client) as it:
        await wait_until(lambda: it.link.is_trusted)
        seen = await it.serve(A100)
        assert (seen.verdict.reason, seen.verdict.is_failure) == ("NameTaken", True)
        assert "compute cluster 'local' has a tenant 'alpha' of another gateway" in seen.verdict.message
        assert it.node("a100.local") is None
        delete_record(server, "alpha")
        assert (await it.ready(A100)).pools[0].ready
        assert recorded_owner(server, "alpha") == "this"


async def test_node_is_not_ready_while_another_gateway_owns_the_tenant(world: Setting) -> None:
    await world.ready(A100)
    uid = (world.node("a100.local") or {})["metadata"]["uid"]
    delete_record(world.compute, "alpha")
    record_owner(world.compute, "alpha", "other")
    await wait_until(lambda: world.link.owners.is_foreign("alpha"))
    seen = await world.serve(A100)
    assert (seen.verdict.reason, seen.pools[0].ready) == ("NameTaken", False)

    def is_not_ready() -> bool:
        node = world.node("a100.local") or {}
        conditions = node["status"]["conditions"]
        message = "another gateway"
        return node["metadata"]["uid"] == uid and any(
            one["type"] == "Ready" and one["status"] == "False" and message in one["message"] for one in conditions
        )

    await wait_until(is_not_ready)


async def test_failed_ownership_is_retried_and_changes_nothing_else(world: Setting) -> None:
    await wait_until(lambda: world.link.is_trusted)
    world.compute.fail("POST", "/configmaps", status=503)
    with pytest.raises(errors.ApiError):
        await world.serve(A100)
    assert (await world.ready(A100)).pools[0].ready
    assert recorded_owner(world.compute, "alpha") == "this"


async def test_unreachable_cluster_makes_node_not_ready_with_same_capacity(world: Setting) -> None:
    await world.ready(A100)
    await world.compute.stop()
    async with asyncio.timeout(patience(15)):
        while (await world.serve(A100)).verdict.reason != "ComputeClusterUnreachable":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)

    def is_not_ready() -> bool:
        conditions = (world.node("a100.local") or {})["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "False" for one in conditions)

    await wait_until(is_not_ready)
    assert (world.node("a100.local") or {})["status"]["allocatable"][GPU] == "4"


def disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disconnect the compute cluster, as with invalid credentials."""
    monkeypatch.setattr(ComputeClusters, "links", property(lambda _: {}))


async def test_node_survives_disconnected_cluster(world: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.ready(A100)
    before, link = world.node("a100.local"), world.link
    assert before is not None
    with monkeypatch.context() as patch:
        disconnect(patch)
        link.reachability.mark_closed()
        seen = await world.serve(A100)
    assert (seen.verdict.reason, seen.verdict.is_failure) == ("ComputeClusterUnreachable", True)
    assert [(pool.node_name, pool.ready) for pool in seen.pools] == [("a100.local", False)]
    link.reachability.set_watching(True, "")
    assert (await world.ready(A100)).pools[0].ready
    after = world.node("a100.local")
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_removed_pool_deletes_its_node_while_cluster_is_disconnected(
    world: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.ready(A100)
    disconnect(monkeypatch)
    await world.serve(A100)
    await world.serve()
    assert world.node("a100.local") is None


async def test_sweep_keeps_nodes_of_disconnected_cluster(world: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkgateway.tenants.runtime._FIRST_SWEEP_SECONDS", 0.01)
    monkeypatch.setattr("vkgateway.tenants.runtime._SWEEP_SECONDS", 0.01)
    disconnect(monkeypatch)
    labels = {"type": "virtual-kubelet", "vkgateway.io/compute-cluster": "local"}
    for name in ("a100.local", "old.local"):
        world.tenant.store.create(NODES, {"kind": "Node", "metadata": {"name": name, "labels": labels}})
    assert (await world.serve(A100)).verdict.reason == "ComputeClusterUnreachable"
    await wait_until(lambda: world.node("old.local") is None)
    await let_pass(0.05)
    assert world.node("a100.local") is not None
    await world.serve()
    await wait_until(lambda: world.node("a100.local") is None)


async def test_sweep_keeps_node_of_cluster_that_connects_meanwhile(
    world: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkgateway.tenants.runtime._FIRST_SWEEP_SECONDS", 0.01)
    removing = world.tenant.hold("DELETE", "/nodes/a-old.local")
    labels = {"type": "virtual-kubelet", "vkgateway.io/compute-cluster": "local"}
    for name in ("a-old.local", "a100.local"):
        world.tenant.store.create(NODES, {"kind": "Node", "metadata": {"name": name, "labels": labels}})
    before = world.node("a100.local")
    assert before is not None
    with monkeypatch.context() as patch:
        disconnect(patch)
        await world.serve(A100)
        await world.tenant.until(lambda: any(request.startswith("DELETE") for request in world.tenant.requests))
    await world.ready(A100)
    removing.set()
    await wait_until(lambda: world.node("a-old.local") is None)
    await let_pass(0.05)
    after = world.node("a100.local")
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.parametrize("comes", ["first", "last"])
async def test_unseen_pool_is_not_reported_by_old_connection(
    world: Setting, comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds with other pools of the same compute cluster."""
    await world.ready(A100)
    disconnect(monkeypatch)
    found = world.computes.clusters.find_cluster("local")
    assert found is not None
    found.spec = ComputeClusterSpec(pools=(*found.spec.pools, Pool(name="b200", node_selector={"pool": "b200"})))
    new = TenantPool(name="b200")
    pools = (new, A100) if comes == "first" else (A100, new)
    seen = await world.serve(*pools)
    assert [pool.node_name for pool in seen.pools] == ["a100.local"]
    assert seen.verdict.reason == "ComputeClusterUnreachable"
    assert world.node("b200.local") is None


async def test_only_pods_with_bound_compute_pod_are_found(world: Setting) -> None:
    await world.ready(A100)
    with pytest.raises(NotFoundError, match="pod default/web does not exist"):
        world.running.find_pod("alpha", "default", "web")
    with pytest.raises(NotFoundError, match="not running"):
        world.running.find_pod("beta", "default", "web")

    world.tenant.store.create(NAMESPACES, {"kind": "Namespace", "metadata": {"name": "default"}})
    spec = {"nodeName": "a100.local", "containers": [{"name": "c", "image": "i"}]}
    world.tenant.store.create(PODS, {"kind": "Pod", "metadata": {"name": "web"}, "spec": spec}, "default")
    await wait_until(lambda: world.compute.store.find(PODS, "web", "alpha--default"))
    below = world.compute.store.get(PODS, "web", "alpha--default")

    assert world.running.placed_on_node("alpha", "") == ("a100.local", []), "it has no node below yet"
    with pytest.raises(NoComputePodError, match="pod default/web has not been started yet"):
        world.running.find_pod("alpha", "default", "web")

    bound = {**below, "spec": {**below["spec"], "nodeName": "local-0"}}
    world.compute.store.update(PODS, bound, name="web", namespace="alpha--default")
    await wait_until(lambda: world.running.placed_on_node("alpha", "a100.local")[1])
    target = world.running.find_pod("alpha", "default", "web")
    assert (target.namespace, target.name, target.uid) == ("alpha--default", "web", below["metadata"]["uid"])
    assert target.tenant_uid == world.tenant.store.get(PODS, "web", "default")["metadata"]["uid"]
    assert target.is_alive()

    [placed] = world.running.placed_on_node("alpha", "a100.local")[1]
    assert (placed.node, placed.namespace, placed.uid) == ("local-0", "alpha--default", target.uid)
    assert (placed.tenant_namespace, placed.tenant_uid) == ("default", target.tenant_uid)
    with pytest.raises(NotFoundError, match="no virtual node"):
        world.running.placed_on_node("alpha", "b100.local")

    ended = {**world.compute.store.get(PODS, "web", "alpha--default"), "status": {"phase": "Failed"}}
    world.compute.store.update(PODS, ended, name="web", namespace="alpha--default", status=True)
    await wait_until(lambda: not target.is_alive())


async def test_renewed_client_certificate_is_admitted(world: Setting) -> None:
    await world.ready(A100)
    world.access = replace(world.access, kubelet_clients=frozenset({"first", "second"}))
    await world.serve(A100)
    assert world.endpoint.admitted == {"alpha": {"first", "second"}}


async def test_pod_list_has_only_pods_on_virtual_nodes(world: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.ready(A100)
    for name, node, phase in (("web", "a100.local", "Running"), ("new", "a100.local", "Pending"), ("other", "x", "")):
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        document = {"kind": "Pod", "metadata": {"name": name}, "spec": spec}
        stored = world.tenant.store.create(PODS, document, "default")
        stored = {**stored, "status": {"phase": phase}}
        world.tenant.store.update(PODS, stored, name=name, namespace="default", status=True)

    async def names(phase: str, node: str = "") -> set[str]:
        return {decode_tenant_pod(item).metadata.name for item in await world.running.list_pods("alpha", node, phase)}

    assert await names("") == {"web", "new"}
    assert await names("Running") == await names("Running", "a100.local") == {"web"}
    with pytest.raises(NotFoundError, match="no virtual node 'x'"):
        await names("", "x")
    with pytest.raises(NotFoundError):
        await world.running.list_pods("beta", "", "")
    monkeypatch.setattr("vkgateway.tenants.pods.PODS_MAX_BYTES", 100)
    with pytest.raises(UnavailableError, match="the pods exceed 100 bytes"):
        await world.running.list_pods("alpha", "", "")


async def test_stop_waits_for_running_work(world: Setting) -> None:
    await world.ready(A100)
    going = asyncio.Event()
    drained = world.engine.wait_drained

    async def drain(name: str) -> None:
        assert world.endpoint.admitted == {}
        going.set()
        await drained(name)

    world.engine.wait_drained = drain  # type: ignore[method-assign]
    await world.runtimes.stop("alpha")
    assert going.is_set()


async def test_stop_deletes_nothing(world: Setting) -> None:
    await world.ready(A100)
    await world.runtimes.stop("alpha")
    assert world.endpoint.admitted == {}
    assert world.node("a100.local") is not None


async def test_failed_runtime_restarts_after_backoff(world: Setting) -> None:
    await world.ready(TenantPool(name="a100"))
    world.alpha.has_failed = True
    for _ in range(3):
        seen = await world.serve(TenantPool(name="a100"))
        assert seen.verdict.reason == "InternalError"
        assert world.endpoint.admitted == {}
    world.clock.passed += 11
    await world.ready(TenantPool(name="a100"))


async def test_node_is_rebuilt_only_after_changes(world: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenant is reconciled every ten seconds."""
    built: list[str] = []
    build = NodeSource.build_node

    def counted(source: NodeSource) -> dict[str, Any]:
        built.append(source.name)
        return build(source)

    await world.ready(A100)
    await world.serve(A100)
    monkeypatch.setattr(NodeSource, "build_node", counted)
    before = -1
    while before != len(built):  # until the events of the start are handled
        before = len(built)
        await let_pass(3 * SETTLE_SECONDS)
    built.clear()
    for _ in range(3):
        await world.serve(A100)
        await let_pass(2 * SETTLE_SECONDS)
    assert built == []
    await world.serve(TenantPool(name="a100", limit={GPU: 2}))
    await wait_until(lambda: built)
