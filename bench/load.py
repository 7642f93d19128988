"""Load generator: creates and deletes pods with a limited number of requests in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from bench.pods import PodKind, pod_manifest
from bench.settings import IN_FLIGHT
from bench.timeline import Key, Timeline
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS

T = TypeVar("T")


async def for_each(items: Iterable[T], act: Callable[[T], Awaitable[None]], *, in_flight: int = IN_FLIGHT) -> None:
    """Run a function for every item in order, at most `in_flight` at a time."""
    rest = iter(items)

    async def work() -> None:
        for item in rest:
            await act(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())


class Place:
    """Namespace of an API server, with the name that timelines use."""

    def __init__(self, name: str, client: Client, namespace: str) -> None:
        self.name = name
        self.client = client
        self.namespace = namespace

    async def create_pod(self, name: str, kind: PodKind) -> bytes:
        return await self.client.create(PODS, pod_manifest(name, kind), namespace=self.namespace, timeout=120)

    async def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        """Delete a pod as a user does. A missing pod is no error."""
        try:
            await self.client.delete(PODS, name, namespace=self.namespace, grace_period_seconds=grace, timeout=120)
        except errors.NotFound:
            return


async def create_all(
    places: Sequence[Place], wanted: Iterable[tuple[int, str]], kind: PodKind, *, timeline: Timeline
) -> None:
    """Create pods (place and name of each), and mark when each request was sent."""

    async def create(item: tuple[int, str]) -> None:
        index, name = item
        place = places[index]
        timeline.mark("sent", (place.name, name))
        await place.create_pod(name, kind)

    await for_each(wanted, create)


async def delete_all(places: Sequence[Place], keys: Iterable[Key]) -> None:
    """Delete pods as users do."""
    by_name = {place.name: place for place in places}

    async def delete(key: Key) -> None:
        await by_name[key[0]].delete_pod(key[1])

    await for_each(keys, delete)
