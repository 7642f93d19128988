"""Compute PodDisruptionBudgets follow the tenant's counts, changes and deletions."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.network.test_services import count_writes
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, object_names, start_world
from vkgateway.kinds.budgets.reconciler import DisruptionBudgetReconciler
from vkgateway.kinds.budgets.translation import NONE_ALLOWED
from vkgateway.kube.resources import DISRUPTION_BUDGETS

WEB = {"matchLabels": {"app": "web"}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def create_budget(world: World, *, desired: int | None = 2, **spec: Any) -> None:
    """Create a budget of the tenant; its controller has counted unless `desired` is None."""
    document: dict[str, Any] = {
        "metadata": {"name": "quorum"},
        "spec": {"maxUnavailable": "50%", "selector": WEB} | spec,
    }
    world.tenant_server.store.create(DISRUPTION_BUDGETS, document, "default")
    if desired is not None:
        set_counts(world, desired)


def set_counts(world: World, desired: int) -> None:
    found = copy.deepcopy(world.tenant_server.store.get(DISRUPTION_BUDGETS, "quorum", "default"))
    generation = found["metadata"].get("generation", 1)
    found["status"] = {"observedGeneration": generation, "desiredHealthy": desired}
    world.tenant_server.store.update(DISRUPTION_BUDGETS, found, name="quorum", namespace="default", status=True)


def compute_budget(world: World) -> dict[str, Any]:
    found = world.compute_server.store.find(DISRUPTION_BUDGETS, "quorum", COMPUTE_NAMESPACE)
    return found["spec"] if found is not None else {}


async def run_pod(world: World) -> None:
    world.create_pod()
    await world.wait_forwarded()


async def test_budget_is_forwarded_and_follows_the_tenants_counts(world: World) -> None:
    create_budget(world)
    async with world.run_gateway():
        await run_pod(world)
        await wait_until(lambda: compute_budget(world) == {"minAvailable": 2, "selector": WEB})
        set_counts(world, 5)
        await wait_until(lambda: compute_budget(world)["minAvailable"] == 5)
        world.tenant_server.store.delete(DISRUPTION_BUDGETS, "quorum", "default")
        await wait_until(lambda: object_names(world.compute_server, DISRUPTION_BUDGETS) == [])


async def test_no_disruption_is_permitted_before_the_tenant_has_counted(world: World) -> None:
    async with world.run_gateway():
        await run_pod(world)
        create_budget(world, desired=None)
        await wait_until(lambda: compute_budget(world).get("minAvailable") == NONE_ALLOWED)
        set_counts(world, 1)
        await wait_until(lambda: compute_budget(world)["minAvailable"] == 1)


async def test_budgets_are_not_watched_or_created_without_pods(world: World) -> None:
    create_budget(world)
    async with world.run_gateway():
        await wait_until(lambda: any("/pods" in request for request in world.tenant_server.requests))
        await world.wait_settled()
    assert not any("poddisruptionbudgets" in request for request in world.tenant_server.requests)
    assert object_names(world.compute_server, DISRUPTION_BUDGETS) == []


async def test_changed_compute_budget_is_repaired_and_restart_writes_nothing(world: World) -> None:
    create_budget(world)
    async with world.run_gateway():
        await run_pod(world)
        await wait_until(lambda: compute_budget(world))
        meddled = copy.deepcopy(world.compute_server.store.get(DISRUPTION_BUDGETS, "quorum", COMPUTE_NAMESPACE))
        meddled["spec"]["minAvailable"] = 0
        world.compute_server.store.update(DISRUPTION_BUDGETS, meddled, name="quorum", namespace=COMPUTE_NAMESPACE)
        await wait_until(lambda: compute_budget(world)["minAvailable"] == 2)
        world.compute_server.store.delete(DISRUPTION_BUDGETS, "quorum", COMPUTE_NAMESPACE)
        await wait_until(lambda: compute_budget(world))
        await world.wait_settled()
    before = count_writes(world)
    async with world.run_gateway() as sync:
        reconciler = sync.reconcilers.kinds["poddisruptionbudgets"]
        assert isinstance(reconciler, DisruptionBudgetReconciler)
        await wait_until(lambda: sync.is_complete and reconciler.tenant_budgets.is_complete)
        await world.wait_settled()
    assert count_writes(world) == before


async def test_budget_deleted_during_an_outage_is_deleted_in_the_compute_cluster(world: World) -> None:
    create_budget(world)
    async with world.run_gateway():
        await run_pod(world)
        await wait_until(lambda: compute_budget(world))
    world.tenant_server.store.delete(DISRUPTION_BUDGETS, "quorum", "default")
    async with world.run_gateway():
        await wait_until(lambda: object_names(world.compute_server, DISRUPTION_BUDGETS) == [])


async def test_foreign_object_of_that_name_is_left_alone_and_reported(world: World) -> None:
    async with world.run_gateway():
        await run_pod(world)
        foreign = {"metadata": {"name": "quorum"}, "spec": {"minAvailable": 7}}
        world.compute_server.store.create(DISRUPTION_BUDGETS, foreign, COMPUTE_NAMESPACE)
        create_budget(world)
        await wait_until(lambda: any(reason == "NameTaken" for reason, _ in world.events()))
    assert compute_budget(world) == {"minAvailable": 7}


async def test_pods_run_without_permission_for_budgets(world: World) -> None:
    world.compute_server.fail("POST", "/poddisruptionbudgets", status=403, reason="Forbidden", times=1000)
    create_budget(world)
    async with world.run_gateway():
        await run_pod(world)
        await wait_until(lambda: any(reason == "ForwardingRefused" for reason, _ in world.events()))


async def test_unlistable_budgets_block_no_pod(world: World) -> None:
    world.compute_server.fail("GET", "/poddisruptionbudgets", status=403, reason="Forbidden", times=1000)
    create_budget(world)
    async with world.run_gateway():
        await run_pod(world)
