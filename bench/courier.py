"""The courier: a bare loop in the gateway's place, with the same schedulers and hollow nodes in the way.

It watches pods above and below and does what a pod's life cannot do without: create below, status above; after the
deletion above: delete below, finalizer off, remove above. With a token also the request above and the Secret below. It
keeps nothing, compares nothing, repairs nothing and knows one kind of pod. Whatever is between it and the gateway is
what the gateway's own work costs; what is between it and the floor is the work of schedulers and nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bench.floor import FINALIZER, TENANT, Pair, nodes
from bench.flows import POOL_LABEL, Flow, always, burst, namespace_of, namespaces, own_node, warm_up
from bench.platform import POOL, Platform
from bench.pods import PodKind
from bench.settings import IN_FLIGHT
from bench.timeline import Key, Mark, Timeline
from bench.watching import watching

RUN: Final = "courier"
_HOST: Final = "kubernetes.io/hostname"
_CAPACITY: Final = {"cpu": "100k", "memory": "100Ti", "pods": "100k"}


class Courier:
    """Carries pods between places above and below; `above` and `below` are to be fed by watches."""

    def __init__(self, pairs: Sequence[Pair], *, token: bool) -> None:
        self._by_above = {pair.above.name: pair for pair in pairs}
        self._by_below = {pair.below.name: pair for pair in pairs}
        self._kind = PodKind(
            run=RUN, selector={POOL_LABEL: POOL}, finalizer=FINALIZER, labels=TENANT, handed_token=token
        )
        self._token = token
        self._tasks: asyncio.Queue[tuple[str, Pair, str]] = asyncio.Queue()
        self.above = Timeline(on_mark=lambda mark, key: self._note(self._by_above, mark, key))
        self.below = Timeline(on_mark=lambda mark, key: self._note(self._by_below, mark, key, below=True))

    def _note(self, pairs: dict[str, Pair], mark: Mark, key: Key, *, below: bool = False) -> None:
        if mark in (("ready", "ended") if below else ("bound", "deleting")):
            self._tasks.put_nowait((mark, pairs[key[0]], key[1]))

    async def work(self) -> None:
        """Do one thing after the other, for ever."""
        while True:
            mark, pair, name = await self._tasks.get()
            await self._do(mark, pair, name)

    async def _do(self, mark: str, pair: Pair, name: str) -> None:
        if mark == "bound":
            if self._token:
                await pair.hand_down_token(name)
            await pair.below.create(name, self._kind)
        elif mark == "ready":
            await pair.tell_above(name)
        elif mark == "deleting":
            await pair.below.delete(name)
        else:
            await pair.let_go(name)


async def by_courier(platform: Platform, *, pods: int, tenants: int, token: bool) -> Flow:
    """The pods of `through_gateway`, carried by the courier; the gateway must not run meanwhile."""
    above = platform.places(tenants)
    below = await namespaces(platform, [f"courier-{number:02d}" for number in range(tenants)])
    node = own_node(RUN)
    pairs = [Pair(up, down, node=node, token=token) for up, down in zip(above, below, strict=True)]
    courier = Courier(pairs, token=token)
    kind = PodKind(run=RUN, token=token, selector={_HOST: node})
    watches = [(place.client, always(place.name)) for place in above]
    async with (
        nodes([place.client for place in above], node, capacity=_CAPACITY),
        watching(watches, run=RUN, timeline=courier.above),
        watching([(platform.compute, namespace_of)], run=RUN, timeline=courier.below),
        asyncio.TaskGroup() as group,
    ):
        workers = [group.create_task(courier.work()) for _ in range(IN_FLIGHT)]
        await warm_up(above, kind, timeline=courier.above)
        left = [(place.name, "warm-up") for place in below]
        await courier.below.until("gone", left)  # or its last events would count anew
        courier.below.drop(left)
        flow = await burst(above, pods, kind, timeline=courier.above, platform=platform)
        for worker in workers:
            worker.cancel()
    return flow
