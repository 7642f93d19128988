"""Who is done, as it is written on compute namespaces and read from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.unit.sync.world import BELOW, TENANT, World, until, world
from vkgateway.kube.resources import NAMESPACES
from vkgateway.model.names import GANGS_DONE_ANNOTATION, NAME_ANNOTATION, TENANT_LABEL
from vkgateway.sync.admission import completion_records as module
from vkgateway.sync.admission.completion_records import CompletionRecords
from vkgateway.sync.admission.completions import Completion
from vkgateway.sync.compute.link import ComputeLink

GROUP = "default/gang/train"


class Made:
    """Records over one compute cluster that holds the tenant's namespace."""

    def __init__(self, here: World, link: ComputeLink) -> None:
        self.here = here
        self.wanted: dict[str, dict[str, Completion]] = {}
        self.is_known = True
        self.records = CompletionRecords(
            TENANT,
            {"local": link},
            who=lambda: self,
        )

    @property
    def gangs(self) -> Made:
        return self

    def completions_in(self, _namespace: str) -> dict[str, dict[str, Completion]]:
        return self.wanted

    def written(self) -> str:
        found = self.here.below.store.get(NAMESPACES, BELOW)
        return str(found["metadata"]["annotations"].get(GANGS_DONE_ANNOTATION, ""))


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Made]:
    monkeypatch.setattr(module, "_GATHER", 0.01)
    monkeypatch.setattr(module, "_RETRY", 0.05)
    async with world() as here:
        metadata = {"name": BELOW, "labels": {TENANT_LABEL: TENANT}, "annotations": {NAME_ANNOTATION: "default"}}
        here.below.store.create(NAMESPACES, {"metadata": metadata})
        client = here.below.client("compute")
        link = ComputeLink("local", client)
        one = Made(here, link)
        tasks = [asyncio.create_task(part.run()) for part in (link, one.records)]
        await until(lambda: link.namespaces.is_complete)
        yield one
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def test_it_is_written_read_and_taken_off(made: Made) -> None:
    made.wanted = {
        GROUP: {
            "b": Completion("worker", "j1", 5.7),
            "a": Completion("worker", "j1", 6.0),
            "c": Completion("ps", "", 7.0),
        }
    }
    made.records.mark_changed("default")
    await until(made.written)

    pods = {"": {"ps": {"c": 7}}, "j1": {"worker": {"a": 6, "b": 5}}}
    assert json.loads(made.written()) == {"gang/train": pods}
    await until(lambda: made.records.load_completions(GROUP))
    assert made.records.load_completions(GROUP) == made.wanted[GROUP] | {"b": Completion("worker", "j1", 5.0)}
    assert made.records.load_completions("default/gang/other") == {}
    assert made.records.load_completions("elsewhere/gang/train") == {}
    made.wanted = {}
    made.records.mark_changed("default")
    await until(lambda: not made.written())


async def test_nothing_is_written_before_all_is_known_and_what_fails_is_tried_again(made: Made) -> None:
    made.wanted, made.is_known = {GROUP: {"a": Completion("", "", 1.0)}}, False
    refused = made.here.below.fail("PATCH", f"/namespaces/{BELOW}", status=500)
    made.records.mark_changed("default")
    await asyncio.sleep(0.1)
    assert not refused.hits

    made.is_known = True
    await until(made.written)
    assert refused.hits


async def test_what_is_too_much_for_one_namespace_is_left_out(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 100)
    made.wanted = {f"default/gang/g{number}": {"pod": Completion("worker", "", 1.0)} for number in range(9)}
    made.records.mark_changed("default")
    await until(made.written)

    assert len(made.written()) <= 100
    assert list(json.loads(made.written())) == ["gang/g0", "gang/g1"]


async def test_what_cannot_be_read_says_nothing(made: Made) -> None:
    found = made.here.below.store.get(NAMESPACES, BELOW)
    found = found | {"metadata": found["metadata"] | {"annotations": {NAME_ANNOTATION: "default"}}}
    found["metadata"]["annotations"][GANGS_DONE_ANNOTATION] = "{"
    made.here.below.store.update(NAMESPACES, found, name=BELOW)
    await asyncio.sleep(0.05)

    assert made.records.load_completions(GROUP) == {}
