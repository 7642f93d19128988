"""Scheduling modes of pools in the status of a ComputeCluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import wait_until
from tests.unit.gateway.conftest import add_compute_cluster, condition
from tests.unit.gateway.test_compute_controller import controller, is_ready
from vkgateway.api.names import (
    BORROWED_ANNOTATION,
    GATEWAY_LABEL,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    POOL_LABEL,
    TENANT_LABEL,
    UID_ANNOTATION,
)
from vkgateway.clusters.controller import ComputeController
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NAMESPACES, PODS
from vkgateway.scheduler.backends.kueue.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS
from vkgateway.scheduler.backends.names import MODE_LABEL

KUEUE = {"mode": "kueue"}


def pools(**scheduling: Any) -> list[dict[str, Any]]:
    return [{"name": "a100", "nodeSelector": {"pool": "a100"}, "scheduling": scheduling}]


def request_mode(server: FakeApiServer, mode: str) -> None:
    found = server.store.get(COMPUTE_CLUSTERS, "local")
    server.store.update(COMPUTE_CLUSTERS, found | {"spec": {"pools": pools(mode=mode)}}, name="local")


def mode_in_status(server: FakeApiServer) -> str:
    status = server.store.get(COMPUTE_CLUSTERS, "local").get("status") or {}
    return next((str(pool["schedulingMode"]) for pool in status.get("pools") or ()), "")


def mode_in_effect(computes: ComputeController) -> str:
    return computes.clusters.pool_specs()["local"][0].scheduling.mode


def schedulers(server: FakeApiServer) -> dict[str, Any]:
    return condition(server, "SchedulersReady", "local", tenant=False)


def add_admitted_pod(server: FakeApiServer) -> None:
    """Create a compute pod that the scheduler of its pool admitted."""
    if server.store.find(NAMESPACES, "alpha--default") is None:
        server.store.create(NAMESPACES, {"metadata": {"name": "alpha--default", "labels": {TENANT_LABEL: "alpha"}}})
    marks = {
        NAMESPACE_ANNOTATION: "default",
        NAME_ANNOTATION: "web",
        UID_ANNOTATION: "u1",
        BORROWED_ANNOTATION: "false",
    }
    metadata = {
        "name": "web",
        "namespace": "alpha--default",
        "labels": {TENANT_LABEL: "alpha", POOL_LABEL: "a100"},
        "annotations": marks,
    }
    server.store.create(PODS, {"metadata": metadata, "spec": {"nodeName": "local-0", "containers": []}})


async def test_native_pools_have_no_condition(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server)
    async with controller(server, client) as computes:
        await wait_until(lambda: is_ready(server))
        assert schedulers(server) == {}
        await wait_until(lambda: mode_in_status(server) == "native")
        assert mode_in_effect(computes) == "native"


async def test_missing_scheduler_is_reported_with_the_way_out(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server, pools=pools(**KUEUE))
    async with controller(server, client):
        await wait_until(lambda: schedulers(server).get("reason") == "SchedulerMissing")
        assert "install Kueue there, or set scheduling.mode of the pool to native" in schedulers(server)["message"]
        await wait_until(lambda: is_ready(server))


async def test_scheduler_that_answers_is_reported(server: FakeApiServer, client: Client) -> None:
    server.register(CLUSTER_QUEUES)
    server.register(LOCAL_QUEUES)
    server.register(WORKLOADS)
    metadata = {"name": "alpha.a100", "labels": {MODE_LABEL: "kueue", POOL_LABEL: "a100", GATEWAY_LABEL: "this"}}
    active = {"type": "Active", "status": "True"}
    server.store.create(CLUSTER_QUEUES, {"metadata": metadata, "status": {"conditions": [active]}})
    add_compute_cluster(server, pools=pools(**KUEUE))
    async with controller(server, client) as computes:
        await wait_until(lambda: schedulers(server).get("status") == "True")
        assert mode_in_effect(computes) == "kueue"


async def test_mode_changes_when_the_admitted_pods_have_ended(server: FakeApiServer, client: Client) -> None:
    server.register(CLUSTER_QUEUES)
    server.register(LOCAL_QUEUES)
    server.register(WORKLOADS)
    add_compute_cluster(server)
    async with controller(server, client) as computes:
        await wait_until(lambda: mode_in_status(server) == "native")
        add_admitted_pod(server)
        await wait_until(lambda: computes.clusters.links["local"].pods.store)
        request_mode(server, "kueue")
        assert mode_in_effect(computes) == "native"
        await wait_until(lambda: schedulers(server).get("reason") == "ModeChangeRefused")
        assert (mode_in_status(server), mode_in_effect(computes)) == ("native", "native")
        server.store.delete(PODS, "web", "alpha--default", grace=0)
        await wait_until(lambda: not computes.clusters.links["local"].pods.store)
        computes.tenants_changed()
        await wait_until(lambda: schedulers(server).get("status") == "True")
        assert (mode_in_status(server), mode_in_effect(computes)) == ("kueue", "kueue")


async def test_mode_in_effect_outlives_the_gateway(server: FakeApiServer, client: Client) -> None:
    server.register(CLUSTER_QUEUES)
    server.register(LOCAL_QUEUES)
    server.register(WORKLOADS)
    add_compute_cluster(server)
    add_admitted_pod(server)
    async with controller(server, client):
        await wait_until(lambda: mode_in_status(server) == "native")
        request_mode(server, "kueue")
        await wait_until(lambda: schedulers(server).get("reason") == "ModeChangeRefused")
    async with controller(server, client) as computes:
        await wait_until(lambda: "local" in computes.clusters.links)
        assert mode_in_effect(computes) == "native"


async def test_leftovers_of_the_mode_are_deleted(server: FakeApiServer, client: Client) -> None:
    server.register(CLUSTER_QUEUES)
    server.register(LOCAL_QUEUES)
    server.register(WORKLOADS)
    server.store.create(NAMESPACES, {"metadata": {"name": "vkgateway-system"}})
    labels = {MODE_LABEL: "kueue", GATEWAY_LABEL: "this"}
    server.store.create(WORKLOADS, {"metadata": {"name": "w", "namespace": "vkgateway-system", "labels": labels}})
    add_compute_cluster(server)
    async with controller(server, client):
        await wait_until(lambda: not server.store.all(WORKLOADS))


async def test_pool_of_another_scheduler_has_no_cells(server: FakeApiServer, client: Client) -> None:
    add_compute_cluster(server, pools=pools(**KUEUE))
    async with controller(server, client) as computes:
        await wait_until(lambda: is_ready(server))
        facts = computes.clusters.pool_facts(("local", "a100"))
        assert facts is not None
        assert facts.governed == ()
        assert computes.clusters.guaranteed_pods(("local", "a100")) == []


@pytest.mark.parametrize("queue", ["gpus", "{tenant}"])
async def test_invalid_queue_is_reported(server: FakeApiServer, client: Client, queue: str) -> None:
    add_compute_cluster(server, pools=pools(mode="kueue", queue=queue))
    async with controller(server, client):
        await wait_until(lambda: condition(server, "Ready", "local", tenant=False).get("reason") == "InvalidPool")
