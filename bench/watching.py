"""Minimal watches of the load's pods, because the load generator shares the machine with the measured system."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from bench.pods import RUN_LABEL
from bench.timeline import Timeline, now
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import LineSplitter, split_event
from vkgateway.kube.resources import PODS


class _Meta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str
    name: str = ""
    namespace: str = ""
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    scheduling_gates: tuple[object, ...] = ()


class _Condition(msgspec.Struct, gc=False):
    type: str
    status: str


class _Status(msgspec.Struct, gc=False):
    phase: str = ""
    conditions: tuple[_Condition, ...] = ()


class SeenPod(msgspec.Struct, gc=False):
    """Pod fields that a watch decodes."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is true."""
        return any(entry.type == "Ready" and entry.status == "True" for entry in self.status.conditions)


decode = msgspec.json.Decoder(SeenPod).decode

PlaceOf = Callable[[SeenPod], str | None]
"""Function that returns the place of a pod, or None if the pod does not belong to the run."""


@contextlib.asynccontextmanager
async def watch_pods(clients: Sequence[tuple[Client, PlaceOf]], *, run: str, timeline: Timeline) -> AsyncIterator[None]:
    """Watch a run's pods at each client, and mark what they show, until the block ends."""
    opened = [asyncio.Event() for _ in clients]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_watch_server(client, place, run=run, timeline=timeline, opened=event))
            for (client, place), event in zip(clients, opened, strict=True)
        ]
        for event in opened:
            await event.wait()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _watch_server(client: Client, place: PlaceOf, *, run: str, timeline: Timeline, opened: asyncio.Event) -> None:
    """Watch until cancelled. A server short of CPU ends watches, which are then resumed where they ended."""
    selector = f"{RUN_LABEL}={run}"
    page = await client.list_all(PODS, label_selector=selector)
    version = page.metadata.resource_version
    while True:
        params: dict[str, str | int | bool] = {
            "watch": True,
            "allowWatchBookmarks": True,
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": 3600,
        }
        splitter = LineSplitter()
        with contextlib.suppress(ConnectionError):
            async with client.open_watch(PODS.path(), params) as stream:
                opened.set()
                while chunk := await stream.read():
                    when = now()
                    for line in splitter.feed(chunk):
                        version = _mark_event(line, place, timeline, when)


def _mark_event(line: bytes, place: PlaceOf, timeline: Timeline, when: float) -> str:
    """Record the marks of an event, and return the resource version to resume from."""
    kind, body = split_event(line)
    if kind == "ERROR":
        raise UnavailableError(f"a watch of the load cannot be resumed: {body[:200]!r}")
    pod = decode(body)
    version, where = pod.metadata.resource_version, place(pod)
    if kind == "BOOKMARK" or where is None:
        return version
    key = where, pod.metadata.name
    if kind == "DELETED":
        timeline.mark("gone", key, when)
        return version
    timeline.mark("seen", key, when)
    if not pod.spec.scheduling_gates:
        timeline.mark("admitted", key, when)
    if pod.spec.node_name:
        timeline.mark("bound", key, when)
    if pod.is_ready:
        timeline.mark("ready", key, when)
    if pod.status.phase in ("Succeeded", "Failed"):
        timeline.mark("ended", key, when)
    if pod.status.phase == "Failed":
        timeline.mark("failed", key, when)
    if pod.metadata.deletion_timestamp:
        timeline.mark("deleting", key, when)
    return version
