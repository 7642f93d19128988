"""Tests of the ComputeCluster controller against fake API servers."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from tests.support.owners import record_owner
from tests.support.waiting import wait_until
from tests.unit.background import in_background
from tests.unit.gateway.conftest import add_compute_cluster, condition, gpu_node
from vkgateway.api.errors import InputError
from vkgateway.api.names import NAME_ANNOTATION, NAMESPACE_ANNOTATION, TENANT_LABEL, UID_ANNOTATION
from vkgateway.clusters import connected_cluster
from vkgateway.clusters.cluster_watches import TRUST
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.controller import FINALIZER, ComputeController, parse_connection
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube.client import Client
from vkgateway.kube.kubeconfig import ClientConfig
from vkgateway.kube.resources import COMPUTE_CLUSTERS, EVENTS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, SECRETS
from vkgateway.runtime.events import EventRecorder


@asynccontextmanager
async def controller(server: FakeApiServer, client: Client, **lookups: Any) -> AsyncIterator[ComputeController]:
    def connect(name: str, connection: ClientConfig | None) -> Client:
        if connection is None:
            return Client(server.url, name=name)
        return Client(connection.server, token=connection.token_source(), name=name)

    computes = ComputeController(
        client,
        clusters=ComputeClusters(client, GatewayIdentity("this")),
        recorder=EventRecorder(client, counts_repeats=False),
        connect=connect,
        on_change=lambda: None,
        **lookups,
    )
    async with in_background(computes.run()):
        yield computes


def is_ready(server: FakeApiServer, name: str = "local") -> bool:
    return bool(condition(server, "Ready", name, tenant=False).get("status") == "True")


async def test_cell_resource_of_pool_is_used(server: FakeApiServer, client: Client) -> None:
    nic = "example.com/nic"
    pool = {"name": "a100", "nodeSelector": {"pool": "a100"}, "cellResource": nic}
    add_compute_cluster(server, pools=[pool])
    async with controller(server, client) as computes:
        await wait_until(lambda: is_ready(server))
        facts = computes.clusters.pool_facts(("local", "a100"))
        assert facts is not None
        assert facts.governed == (nic, "nvidia.com/gpu")


async def test_cluster_is_connected_prepared_and_reported(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    guaranteed = {"nvidia.com/gpu": "3"}
    async with controller(server, client, total_guarantee=lambda _cluster, _pool: guaranteed) as computes:
        await wait_until(lambda: is_ready(server))
        found = server.store.get(COMPUTE_CLUSTERS, "local")

        assert found["metadata"]["finalizers"] == [FINALIZER]
        assert found["status"]["version"] == "v1.36.3"
        (pool,) = found["status"]["pools"]
        assert (pool["nodes"], pool["usableNodes"]) == (2, 2)
        assert pool["allocatable"]["nvidia.com/gpu"] == "16"
        assert pool["guaranteed"] == {"nvidia.com/gpu": "3"}
        assert computes.clusters.links["local"].is_reachable
        facts = computes.clusters.pool_facts(("local", "a100"))
        assert facts is not None
        assert facts.governed == ("nvidia.com/gpu",)
        assert [one.allocatable for one in facts.nodes] == [{"nvidia.com/gpu": 8000}] * 2
        assert computes.clusters.pool_facts(("local", "b200")) is computes.clusters.pool_facts(("east", "a100")) is None
        assert server.store.find(NAMESPACES, "vkgateway-system")
        for name in ("vkgateway-guaranteed", "vkgateway-low"):
            assert server.store.get(PRIORITY_CLASSES, name)["preemptionPolicy"] == "Never"
        await wait_until(lambda: any(event["reason"] == "Ready" for event in server.store.all(EVENTS)))


async def test_invalid_pool_settings_are_reported(server: FakeApiServer, client: Client) -> None:
    pool = {"name": "a100", "nodeSelector": {"pool": "a100"}, "reserve": "101%", "briefRunSeconds": 60}
    add_compute_cluster(server, pools=[pool])
    async with controller(server, client):
        await wait_until(lambda: condition(server, "Ready", "local", tenant=False).get("reason") == "InvalidPool")
        ready = condition(server, "Ready", "local", tenant=False)
        assert ready["status"] == "False"
        assert ready["message"] == (
            "pool 'a100': reserve '101%' is more than the pool has; the most is '100%'; pool 'a100': "
            "briefNoticeSeconds is missing; give both of briefRunSeconds and briefNoticeSeconds, or neither. "
            "The setting has no effect."
        )
        found = server.store.get(COMPUTE_CLUSTERS, "local") | {"spec": {"pools": [{**pool, "reserve": "5%"}]}}
        found["spec"]["pools"][0]["briefNoticeSeconds"] = 5
        server.store.update(COMPUTE_CLUSTERS, found, name="local", namespace="")
        await wait_until(lambda: is_ready(server))


async def test_deleted_prerequisites_are_recreated(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_compute_cluster(server)
    monkeypatch.setattr(connected_cluster, "PREPARE_SECONDS", 0.0)
    async with controller(server, client) as computes:
        await wait_until(lambda: is_ready(server))
        server.store.delete(PRIORITY_CLASSES, "vkgateway-low")
        refused = server.fail("PATCH", "/priorityclasses/", status=500)
        computes.tenants_changed()
        await wait_until(lambda: refused.hits)
        computes.tenants_changed()
        await wait_until(lambda: server.store.find(PRIORITY_CLASSES, "vkgateway-low"))
        assert is_ready(server)


async def test_known_features_are_reset_at_each_check(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_compute_cluster(server)
    monkeypatch.setattr(connected_cluster, "PREPARE_SECONDS", 0.0)
    async with controller(server, client) as computes:
        await wait_until(lambda: is_ready(server))
        known = computes.clusters.links["local"].pods.kept_features
        known.add("ImageVolume")
        computes.tenants_changed()
        await wait_until(lambda: not known)


async def test_pool_status_follows_nodes(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    async with controller(server, client):
        await wait_until(lambda: is_ready(server))
        server.store.create(NODES, gpu_node("third", ready=False))
        await wait_until(lambda: server.store.get(COMPUTE_CLUSTERS, "local")["status"]["pools"][0]["nodes"] == 3)
        pool = server.store.get(COMPUTE_CLUSTERS, "local")["status"]["pools"][0]
        assert (pool["usableNodes"], pool["allocatable"]["nvidia.com/gpu"]) == (2, "16")


async def test_shared_nodes_are_reported_while_pools_overlap(server: FakeApiServer, client: Client) -> None:
    pools = [{"name": "a100", "nodeSelector": {"pool": "a100"}}, {"name": "all"}]
    add_compute_cluster(server, pools=pools)
    async with controller(server, client):
        await wait_until(lambda: condition(server, "PoolsApart", "local", tenant=False).get("status") == "False")
        pools_apart = condition(server, "PoolsApart", "local", tenant=False)
        assert pools_apart["reason"] == "NodesShared"
        assert pools_apart["message"].startswith("pools a100 and all share local-0, local-1: ")
        assert is_ready(server), "what runs there goes on"
        await wait_until(lambda: any(event["reason"] == "NodesShared" for event in server.store.all(EVENTS)))
        apart = [pools[0], {"name": "all", "nodeSelector": {"pool": "h100"}}]
        found = server.store.get(COMPUTE_CLUSTERS, "local") | {"spec": {"pools": apart}}
        server.store.update(COMPUTE_CLUSTERS, found, name="local", namespace="")
        await wait_until(lambda: not condition(server, "PoolsApart", "local", tenant=False))


SECRET = {"namespace": "ops", "name": "east"}


def secret(url: str, *, token: str = "", **metadata: Any) -> dict[str, Any]:
    """Return the Secret with the kubeconfig of the API server at `url`."""
    text = (
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\nusers: [{{name: u, user: {{token: '{token}'}}}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
    )
    data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
    return {"kind": "Secret", "metadata": {"name": SECRET["name"], **metadata}, "data": data}


@asynccontextmanager
async def far_east(server: FakeApiServer) -> AsyncIterator[FakeApiServer]:
    """Separate compute cluster, connected through the Secret with the token `one`."""
    async with FakeApiServer(token="one") as east:
        add_compute_cluster(server, "east", nodes=0, connection={"kubeconfigSecret": SECRET})
        server.store.create(SECRETS, secret(east.url, token="one"), "ops")
        yield east


def change_secret(server: FakeApiServer, computes: ComputeController, document: dict[str, Any]) -> None:
    """Change the Secret and trigger a reconciliation."""
    server.store.update(SECRETS, document, name=SECRET["name"], namespace=SECRET["namespace"])
    computes.tenants_changed()


async def test_new_credentials_are_adopted_without_reconnect(server: FakeApiServer, client: Client) -> None:
    """A new connection would make virtual nodes NotReady until all pods are listed, every hour with some tokens."""
    async with far_east(server) as east, controller(server, client) as computes:
        await wait_until(lambda: is_ready(server, "east"))
        link, turns = computes.clusters.links["east"], list[bool]()
        link.watches.add(TRUST, lambda: turns.append(link.is_reachable))
        east.requests.clear()
        east.token = "two"
        change_secret(server, computes, secret(east.url, token="two"))
        async with asyncio.timeout(patience(30)):
            while await link.client.authorization_headers() != {"Authorization": "Bearer two"}:  # noqa: ASYNC110 - as `until`
                await asyncio.sleep(0.005)
        await wait_until(lambda: is_ready(server, "east"))
        assert computes.clusters.links["east"] is link
        assert (turns, link.pods.relist_count) == ([], 1)
        await link.client.request("GET", "/version")


async def test_refused_credentials_are_reported_and_old_ones_stay(server: FakeApiServer, client: Client) -> None:
    async with far_east(server) as east, controller(server, client) as computes:
        await wait_until(lambda: is_ready(server, "east"))
        link = computes.clusters.links["east"]
        change_secret(server, computes, secret(east.url, token="three"))
        await wait_until(lambda: not is_ready(server, "east"))
        assert "401" in condition(server, "Ready", "east", tenant=False)["message"]
        assert condition(server, "Connected", "east", tenant=False)["status"] == "True"
        assert computes.clusters.links["east"] is link
        assert await link.client.authorization_headers() == {"Authorization": "Bearer one"}
        server.store.delete(COMPUTE_CLUSTERS, "east")  # the old credentials also find the remaining pods
        await wait_until(lambda: server.store.find(COMPUTE_CLUSTERS, "east") is None)


def _asked(server: FakeApiServer, *, since: int, times: int) -> bool:
    """Return whether the Secret was read this many times since a request."""
    return sum("/secrets/east" in request for request in server.requests[since:]) >= times


async def test_changed_annotations_of_secret_have_no_effect(server: FakeApiServer, client: Client) -> None:
    async with far_east(server) as east, controller(server, client) as computes:
        await wait_until(lambda: is_ready(server, "east"))
        link = computes.clusters.links["east"]
        seen = len(server.requests)
        change_secret(server, computes, secret(east.url, token="one", annotations={"checked": "now"}))
        for times in (1, 2):  # the second read follows the effects of the first
            await wait_until(partial(_asked, server, since=seen, times=times))
            computes.tenants_changed()
        assert computes.clusters.links["east"] is link


async def test_missing_secret_is_reported_until_it_exists(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server, "east", connection={"kubeconfigSecret": SECRET})
    async with controller(server, client):
        await wait_until(lambda: condition(server, "Connected", "east", tenant=False))
        assert "Secret ops/east" in condition(server, "Connected", "east", tenant=False)["message"]
        server.store.create(SECRETS, secret(server.url), "ops")
        await wait_until(lambda: is_ready(server, "east"))


async def test_recreated_cluster_gets_complete_status(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    async with controller(server, client):
        await wait_until(lambda: is_ready(server))
        old = copy.deepcopy(server.store.get(COMPUTE_CLUSTERS, "local"))
        server.store.update(COMPUTE_CLUSTERS, {**old, "metadata": {"name": "local", "finalizers": []}}, name="local")
        server.store.delete(COMPUTE_CLUSTERS, "local")
        add_compute_cluster(server, nodes=0)
        await wait_until(
            lambda: FINALIZER in server.store.get(COMPUTE_CLUSTERS, "local")["metadata"].get("finalizers", [])
        )
        await wait_until(lambda: is_ready(server))
        new = server.store.get(COMPUTE_CLUSTERS, "local")
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
        assert (new["status"]["version"], new["status"]["pools"]) == (old["status"]["version"], old["status"]["pools"])


async def test_invalid_secret_keeps_connection(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server, "east", connection={"kubeconfigSecret": SECRET})
    server.store.create(SECRETS, secret(server.url), "ops")
    async with controller(server, client) as computes:
        await wait_until(lambda: is_ready(server, "east"))
        link = computes.clusters.links["east"]
        change_secret(server, computes, secret("https://a..b"))
        await wait_until(lambda: not is_ready(server, "east"))
        assert "not the URL" in condition(server, "Ready", "east", tenant=False)["message"]
        assert condition(server, "Connected", "east", tenant=False)["status"] == "True"
        assert computes.clusters.links["east"] is link
        change_secret(server, computes, secret(server.url.replace("127.0.0.1", "localhost")))
        await wait_until(lambda: is_ready(server, "east"))
        assert computes.clusters.links["east"] is not link


async def test_cluster_is_deleted_only_when_no_tenant_uses_it(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    tenants = ["alpha"]
    async with controller(server, client, tenants_of=lambda _cluster: tenants) as computes:
        await wait_until(lambda: is_ready(server))
        server.store.delete(COMPUTE_CLUSTERS, "local")
        await wait_until(lambda: condition(server, "Ready", "local", tenant=False).get("reason") == "InUse")
        assert "alpha" in condition(server, "Ready", "local", tenant=False)["message"]
        tenants.clear()
        computes.tenants_changed()
        await wait_until(lambda: server.store.find(COMPUTE_CLUSTERS, "local") is None)
        await wait_until(lambda: not computes.clusters.links)


async def test_cluster_is_deleted_after_last_tenant_pod(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    marks = {NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "web", UID_ANNOTATION: "1"}
    metadata = {"name": "web", "labels": {TENANT_LABEL: "alpha"}, "annotations": marks}
    server.store.create(PODS, {"metadata": metadata, "spec": {"containers": []}}, "alpha--default")
    server.store.create(PODS, {"metadata": metadata | {"annotations": {}}, "spec": {"containers": []}}, "strange")
    async with controller(server, client):
        await wait_until(lambda: is_ready(server))
    server.store.delete(COMPUTE_CLUSTERS, "local")
    async with controller(server, client) as computes:
        await wait_until(lambda: condition(server, "Ready", "local", tenant=False).get("reason") == "InUse")
        assert condition(server, "Ready", "local", tenant=False)["message"].endswith("pods left of: alpha")
        assert computes.clusters.links
        server.store.delete(PODS, "web", "alpha--default", grace=0)
        await wait_until(lambda: server.store.find(COMPUTE_CLUSTERS, "local") is None)


async def test_pods_of_another_gateway_don_t_delay_the_deletion(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    record_owner(server, "alpha", "other")
    marks = {NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "web", UID_ANNOTATION: "1"}
    metadata = {"name": "web", "labels": {TENANT_LABEL: "alpha"}, "annotations": marks}
    server.store.create(PODS, {"metadata": metadata, "spec": {"containers": []}}, "alpha--default")
    async with controller(server, client):
        await wait_until(lambda: is_ready(server))
        server.store.delete(COMPUTE_CLUSTERS, "local")
        await wait_until(lambda: server.store.find(COMPUTE_CLUSTERS, "local") is None)
    assert server.store.find(PODS, "web", "alpha--default") is not None


async def test_unreachable_cluster_can_be_deleted(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server, "east", connection={"kubeconfigSecret": {"namespace": "ops", "name": "east"}})
    async with controller(server, client):
        await wait_until(lambda: condition(server, "Connected", "east", tenant=False))
        server.store.delete(COMPUTE_CLUSTERS, "east")
        await wait_until(lambda: server.store.find(COMPUTE_CLUSTERS, "east") is None)


@pytest.mark.parametrize("user", ["exec: {command: sh}", "tokenFile: /etc/shadow", "client-key: /etc/key"])
def test_kubeconfig_in_secret_must_be_self_contained(user: str) -> None:
    text = (
        f"clusters: [{{name: c, cluster: {{server: 'https://x'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
    )
    with pytest.raises(InputError, match="embed the data"):
        parse_connection(text, where="in Secret ops/east")
