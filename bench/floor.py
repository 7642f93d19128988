"""The floor: bare raw clients that do nothing but the writes a pod's life cannot do without, and know of nothing else.

To Ready: create and bind above, create below (bound already), status below, status above. With a token also the request
above and the Secret below. Afterwards: deleted above (by the load), deleted below, last status below, finalizer off,
the Secret, removed above. Pods are the same above as in every system, and lean below as tenants' are. No watches but
those above by which every system is measured, no reads, no decisions; requests go to the same API servers, as many
under way at once as the gateway has workers. What the machine does in this time is the most that it can do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from bench import load
from bench.flows import Flow, always, measured, namespaces, own_node
from bench.platform import Platform
from bench.pods import PodKind, running_status, spread
from bench.settings import IN_FLIGHT
from bench.timeline import Key, Timeline
from bench.watching import watching
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.leases import renew_node_lease, utc_now
from vkgateway.kube.resources import NODES, PODS, SECRETS, SERVICE_ACCOUNTS
from vkgateway.model import times
from vkgateway.model.names import TENANT_LABEL

RUN: Final = "floor"
FINALIZER: Final = "bench.vkgateway.io/floor"
TENANT: Final = {TENANT_LABEL: "bench-floor"}
"""Marks pods below as a tenant's, so that the compute cluster deals with them as with those of the gateway."""
_RENEW: Final = 10.0


class Pair:
    """A place above and the place below that stands for it; `node` is where its pods are bound."""

    def __init__(self, above: load.Place, below: load.Place, *, node: str, token: bool) -> None:
        self.above = above
        self.below = below
        self.node = node
        self.token = token

    async def start(self, name: str) -> None:
        """Bind, create below, run, tell above."""
        await self.above.client.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"kind": "Node", "name": self.node},
            },
            namespace=self.above.namespace,
            name=name,
            subresource="binding",
            timeout=120,
        )
        if self.token:
            await self.hand_down_token(name)
        await self.below.create(
            name,
            PodKind(run=RUN, node=self.node, finalizer=FINALIZER, labels=TENANT, handed_token=self.token),
        )
        await self._write_status(self.below, name, ready=True)
        await self.tell_above(name)

    async def tell_above(self, name: str) -> None:
        """Write above that the pod runs and is ready."""
        await self._write_status(self.above, name, ready=True)

    async def hand_down_token(self, name: str) -> None:
        """A token bound to the pod, as a node asks for one, and a Secret below for it."""
        where = self.above
        await where.client.create(
            SERVICE_ACCOUNTS,
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {
                    "expirationSeconds": 3607,
                    "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name},
                },
            },
            namespace=where.namespace,
            name="default",
            subresource="token",
            timeout=120,
        )
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"token": "dG9rZW5z" * 150}}
        await self.below.client.create(SECRETS, secret, namespace=self.below.namespace, timeout=120)

    async def end(self, name: str) -> None:
        """Delete below, end, finalizer off, remove above."""
        await self.below.delete(name, grace=0)
        await self._write_status(self.below, name, ready=False)
        await self.let_go(name)

    async def let_go(self, name: str) -> None:
        """Finalizer off, remove above; that comes last, for then the pod counts as gone."""
        await self._patch(self.below, name, {"metadata": {"finalizers": None}})
        if self.token:
            await self.below.client.delete(SECRETS, name, namespace=self.below.namespace, timeout=120)
        await self.above.delete(name, grace=0)

    async def _write_status(self, place: load.Place, name: str, *, ready: bool) -> None:
        status = running_status(times.render_time(datetime.now(UTC)), ready=ready)
        await self._patch(place, name, {"status": status}, subresource="status")

    async def _patch(self, place: load.Place, name: str, body: dict[str, Any], *, subresource: str = "") -> None:
        await place.client.patch(
            PODS, name, body, namespace=place.namespace, subresource=subresource or None, timeout=120
        )


async def floor(platform: Platform, *, pods: int, tenants: int, token: bool) -> Flow:
    """Do the unavoidable for so many pods; the gateway must not run meanwhile, for the pods are on no node of its."""
    above = platform.places(tenants)
    below = await namespaces(platform, [f"floor-{number:02d}" for number in range(tenants)])
    node = own_node(RUN)
    pairs = [Pair(up, down, node=node, token=token) for up, down in zip(above, below, strict=True)]
    timeline = Timeline()
    watches = [(place.client, always(place.name)) for place in above]
    async with (
        nodes([platform.compute, *(place.client for place in above)], node),
        watching(watches, run=RUN, timeline=timeline),
    ):
        await _run(pairs, len(pairs), token=token, timeline=timeline, platform=platform)
        return await _run(pairs, pods, token=token, timeline=timeline, platform=platform)


async def _run(pairs: Sequence[Pair], count: int, *, token: bool, timeline: Timeline, platform: Platform) -> Flow:
    kind = PodKind(run=RUN, scheduler=RUN, token=token)
    wanted = spread(count, len(pairs))
    keys = [_key(pairs, item) for item in wanted]

    async def create(item: tuple[int, str]) -> None:
        timeline.mark("sent", _key(pairs, item))
        await pairs[item[0]].above.create(item[1], kind)

    async def start(item: tuple[int, str]) -> None:
        await pairs[item[0]].start(item[1])

    async def delete(item: tuple[int, str]) -> None:
        await pairs[item[0]].above.delete(item[1])

    async def end(item: tuple[int, str]) -> None:
        await pairs[item[0]].end(item[1])

    flow = await measured(
        keys,
        start=lambda: relay(wanted, create, start),
        end=lambda: relay(wanted, delete, end),
        timeline=timeline,
        platform=platform,
    )
    timeline.drop(keys)
    return flow


def _key(pairs: Sequence[Pair], item: tuple[int, str]) -> Key:
    return pairs[item[0]].above.name, item[1]


async def relay(
    items: Sequence[tuple[int, str]],
    first: Callable[[tuple[int, str]], Awaitable[None]],
    second: Callable[[tuple[int, str]], Awaitable[None]],
) -> None:
    """Do `first` for all items and, as each is done, `second`: two groups of workers, each of `IN_FLIGHT`."""
    ready: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()

    async def one(item: tuple[int, str]) -> None:
        await first(item)
        ready.put_nowait(item)

    async def work() -> None:
        while (item := await ready.get()) is not None:
            await second(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())
        await load.each(items, one)
        for _ in range(IN_FLIGHT):
            ready.put_nowait(None)


@contextlib.asynccontextmanager
async def nodes(
    clients: Sequence[Client], name: str, *, capacity: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """A node for the load's pods at each server, alive for as long as the block lasts.

    It is open to schedulers where it has a `capacity`.
    """

    async def renew() -> None:
        while True:
            for client in clients:
                await renew_node_lease(client, name, now=utc_now())
            await asyncio.sleep(_RENEW)

    task: asyncio.Task[None] | None = None
    try:
        for client in clients:
            with contextlib.suppress(errors.AlreadyExists):
                await client.create(NODES, _node(name, capacity))
        task = asyncio.create_task(renew())
        yield
    finally:
        if task is not None:
            task.cancel()
        for client in clients:
            with contextlib.suppress(errors.ApiError):
                await client.delete(NODES, name)


def _node(name: str, capacity: Mapping[str, str] | None) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "message": "for the load's pods"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {} if capacity else {"unschedulable": True},
        "status": {"conditions": [ready], "capacity": capacity or {}, "allocatable": capacity or {}},
    }
