"""Reconcilers drop state that is no longer needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import EPOCH, FakeClock
from tests.support.waiting import wait_until
from tests.unit.sync.scopes import tenant_scope
from vkgateway.api.objects import Meta
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.pods.mirror import PodMirror
from vkgateway.kinds.pods.pod_context import PodContext
from vkgateway.kube.client import Client
from vkgateway.kube.errors import ServerError
from vkgateway.kube.resources import EVENTS
from vkgateway.runtime.events import EventRecorder
from vkgateway.runtime.views.pods import decode_tenant_pod

POD = b'{"metadata": {"name": "web", "namespace": "default", "uid": "u1"}, "spec": {"nodeName": "a100.local"}}'


class DeletingClient(Client):
    """Client that answers deletions as prepared, after calling `meanwhile`."""

    def __init__(self, *answers: Exception | None) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = list(answers)
        self.upward: PodMirror | None = None

    async def delete(self, *_args: Any, **_options: Any) -> bytes:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        assert self.upward is not None
        self.upward.forget_pod("u1")  # the watch event preceded the answer
        return b""


def make_mirror(client: DeletingClient) -> PodMirror:
    client.upward = PodMirror(tenant_scope(client))
    return client.upward


def make_context() -> PodContext:
    link = ComputeLink("local", Client("http://127.0.0.1:1"))
    view = decode_tenant_pod(POD)
    return PodContext(key=("default", "web"), link=link, tenant=view, compute=None, binding=None)


async def test_pod_deleted_before_the_answer_is_not_remembered() -> None:
    client = DeletingClient(None)
    upward = make_mirror(client)
    await upward.delete_pod(make_context())
    assert not upward._deleted_uids


async def test_failed_removal_is_retried() -> None:
    client = DeletingClient(ServerError("no", status=500), None)
    upward = make_mirror(client)
    with pytest.raises(ServerError):
        await upward.delete_pod(make_context())
    await upward.delete_pod(make_context())
    assert client.answers == []


async def test_event_dropped_by_the_server_is_written_again() -> None:
    clock = FakeClock(1000.0, origin=EPOCH)
    async with FakeApiServer() as server, server.client() as client:
        recorder = EventRecorder(client, clock=clock)
        pod = Meta(name="web", namespace="default", uid="u1")
        await recorder.emit_event(pod, reason="NameTaken", message="taken")
        (first,) = server.store.all(EVENTS)
        server.store.delete(EVENTS, first["metadata"]["name"], "default")
        clock.seconds += 7200
        await recorder.emit_event(pod, reason="NameTaken", message="taken")
        (second,) = server.store.all(EVENTS)
        assert (second["count"], second["message"]) == (1, "taken")
        clock.seconds += 60
        await recorder.emit_event(pod, reason="NameTaken", message="taken")
        (third,) = server.store.all(EVENTS)
        assert (third["count"], third["metadata"]["uid"]) == (2, second["metadata"]["uid"])


async def test_closed_link_is_not_trusted() -> None:
    async with FakeApiServer() as server, server.client() as client:
        link = ComputeLink("local", client)
        running = asyncio.create_task(link.run())
        await wait_until(lambda: link.is_trusted)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not link.is_trusted
