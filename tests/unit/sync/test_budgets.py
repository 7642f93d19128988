"""PodDisruptionBudgets below follow the tenant's: its counts, its changes and its ends."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.network.test_services import writes
from tests.unit.sync.world import BELOW, World, names, until, world
from vkgateway.kube.resources import DISRUPTION_BUDGETS
from vkgateway.translate.disruption_budgets import NONE_ALLOWED

WEB = {"matchLabels": {"app": "web"}}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def guard(here: World, *, desired: int | None = 2, **spec: Any) -> None:
    """The tenant makes a budget; its controller has counted unless `desired` is None."""
    document: dict[str, Any] = {
        "metadata": {"name": "quorum"},
        "spec": {"maxUnavailable": "50%", "selector": WEB} | spec,
    }
    here.above.store.create(DISRUPTION_BUDGETS, document, "default")
    if desired is not None:
        count(here, desired)


def count(here: World, desired: int) -> None:
    found = copy.deepcopy(here.above.store.get(DISRUPTION_BUDGETS, "quorum", "default"))
    generation = found["metadata"].get("generation", 1)
    found["status"] = {"observedGeneration": generation, "desiredHealthy": desired}
    here.above.store.update(DISRUPTION_BUDGETS, found, name="quorum", namespace="default", status=True)


def below(here: World) -> dict[str, Any]:
    found = here.below.store.find(DISRUPTION_BUDGETS, "quorum", BELOW)
    return found["spec"] if found is not None else {}


async def running(here: World) -> None:
    here.create()
    await here.forwarded()


async def test_a_budget_goes_down_and_follows_what_the_tenant_counts(here: World) -> None:
    guard(here)
    async with here.gateway():
        await running(here)
        await until(lambda: below(here) == {"minAvailable": 2, "selector": WEB})
        count(here, 5)
        await until(lambda: below(here)["minAvailable"] == 5)
        here.above.store.delete(DISRUPTION_BUDGETS, "quorum", "default")
        await until(lambda: names(here.below, DISRUPTION_BUDGETS) == [])


async def test_nothing_may_be_disrupted_before_the_tenant_has_counted(here: World) -> None:
    async with here.gateway():
        await running(here)
        guard(here, desired=None)
        await until(lambda: below(here).get("minAvailable") == NONE_ALLOWED)
        count(here, 1)
        await until(lambda: below(here)["minAvailable"] == 1)


async def test_nothing_is_watched_or_made_before_something_runs(here: World) -> None:
    guard(here)
    async with here.gateway():
        await until(lambda: any("/pods" in request for request in here.above.requests))
        await here.settled()
    assert not any("poddisruptionbudgets" in request for request in here.above.requests)
    assert names(here.below, DISRUPTION_BUDGETS) == []


async def test_what_differs_below_is_mended_and_a_restart_writes_nothing(here: World) -> None:
    guard(here)
    async with here.gateway():
        await running(here)
        await until(lambda: below(here))
        meddled = copy.deepcopy(here.below.store.get(DISRUPTION_BUDGETS, "quorum", BELOW))
        meddled["spec"]["minAvailable"] = 0
        here.below.store.update(DISRUPTION_BUDGETS, meddled, name="quorum", namespace=BELOW)
        await until(lambda: below(here)["minAvailable"] == 2)
        here.below.store.delete(DISRUPTION_BUDGETS, "quorum", BELOW)
        await until(lambda: below(here))
        await here.settled()
    before = writes(here)
    async with here.gateway() as sync:
        await until(lambda: sync.is_complete and sync.budgets.tenant_budgets.is_complete)
        await here.settled()
    assert writes(here) == before


async def test_one_that_was_deleted_while_no_gateway_ran_is_deleted_below(here: World) -> None:
    guard(here)
    async with here.gateway():
        await running(here)
        await until(lambda: below(here))
    here.above.store.delete(DISRUPTION_BUDGETS, "quorum", "default")
    async with here.gateway():
        await until(lambda: names(here.below, DISRUPTION_BUDGETS) == [])


async def test_what_merely_has_the_name_is_left_alone_and_that_is_told(here: World) -> None:
    async with here.gateway():
        await running(here)
        foreign = {"metadata": {"name": "quorum"}, "spec": {"minAvailable": 7}}
        here.below.store.create(DISRUPTION_BUDGETS, foreign, BELOW)
        guard(here)
        await until(lambda: any(reason == "NameTaken" for reason, _ in here.events()))
    assert below(here) == {"minAvailable": 7}


async def test_a_compute_cluster_that_gives_no_right_to_it_runs_pods_all_the_same(here: World) -> None:
    here.below.fail("POST", "/poddisruptionbudgets", status=403, reason="Forbidden", times=1000)
    guard(here)
    async with here.gateway():
        await running(here)
        await until(lambda: any(reason == "ForwardingRefused" for reason, _ in here.events()))


async def test_budgets_that_cannot_be_listed_below_hold_up_no_pod(here: World) -> None:
    here.below.fail("GET", "/poddisruptionbudgets", status=403, reason="Forbidden", times=1000)
    guard(here)
    async with here.gateway():
        await running(here)
