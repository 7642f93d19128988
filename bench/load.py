"""The load itself: creates and deletes pods, so many requests under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from bench.pods import PodKind, manifest
from bench.settings import IN_FLIGHT
from bench.timeline import Key, Timeline
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS

T = TypeVar("T")


async def each(items: Iterable[T], act: Callable[[T], Awaitable[None]], *, in_flight: int = IN_FLIGHT) -> None:
    """Do something for every item, in order, at most `in_flight` at once."""
    rest = iter(items)

    async def work() -> None:
        for item in rest:
            await act(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())


class Place:
    """Where pods of the load go: a namespace at a server. Its name stands in the timeline's keys."""

    def __init__(self, name: str, client: Client, namespace: str) -> None:
        self.name = name
        self.client = client
        self.namespace = namespace

    async def create(self, name: str, kind: PodKind) -> bytes:
        """Create a pod."""
        return await self.client.create(PODS, manifest(name, kind), namespace=self.namespace, timeout=120)

    async def delete(self, name: str, *, grace: int | None = None) -> None:
        """Delete a pod as a user does; one that is gone is no error."""
        try:
            await self.client.delete(PODS, name, namespace=self.namespace, grace_period_seconds=grace, timeout=120)
        except errors.NotFound:
            return


async def create_all(
    places: Sequence[Place], wanted: Iterable[tuple[int, str]], kind: PodKind, *, timeline: Timeline
) -> None:
    """Create pods (place and name of each), marking when each request was sent."""

    async def create(item: tuple[int, str]) -> None:
        index, name = item
        place = places[index]
        timeline.mark("sent", (place.name, name))
        await place.create(name, kind)

    await each(wanted, create)


async def delete_all(places: Sequence[Place], keys: Iterable[Key]) -> None:
    """Delete pods as users do."""
    by_name = {place.name: place for place in places}

    async def delete(key: Key) -> None:
        await by_name[key[0]].delete(key[1])

    await each(keys, delete)
