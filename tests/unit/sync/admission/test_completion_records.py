"""Completion records on compute namespaces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.support.waiting import let_pass, wait_until
from tests.unit.sync.scopes import tenant_scope
from tests.unit.sync.world import COMPUTE_NAMESPACE, TENANT, World, start_world
from vkgateway.api.names import GANGS_DONE_ANNOTATION, NAME_ANNOTATION, TENANT_LABEL, UID_ANNOTATION
from vkgateway.api.objects import Meta, NamespaceView
from vkgateway.clusters.link import ComputeLink
from vkgateway.kube.resources import NAMESPACES
from vkgateway.scheduler.service import completion_records as module
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.completions import Completion

GROUP = "default/gang/train"


class Harness:
    """Completion records over one compute cluster with the tenant's namespace."""

    def __init__(self, world: World, link: ComputeLink) -> None:
        self.world = world
        self.wanted: dict[str, dict[str, Completion]] = {}
        self.is_known = True
        self.scope = tenant_scope(link.client, links={"local": link})
        self.records = CompletionRecords(self.scope)

    @property
    def gangs(self) -> Harness:
        return self

    def completions_in(self, _namespace: str) -> dict[str, dict[str, Completion]]:
        return self.wanted

    def written_records(self) -> str:
        found = self.world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)
        return str(found["metadata"]["annotations"].get(GANGS_DONE_ANNOTATION, ""))


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    monkeypatch.setattr(module, "_GATHER", 0.01)
    monkeypatch.setattr(module, "_RETRY", 0.05)
    async with start_world() as world:
        metadata = {
            "name": COMPUTE_NAMESPACE,
            "labels": {TENANT_LABEL: TENANT},
            "annotations": {NAME_ANNOTATION: "default"},
        }
        world.compute_server.store.create(NAMESPACES, {"metadata": metadata})
        client = world.compute_server.client("compute")
        link = ComputeLink("local", client)
        one = Harness(world, link)
        tasks = [asyncio.create_task(link.run()), asyncio.create_task(one.records.run(cast(Any, one)))]
        await wait_until(lambda: link.namespaces.is_complete)
        yield one
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def test_record_is_written_read_and_removed(harness: Harness) -> None:
    harness.wanted = {
        GROUP: {
            "b": Completion("worker", "j1", 5.7),
            "a": Completion("worker", "j1", 6.0),
            "c": Completion("ps", "", 7.0),
        }
    }
    harness.records.mark_changed("default")
    await wait_until(harness.written_records)

    pods = {"": {"ps": {"c": 7}}, "j1": {"worker": {"a": 6, "b": 5}}}
    assert json.loads(harness.written_records()) == {"gang/train": pods}
    await wait_until(lambda: harness.records.load_completions(GROUP))
    assert harness.records.load_completions(GROUP) == harness.wanted[GROUP] | {"b": Completion("worker", "j1", 5.0)}
    assert harness.records.load_completions("default/gang/other") == {}
    assert harness.records.load_completions("elsewhere/gang/train") == {}
    harness.wanted = {}
    harness.records.mark_changed("default")
    await wait_until(lambda: not harness.written_records())


async def test_records_are_written_only_when_complete_and_retried_on_failure(harness: Harness) -> None:
    harness.wanted, harness.is_known = {GROUP: {"a": Completion("", "", 1.0)}}, False
    refused = harness.world.compute_server.fail("PATCH", f"/namespaces/{COMPUTE_NAMESPACE}", status=500)
    harness.records.mark_changed("default")
    await let_pass(0.1)
    assert not refused.hits

    harness.is_known = True
    await wait_until(harness.written_records)
    assert refused.hits


async def test_records_beyond_the_size_limit_are_left_out(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 100)
    harness.wanted = {f"default/gang/g{number}": {"pod": Completion("worker", "", 1.0)} for number in range(9)}
    harness.records.mark_changed("default")
    await wait_until(harness.written_records)

    assert len(harness.written_records()) <= 100
    assert list(json.loads(harness.written_records())) == ["gang/g0", "gang/g1"]


async def test_records_of_an_earlier_namespace_of_the_same_name_are_not_read(harness: Harness) -> None:
    found = harness.world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)
    annotations = {
        NAME_ANNOTATION: "default",
        UID_ANNOTATION: "earlier",
        GANGS_DONE_ANNOTATION: json.dumps({"gang/train": {"": {"worker": {"a": 6}}}}),
    }
    found = found | {"metadata": found["metadata"] | {"annotations": annotations}}
    harness.world.compute_server.store.update(NAMESPACES, found, name=COMPUTE_NAMESPACE)
    await wait_until(lambda: harness.records.load_completions(GROUP))

    for uid, known in (("earlier", True), ("next", False)):
        view = NamespaceView(metadata=Meta(name="default", uid=uid))
        harness.scope.cache.namespaces.store["", "default"] = view
        assert bool(harness.records.load_completions(GROUP)) is known


async def test_unreadable_records_are_ignored(harness: Harness) -> None:
    found = harness.world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)
    found = found | {"metadata": found["metadata"] | {"annotations": {NAME_ANNOTATION: "default"}}}
    found["metadata"]["annotations"][GANGS_DONE_ANNOTATION] = "{"
    harness.world.compute_server.store.update(NAMESPACES, found, name=COMPUTE_NAMESPACE)
    await let_pass(0.05)

    assert harness.records.load_completions(GROUP) == {}
