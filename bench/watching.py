"""Watches of the load's pods, as narrow as can be: the load generator shares the machine with what it measures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from bench.pods import RUN_LABEL
from bench.timeline import Timeline, now
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS
from vkgateway.kube.watchstream import LineSplitter, split_event
from vkgateway.model.errors import UnavailableError


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str
    namespace: str = ""
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""


class _Condition(msgspec.Struct, gc=False):
    type: str
    status: str


class _Status(msgspec.Struct, gc=False):
    phase: str = ""
    conditions: tuple[_Condition, ...] = ()


class SeenPod(msgspec.Struct, gc=False):
    """What a watch tells of a pod."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def ready(self) -> bool:
        """Whether its condition says so."""
        return any(entry.type == "Ready" and entry.status == "True" for entry in self.status.conditions)


_decode = msgspec.json.Decoder(SeenPod).decode

Where = Callable[[SeenPod], str | None]
"""Names the place of a pod; None where it is no concern of the run."""


@contextlib.asynccontextmanager
async def watching(clients: Sequence[tuple[Client, Where]], *, run: str, timeline: Timeline) -> AsyncIterator[None]:
    """Watch a run's pods at each client, and mark what is seen, for as long as the block lasts.

    A watch that ends before its time is an error: what it missed would be counted wrongly.
    """
    opened = [asyncio.Event() for _ in clients]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_watch(client, place, run=run, timeline=timeline, opened=event))
            for (client, place), event in zip(clients, opened, strict=True)
        ]
        for event in opened:
            await event.wait()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _watch(client: Client, place: Where, *, run: str, timeline: Timeline, opened: asyncio.Event) -> None:
    selector = f"{RUN_LABEL}={run}"
    page = await client.list_all(PODS, label_selector=selector)
    params: dict[str, str | int | bool] = {
        "watch": True,
        "labelSelector": selector,
        "resourceVersion": page.metadata.resource_version,
        "timeoutSeconds": 3600,
    }
    splitter = LineSplitter()
    async with client.stream("GET", PODS.path(), params) as response:
        opened.set()
        while chunk := await response.content.readany():
            when = now()
            for line in splitter.feed(chunk):
                _take(line, place, timeline, when)
    raise UnavailableError(f"the watch at {client.name} ended")


def _take(line: bytes, place: Where, timeline: Timeline, when: float) -> None:
    kind, body = split_event(line)
    if kind in ("BOOKMARK", "ERROR"):
        raise UnavailableError(f"unexpected watch event: {body[:200]!r}")
    pod = _decode(body)
    where = place(pod)
    if where is None:
        return
    key = where, pod.metadata.name
    if kind == "DELETED":
        timeline.mark("gone", key, when)
        return
    timeline.mark("seen", key, when)
    if pod.spec.node_name:
        timeline.mark("bound", key, when)
    if pod.ready:
        timeline.mark("ready", key, when)
    if pod.status.phase in ("Succeeded", "Failed"):
        timeline.mark("ended", key, when)
    if pod.metadata.deletion_timestamp:
        timeline.mark("deleting", key, when)
