"""What stays of a pod that the platform ended: the last lines of its log, and the pod itself for a while."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.world import BELOW, World, until, world
from vkgateway.kube.resources import PODS
from vkgateway.sync.pods import replaced_pods
from vkgateway.sync.views.annotations import LOG_TAILS

LOG = "step 41\nstep 42\n"


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.below.logs[BELOW, "web", "main"] = LOG
        yield made


def owned(here: World, kind: str, api_version: str = "apps/v1") -> None:
    """Name a controller of the pod."""
    pod = copy.deepcopy(here.tenant_pod() or {})
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": api_version, "kind": kind, "name": "web", "uid": "c", "controller": True}
    ]
    here.above.store.update(PODS, pod, name="web", namespace="default")


async def runs(here: World) -> None:
    await here.forwarded()
    here.run()
    await until(lambda: here.phase() == "Running")


async def drained(here: World) -> None:
    """The pod is deleted below, as by a drain of its node, and ends."""
    here.below.store.delete(PODS, "web", BELOW)
    await here.settled()
    here.end(code=143)
    await until(lambda: here.compute_pod() is None)


def terminated(here: World) -> dict[str, Any]:
    (container,) = (here.tenant_pod() or {})["status"]["containerStatuses"]
    return dict(container["state"]["terminated"])


async def test_a_pod_that_is_deleted_below_keeps_the_last_lines_of_its_log(here: World) -> None:
    here.create()
    async with here.gateway():
        await runs(here)
        await drained(here)
        assert terminated(here)["message"] == LOG


async def test_what_was_kept_outlives_the_gateway(here: World) -> None:
    here.create()
    async with here.gateway():
        await runs(here)
        here.below.store.delete(PODS, "web", BELOW)
        await until(lambda: LOG_TAILS in (here.compute_pod() or {})["metadata"]["annotations"])
    here.below.logs.clear()
    async with here.gateway():
        here.end(code=143)
        await until(lambda: here.phase() == "Failed")
        assert terminated(here)["message"] == LOG
    assert LOG_TAILS not in str(here.tenant_pod()), "how it was kept does not show"


async def test_a_log_that_cannot_be_read_holds_nothing_up(here: World) -> None:
    here.create()
    async with here.gateway():
        await runs(here)
        here.below.fail("GET", f"{BELOW}/pods/web/log", status=500, times=100)
        await drained(here)
        assert here.phase() == "Failed"
        assert not terminated(here).get("message")


async def test_the_log_of_a_pod_that_its_tenant_deletes_is_not_read(here: World) -> None:
    here.create()
    async with here.gateway():
        await runs(here)
        here.delete()
        await here.settled()
        here.end(code=143)
        await until(lambda: here.tenant_pod() is None)
    assert not any("/log" in request for request in here.below.requests)


@pytest.mark.parametrize(("kind", "api_version"), [("ReplicaSet", "apps/v1"), ("ReplicationController", "v1")])
async def test_an_ended_pod_goes_after_a_while_where_its_controller_has_made_another(
    here: World, monkeypatch: pytest.MonkeyPatch, kind: str, api_version: str
) -> None:
    monkeypatch.setattr(replaced_pods, "SHOWN_SECONDS", 0.1)
    here.create()
    owned(here, kind, api_version)
    deletion = here.above.hold("DELETE", "/pods/web")
    async with here.gateway():
        await runs(here)
        await drained(here)
        await until(lambda: here.phase() == "Failed")
        deletion.set()
        await until(lambda: here.tenant_pod() is None)


@pytest.mark.parametrize(("kind", "api_version"), [("Job", "batch/v1"), ("ReplicaSet", "example.org/v1"), ("", "")])
async def test_an_ended_pod_stays_where_somebody_may_count_on_it(
    here: World, monkeypatch: pytest.MonkeyPatch, kind: str, api_version: str
) -> None:
    """A Job's failure policy reads it; a pod of nobody's is all that there is to read."""
    monkeypatch.setattr(replaced_pods, "SHOWN_SECONDS", 0.0)
    here.create()
    if kind:
        owned(here, kind, api_version)
    async with here.gateway():
        await runs(here)
        await drained(here)
        await here.settled()
    assert here.phase() == "Failed"


async def test_a_pod_that_failed_by_itself_stays(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_pods, "SHOWN_SECONDS", 0.0)
    here.create()
    owned(here, "ReplicaSet")
    async with here.gateway():
        await runs(here)
        here.end(code=1)
        await until(lambda: here.phase() == "Failed")
        await here.settled()
    assert here.phase() == "Failed"
