"""Kubelet events about compute pods are mirrored to the tenant: cleaned, deduplicated, counted and rate-limited."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.fakes.clock import EPOCH, FakeClock
from tests.support.waiting import wait_until
from tests.unit.sync.scopes import tenant_scope
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, NODE, World, start_world
from vkgateway.api.times import render_time
from vkgateway.kinds.events import reconciler as event_mirror
from vkgateway.kinds.events.reconciler import EventMirror
from vkgateway.kube.client import Client
from vkgateway.kube.resources import EVENTS

Document = dict[str, Any]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def emit_event(
    world: World,
    name: str,
    message: str,
    *,
    of: Document,
    source: str = "kubelet",
    age: float = 0.0,
    container: str = "main",
) -> Document:
    """Create an event about a compute pod."""
    metadata = of["metadata"]
    stamp = render_time(world.clock.now() - timedelta(seconds=age))
    event = {
        "kind": "Event",
        "metadata": {"name": name, "namespace": COMPUTE_NAMESPACE},
        "involvedObject": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "fieldPath": f"spec.containers{{{container}}}",
        },
        "reason": "BackOff",
        "message": message,
        "type": "Warning",
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": source, "host": COMPUTE_NODE},
    }
    return world.compute_server.store.create(EVENTS, event, COMPUTE_NAMESPACE)


def set_count(world: World, event: Document, number: int) -> None:
    changed = copy.deepcopy(world.compute_server.store.get(EVENTS, event["metadata"]["name"], COMPUTE_NAMESPACE)) | {
        "count": number
    }
    world.compute_server.store.update(EVENTS, changed, name=event["metadata"]["name"], namespace=COMPUTE_NAMESPACE)


def tenant_events(world: World) -> list[Document]:
    return [event for event in world.tenant_server.store.all(EVENTS) if event["reportingComponent"] == "kubelet"]


async def run_pod(world: World) -> Document:
    world.create_pod()
    await world.wait_forwarded()
    world.run_pod()
    await wait_until(lambda: world.pod_phase() == "Running")
    found = world.compute_pod()
    assert found is not None
    return found


async def test_event_is_mirrored_to_the_tenant_pod_with_cleaned_names(world: World) -> None:
    async with world.run_gateway():
        compute_pod = await run_pod(world)
        uid = compute_pod["metadata"]["uid"]
        emit_event(
            world,
            "web.1",
            f"Back-off restarting main in pod web_{COMPUTE_NAMESPACE}({uid}) on {COMPUTE_NODE}",
            of=compute_pod,
        )
        (event,) = await wait_until(lambda: tenant_events(world))
    tenant_pod = world.tenant_pod()
    assert tenant_pod is not None
    own = tenant_pod["metadata"]["uid"]
    assert event["involvedObject"]["uid"] == own
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert event["message"] == f"Back-off restarting main in pod web_default({own}) on {NODE}"
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "BackOff", 1)
    assert event["source"] == {"component": "kubelet", "host": NODE}
    text = json.dumps(event)
    assert not [hidden for hidden in (COMPUTE_NODE, COMPUTE_NAMESPACE, uid) if hidden in text]


async def test_event_about_a_container_that_the_compute_cluster_added_is_not_mirrored(world: World) -> None:
    async with world.run_gateway():
        compute_pod = await run_pod(world)
        emit_event(world, "web.1", "Started container agent", of=compute_pod, container="agent")
        emit_event(world, "web.2", "Started container main", of=compute_pod)
        await wait_until(lambda: tenant_events(world))
        await world.wait_settled()
    assert [event["message"] for event in tenant_events(world)] == ["Started container main"]


async def test_host_addresses_are_removed_like_host_names(world: World) -> None:
    message = "failed to pull image: read tcp 10.9.9.9:39482->192.0.2.7:443: i/o timeout"
    async with world.run_gateway():
        emit_event(world, "web.1", message, of=await run_pod(world))
        (event,) = await wait_until(lambda: tenant_events(world))
    assert event["message"] == message.replace("10.9.9.9", NODE)


async def test_repeated_event_is_counted_and_stays_one_after_a_restart(world: World) -> None:
    async with world.run_gateway():
        event = emit_event(world, "web.1", "Back-off", of=await run_pod(world))
        await wait_until(lambda: tenant_events(world))
        set_count(world, event, 5)
        await wait_until(lambda: tenant_events(world)[0]["count"] == 5)
        await world.wait_settled()
    async with world.run_gateway():
        await world.wait_settled()
        set_count(world, event, 6)
        await wait_until(lambda: tenant_events(world)[0]["count"] == 6)
    assert len(tenant_events(world)) == 1


async def test_only_kubelet_events_about_tenant_pods_are_mirrored(world: World) -> None:
    async with world.run_gateway():
        compute_pod = await run_pod(world)
        emit_event(world, "web.s", f"assigned to {COMPUTE_NODE}, by rival", of=compute_pod, source="default-scheduler")
        earlier = copy.deepcopy(compute_pod)
        earlier["metadata"]["uid"] = "of an earlier pod of that name"
        emit_event(world, "web.e", "Started", of=earlier)
        stranger = {"metadata": {"name": "stranger", "namespace": COMPUTE_NAMESPACE, "uid": "u"}}
        emit_event(world, "stranger.1", "Started", of=stranger, age=60)
        emit_event(world, "web.old", "long ago", of=compute_pod, age=3600)
        emit_event(world, "web.1", "Pulled", of=compute_pod)
        await wait_until(lambda: tenant_events(world))
        await world.wait_settled()
    assert [event["message"] for event in tenant_events(world)] == ["Pulled"]


async def test_events_during_an_outage_are_mirrored(world: World) -> None:
    async with world.run_gateway():
        compute_pod = await run_pod(world)
        await world.wait_settled()
    emit_event(world, "web.1", "Killing", of=compute_pod)
    async with world.run_gateway():
        await wait_until(lambda: tenant_events(world))


async def test_events_per_pod_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_mirror, "_BURST", 3.0)
    monkeypatch.setattr(event_mirror, "_EVERY", 3600.0)
    async with world.run_gateway():
        event = emit_event(world, "web.1", "Back-off", of=await run_pod(world))
        for number in range(2, 8):
            set_count(world, event, number)
            await world.wait_settled()
        writes = [one for one in world.tenant_server.requests if "/events" in one and one.startswith(("POST", "PATCH"))]
    assert len(writes) == 3


async def test_last_count_is_mirrored_when_the_limit_permits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_mirror, "_BURST", 1.0)
    monkeypatch.setattr(event_mirror, "_EVERY", 0.2)
    async with world.run_gateway():
        event = emit_event(world, "web.1", "Back-off", of=await run_pod(world))
        await wait_until(lambda: tenant_events(world))
        set_count(world, event, 7)
        await wait_until(lambda: tenant_events(world)[0]["count"] == 7)


def test_event_allowance_refills_up_to_its_maximum() -> None:
    clock = FakeClock(origin=EPOCH)
    events = EventMirror(tenant_scope(Client("http://127.0.0.1:1"), clock=clock))
    assert [events._take_allowance("uid") for _ in range(21)] == [0.0] * 20 + [15.0]
    clock.seconds = 15.0
    assert [events._take_allowance("uid"), events._take_allowance("uid")] == [0.0, 15.0]
    clock.seconds = 10_000.0
    assert [events._take_allowance("uid") for _ in range(21)].count(0.0) == 20
