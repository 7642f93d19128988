"""Reconciler of Kueue's objects against a fake API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.waiting import let_pass, wait_until
from tests.unit.background import in_background
from vkgateway.api.names import GATEWAY_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube.resources import NAMESPACES
from vkgateway.scheduler.backends import attempt_reconciler, pool_objects
from vkgateway.scheduler.backends.attempt import AttemptState
from vkgateway.scheduler.backends.attempt_reconciler import AttemptReconciler
from vkgateway.scheduler.backends.kueue.kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    KUEUE_KINDS,
    LOCAL_QUEUES,
    TOPOLOGIES,
    WORKLOADS,
    WorkloadView,
)
from vkgateway.scheduler.backends.kueue.names import API_VERSION
from vkgateway.scheduler.backends.mode import ModeResult, Return
from vkgateway.scheduler.backends.names import MODE_LABEL
from vkgateway.scheduler.backends.pool_objects import delete_everything
from vkgateway.scheduler.core.decisions import Decisions

KINDS = (WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES, COHORTS, FLAVORS, TOPOLOGIES)
LABELS = {MODE_LABEL: "kueue", GATEWAY_LABEL: "g1"}
GATEWAY = GatewayIdentity("g1")


class Setup:
    """A reconciler, and its server."""

    def __init__(self, server: FakeApiServer, reconciler: AttemptReconciler[WorkloadView]) -> None:
        self.server = server
        self.reconciler = reconciler
        self.changes = 0

    def apply(self, **fields: Any) -> None:
        self.reconciler.apply(ModeResult(decisions=Decisions(), **{"unsettled_tenants": frozenset(), **fields}))

    def workloads(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.server.store.all(WORKLOADS)]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(rights=Rights.of_compute()) as created:
        for kind in KINDS:
            created.register(kind)
        created.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        yield created


@asynccontextmanager
async def running(server: FakeApiServer) -> AsyncIterator[Setup]:
    async with server.client() as client:
        found: list[Setup] = []

        def count() -> None:
            found[0].changes += 1

        found.append(
            Setup(server, AttemptReconciler(KUEUE_KINDS, ComputeLink("local", client, GATEWAY), on_change=count))
        )
        async with in_background(found[0].reconciler.run()):
            yield found[0]


@pytest.fixture
async def setup(server: FakeApiServer) -> AsyncIterator[Setup]:
    async with running(server) as made:
        await wait_until(lambda: made.reconciler.is_known)
        yield made


def workload(name: str = "a-1") -> Object:
    metadata = {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": LABELS}
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": metadata, "spec": {"priority": 0}}


def queue(name: str = "a.pool", **spec: Any) -> Object:
    metadata = {"name": name, "labels": LABELS}
    return {"apiVersion": API_VERSION, "kind": "ClusterQueue", "metadata": metadata, "spec": spec}


async def test_workload_is_created_once(setup: Setup) -> None:
    setup.apply(creates=(workload(),))
    await wait_until(lambda: "a-1" in setup.reconciler.attempts())
    setup.apply(creates=(workload(),))
    await let_pass(0.05)
    assert setup.workloads() == ["a-1"]
    assert setup.changes > 0


async def test_released_attempt_counts_as_deleted_at_once(setup: Setup) -> None:
    setup.server.store.create(WORKLOADS, {**workload(), "metadata": workload()["metadata"] | {"finalizers": ["x/y"]}})
    await wait_until(setup.reconciler.attempts)
    attempt = setup.reconciler.attempts()["a-1"]
    setup.apply(releases=(attempt,))
    assert setup.reconciler.attempts()["a-1"].state is AttemptState.DELETING
    await wait_until(
        lambda: setup.server.store.get(WORKLOADS, "a-1", SYSTEM_NAMESPACE)["metadata"].get("deletionTimestamp")
    )


async def test_later_cycle_does_not_cancel_a_deletion(setup: Setup) -> None:
    """The later cycle counts the Workload as deleted already."""
    setup.server.store.create(WORKLOADS, workload())
    await wait_until(setup.reconciler.attempts)
    setup.apply(releases=tuple(setup.reconciler.attempts().values()))
    setup.apply()
    await wait_until(lambda: not setup.workloads())


async def test_attempt_in_another_state_is_not_released(setup: Setup) -> None:
    setup.server.store.create(WORKLOADS, workload())
    await wait_until(setup.reconciler.attempts)
    attempt = setup.reconciler.attempts()["a-1"]
    admitted = {**setup.server.store.get(WORKLOADS, "a-1", SYSTEM_NAMESPACE), "spec": {"priority": 5}}
    setup.server.store.update(WORKLOADS, admitted, name="a-1", namespace=SYSTEM_NAMESPACE)
    setup.apply(releases=(attempt,))
    await wait_until(lambda: setup.reconciler.attempts()["a-1"].state is AttemptState.PENDING)
    assert setup.workloads() == ["a-1"]
    assert setup.reconciler.attempts()["a-1"].priority == 5


async def test_refused_write_is_decided_again(setup: Setup) -> None:
    setup.server.fail("POST", "/workloads", status=500, times=1)
    before = setup.changes
    setup.apply(creates=(workload(),))
    await wait_until(lambda: setup.changes > before)
    setup.apply(creates=(workload(),))
    await wait_until(setup.workloads)


async def test_queues_are_written_when_they_change(setup: Setup) -> None:
    setup.apply(pool_objects=(queue(stopPolicy="None"),))
    await wait_until(lambda: setup.server.store.find(CLUSTER_QUEUES, "a.pool"))
    writes = len(setup.server.requests)
    setup.apply(pool_objects=(queue(stopPolicy="None"),))
    await let_pass(0.05)
    assert not [each for each in setup.server.requests[writes:] if each.startswith("PATCH")]
    setup.apply(pool_objects=(queue(stopPolicy="Hold"),))
    await wait_until(lambda: setup.server.store.get(CLUSTER_QUEUES, "a.pool")["spec"] == {"stopPolicy": "Hold"})


async def test_queue_of_others_is_left_alone(setup: Setup) -> None:
    theirs = {"metadata": {"name": "a.pool"}, "spec": {"stopPolicy": "Hold"}}
    setup.server.store.create(CLUSTER_QUEUES, theirs)
    setup.apply(pool_objects=(queue(stopPolicy="None"), queue("b.pool")))
    await wait_until(lambda: setup.server.store.find(CLUSTER_QUEUES, "b.pool"))
    assert setup.server.store.get(CLUSTER_QUEUES, "a.pool")["spec"] == {"stopPolicy": "Hold"}


async def test_changed_queue_is_repaired(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_reconciler, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(pool_objects, "_REPAIR_SECONDS", 0.1)
    async with running(server) as setup:
        await wait_until(lambda: setup.reconciler.is_known)
        setup.apply(pool_objects=(queue(stopPolicy="None"),))
        await wait_until(lambda: server.store.find(CLUSTER_QUEUES, "a.pool"))
        server.store.delete(CLUSTER_QUEUES, "a.pool")
        await wait_until(lambda: server.store.find(CLUSTER_QUEUES, "a.pool"))


async def test_queues_of_removed_tenants_are_deleted_and_others_stay(server: FakeApiServer) -> None:
    server.store.create(CLUSTER_QUEUES, queue("gone.pool"))
    server.store.create(CLUSTER_QUEUES, {**queue("theirs"), "metadata": {"name": "theirs"}})
    async with running(server) as setup:
        setup.apply(pool_objects=(queue(stopPolicy="None"),))
        await wait_until(lambda: not server.store.find(CLUSTER_QUEUES, "gone.pool"))
        assert server.store.find(CLUSTER_QUEUES, "theirs")
        await wait_until(lambda: server.store.find(CLUSTER_QUEUES, "a.pool"))


@pytest.mark.parametrize("unsettled", [None, frozenset({"late"})])
async def test_queues_stay_while_quotas_may_be_unknown(server: FakeApiServer, unsettled: frozenset[str] | None) -> None:
    """A queue in deletion would admit nothing until its last gang has ended."""
    late = queue("late.pool")
    late["metadata"]["labels"] = LABELS | {TENANT_LABEL: "late"}
    server.store.create(CLUSTER_QUEUES, late)
    server.store.create(CLUSTER_QUEUES, queue("gone.pool"))
    async with running(server) as setup:
        setup.apply(pool_objects=(queue(),), unsettled_tenants=unsettled)
        await wait_until(lambda: server.store.find(CLUSTER_QUEUES, "a.pool"))
        if unsettled is not None:
            await wait_until(lambda: not server.store.find(CLUSTER_QUEUES, "gone.pool"))
        await let_pass(0.05)
        assert server.store.find(CLUSTER_QUEUES, "late.pool")


async def test_kind_installed_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_reconciler, "_DISCOVERY_SECONDS", 0.05)
    async with FakeApiServer(rights=Rights.of_compute()) as server, running(server) as setup:
        await let_pass(0.1)
        assert not setup.reconciler.is_known
        for kind in KINDS:
            server.register(kind)
        await wait_until(lambda: setup.reconciler.is_known)


async def test_everything_of_the_gateway_is_deleted_after_the_last_pool_left(server: FakeApiServer) -> None:
    server.store.create(WORKLOADS, workload())
    server.store.create(CLUSTER_QUEUES, queue())
    server.store.create(CLUSTER_QUEUES, {**queue("theirs"), "metadata": {"name": "theirs"}})
    async with server.client() as client:
        await delete_everything(KUEUE_KINDS, ComputeLink("local", client, GATEWAY))
    assert not server.store.all(WORKLOADS)
    assert [each["metadata"]["name"] for each in server.store.all(CLUSTER_QUEUES)] == ["theirs"]


async def test_cluster_without_kueue_has_nothing_to_delete() -> None:
    async with FakeApiServer(rights=Rights.of_compute()) as server, server.client() as client:
        await delete_everything(KUEUE_KINDS, ComputeLink("local", client, GATEWAY))
        assert len(server.requests) == 1


async def test_objects_of_another_gateway_are_left_alone(server: FakeApiServer) -> None:
    """Its Workloads are neither seen nor deleted, and its queues are neither changed nor deleted."""
    other = {MODE_LABEL: "kueue", GATEWAY_LABEL: "g2"}
    theirs, cohort = workload("theirs"), queue("shared")
    theirs["metadata"]["labels"] = cohort["metadata"]["labels"] = other
    server.store.create(WORKLOADS, theirs)
    server.store.create(CLUSTER_QUEUES, cohort | {"spec": {"stopPolicy": "Hold"}})
    async with running(server) as setup:
        setup.apply(pool_objects=(queue("shared", stopPolicy="None"), queue()), creates=(workload(),))
        await wait_until(lambda: server.store.find(CLUSTER_QUEUES, "a.pool"))
        await wait_until(setup.reconciler.attempts)
        assert list(setup.reconciler.attempts()) == ["a-1"]
        assert server.store.get(WORKLOADS, "a-1", SYSTEM_NAMESPACE)["metadata"]["labels"][GATEWAY_LABEL] == "g1"
        await delete_everything(KUEUE_KINDS, setup.reconciler.link)
        assert server.store.find(WORKLOADS, "theirs", SYSTEM_NAMESPACE)
        assert server.store.get(CLUSTER_QUEUES, "shared")["spec"] == {"stopPolicy": "Hold"}
        assert not server.store.find(CLUSTER_QUEUES, "a.pool")


async def test_nothing_is_deleted_while_the_gateways_id_is_unknown(server: FakeApiServer) -> None:
    server.store.create(WORKLOADS, workload())
    async with server.client() as client:
        await delete_everything(KUEUE_KINDS, ComputeLink("local", client, GatewayIdentity()))
    assert server.store.all(WORKLOADS)


async def test_gang_that_ended_before_it_was_marked_as_ready_is_no_fault(setup: Setup) -> None:
    setup.server.store.create(WORKLOADS, workload())
    await wait_until(setup.reconciler.attempts)
    attempt = setup.reconciler.attempts()["a-1"]
    setup.server.store.delete(WORKLOADS, "a-1", namespace=SYSTEM_NAMESPACE)
    with capture_logs() as lines:
        setup.apply(ready=(attempt,))
        setup.apply(creates=(workload(),))
        await wait_until(setup.workloads)
    assert not [line for line in lines if line["log_level"] == "warning"]


async def test_returned_slots_do_not_undo_other_parts_of_the_status(setup: Setup) -> None:
    setup.server.store.create(WORKLOADS, workload())
    await wait_until(setup.reconciler.attempts)
    attempt = setup.reconciler.attempts()["a-1"]
    setup.apply(ready=(attempt,))
    await wait_until(lambda: setup.reconciler.attempts()["a-1"].is_ready)
    setup.apply(returns=(Return(attempt, {"s1": 1, "s2": 0}),))
    await wait_until(lambda: setup.reconciler.attempts()["a-1"].returned)
    assert setup.reconciler.attempts()["a-1"].returned == {"s1": 1, "s2": 0}
    assert setup.reconciler.attempts()["a-1"].is_ready
    managers = [query for request in setup.server.requests for query in request.split("?")[1:] if "force" in query]
    assert ["returned-slots" in manager for manager in managers] == [False, True]
