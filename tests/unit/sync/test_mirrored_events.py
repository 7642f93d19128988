"""What a kubelet tells of a compute pod reaches the tenant: cleaned, once, counted, bounded, and of its pods only."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.sync.world import BELOW, COMPUTE_NODE, NODE, World, until, world
from vkgateway.kube.resources import EVENTS
from vkgateway.model.times import render_time
from vkgateway.sync import event_mirror
from vkgateway.sync.event_mirror import EventMirror

Document = dict[str, Any]


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def tell(here: World, name: str, message: str, *, of: Document, source: str = "kubelet", age: float = 0.0) -> Document:
    """An event below about a compute pod."""
    metadata = of["metadata"]
    stamp = render_time(datetime.fromtimestamp(here.clock() - age, UTC))
    event = {
        "kind": "Event",
        "metadata": {"name": name, "namespace": BELOW},
        "involvedObject": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "fieldPath": "spec.containers{main}",
        },
        "reason": "BackOff",
        "message": message,
        "type": "Warning",
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": source, "host": COMPUTE_NODE},
    }
    return here.below.store.create(EVENTS, event, BELOW)


def count(here: World, event: Document, number: int) -> None:
    changed = copy.deepcopy(here.below.store.get(EVENTS, event["metadata"]["name"], BELOW)) | {"count": number}
    here.below.store.update(EVENTS, changed, name=event["metadata"]["name"], namespace=BELOW)


def told(here: World) -> list[Document]:
    return [event for event in here.above.store.all(EVENTS) if event["reportingComponent"] == "kubelet"]


async def running(here: World) -> Document:
    here.create()
    await here.forwarded()
    here.run()
    await until(lambda: here.phase() == "Running")
    found = here.compute_pod()
    assert found is not None
    return found


async def test_an_event_comes_up_cleaned_and_as_of_the_tenants_own_pod(here: World) -> None:
    async with here.gateway():
        below = await running(here)
        uid = below["metadata"]["uid"]
        tell(here, "web.1", f"Back-off restarting main in pod web_{BELOW}({uid}) on {COMPUTE_NODE}", of=below)
        (event,) = await until(lambda: told(here))
    above = here.tenant_pod()
    assert above is not None
    own = above["metadata"]["uid"]
    assert event["involvedObject"]["uid"] == own
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert event["message"] == f"Back-off restarting main in pod web_default({own}) on {NODE}"
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "BackOff", 1)
    assert event["source"] == {"component": "kubelet", "host": NODE}
    text = json.dumps(event)
    assert not [hidden for hidden in (COMPUTE_NODE, BELOW, uid) if hidden in text]


async def test_addresses_of_the_host_are_no_more_told_than_its_name(here: World) -> None:
    said = "failed to pull image: read tcp 10.9.9.9:39482->192.0.2.7:443: i/o timeout"
    async with here.gateway():
        tell(here, "web.1", said, of=await running(here))
        (event,) = await until(lambda: told(here))
    assert event["message"] == said.replace("10.9.9.9", NODE)


async def test_a_repeated_event_is_counted_and_stays_one_over_a_restart(here: World) -> None:
    async with here.gateway():
        event = tell(here, "web.1", "Back-off", of=await running(here))
        await until(lambda: told(here))
        count(here, event, 5)
        await until(lambda: told(here)[0]["count"] == 5)
        await here.settled()
    async with here.gateway():
        await here.settled()
        count(here, event, 6)
        await until(lambda: told(here)[0]["count"] == 6)
    assert len(told(here)) == 1


async def test_only_kubelets_are_heard_and_only_of_pods_that_stand_for_the_tenants(here: World) -> None:
    async with here.gateway():
        below = await running(here)
        tell(here, "web.s", f"assigned to {COMPUTE_NODE}, by rival", of=below, source="default-scheduler")
        earlier = copy.deepcopy(below)
        earlier["metadata"]["uid"] = "of an earlier pod of that name"
        tell(here, "web.e", "Started", of=earlier)
        stranger = {"metadata": {"name": "stranger", "namespace": BELOW, "uid": "u"}}
        tell(here, "stranger.1", "Started", of=stranger, age=60)
        tell(here, "web.old", "long ago", of=below, age=3600)
        tell(here, "web.1", "Pulled", of=below)
        await until(lambda: told(here))
        await here.settled()
    assert [event["message"] for event in told(here)] == ["Pulled"]


async def test_what_came_while_the_gateway_was_down_is_told(here: World) -> None:
    async with here.gateway():
        below = await running(here)
        await here.settled()
    tell(here, "web.1", "Killing", of=below)
    async with here.gateway():
        await until(lambda: told(here))


async def test_a_pods_events_are_bounded(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_mirror, "_BURST", 3.0)
    monkeypatch.setattr(event_mirror, "_EVERY", 3600.0)
    async with here.gateway():
        event = tell(here, "web.1", "Back-off", of=await running(here))
        for number in range(2, 8):
            count(here, event, number)
            await here.settled()
        writes = [one for one in here.above.requests if "/events" in one and one.startswith(("POST", "PATCH"))]
    assert len(writes) == 3


async def test_the_last_count_comes_when_there_is_room_again(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_mirror, "_BURST", 1.0)
    monkeypatch.setattr(event_mirror, "_EVERY", 0.2)
    async with here.gateway():
        event = tell(here, "web.1", "Back-off", of=await running(here))
        await until(lambda: told(here))
        count(here, event, 7)
        await until(lambda: told(here)[0]["count"] == 7)


def test_an_allowance_fills_up_again_and_no_further() -> None:
    now = 0.0
    events = EventMirror("alpha", None, None, clock=lambda: now)  # type: ignore[arg-type]
    assert [events._take_allowance("uid") for _ in range(21)] == [0.0] * 20 + [15.0]
    now = 15.0
    assert [events._take_allowance("uid"), events._take_allowance("uid")] == [0.0, 15.0]
    now = 10_000.0
    assert [events._take_allowance("uid") for _ in range(21)].count(0.0) == 20
