"""The courier: a minimal loop in place of the gateway, with the same schedulers and hollow nodes.

It watches tenant pods and compute pods and sends the unavoidable writes only: it creates the compute pod and updates
the status of the tenant pod. After a deletion it deletes the compute pod, writes the tenant pod's last status, removes
the finalizer and removes the tenant pod. With a token it also sends the token request and creates the Secret. It keeps
no state, compares nothing, repairs nothing and supports one kind of pod. The difference from the gateway is the cost of
the gateway's own work. The difference from the floor is the work of schedulers and nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bench.floor import FINALIZER, TENANT, NamespacePair, temporary_nodes
from bench.flows import (
    POOL_LABEL,
    BurstFigures,
    constant_place,
    create_namespaces,
    pod_namespace,
    run_burst,
    unique_node_name,
    warm_up,
)
from bench.platform import POOL, Platform
from bench.pods import PodKind
from bench.settings import IN_FLIGHT
from bench.timeline import Key, Mark, Timeline
from bench.watching import watch_pods

RUN: Final = "courier"
_HOST: Final = "kubernetes.io/hostname"
_CAPACITY: Final = {"cpu": "100k", "memory": "100Ti", "pods": "100k"}


class Courier:
    """Copies pods between tenant and compute namespaces. The caller feeds both timelines by watches."""

    def __init__(self, pairs: Sequence[NamespacePair], *, token: bool) -> None:
        self._by_tenant = {pair.tenant.name: pair for pair in pairs}
        self._by_namespace = {pair.compute.name: pair for pair in pairs}
        self._kind = PodKind(
            run=RUN, selector={POOL_LABEL: POOL}, finalizer=FINALIZER, labels=TENANT, handed_token=token
        )
        self._token = token
        self._tasks: asyncio.Queue[tuple[str, NamespacePair, str]] = asyncio.Queue()
        self.tenant_timeline = Timeline(on_mark=lambda mark, key: self._queue_mark(self._by_tenant, mark, key))
        self.compute_timeline = Timeline(
            on_mark=lambda mark, key: self._queue_mark(self._by_namespace, mark, key, in_compute=True)
        )

    def _queue_mark(self, pairs: dict[str, NamespacePair], mark: Mark, key: Key, *, in_compute: bool = False) -> None:
        if mark in (("ready", "ended") if in_compute else ("bound", "deleting")):
            self._tasks.put_nowait((mark, pairs[key[0]], key[1]))

    async def run_worker(self) -> None:
        """Process marks one after the other until cancelled."""
        while True:
            mark, pair, name = await self._tasks.get()
            await self._handle_mark(mark, pair, name)

    async def _handle_mark(self, mark: str, pair: NamespacePair, name: str) -> None:
        if mark == "bound":
            if self._token:
                await pair.copy_token(name)
            await pair.compute.create_pod(name, self._kind)
        elif mark == "ready":
            await pair.report_ready(name)
        elif mark == "deleting":
            await pair.compute.delete_pod(name)
        else:
            await pair.finalize_pod(name)


async def run_courier(platform: Platform, *, pods: int, tenants: int, token: bool) -> BurstFigures:
    """Run the pods of `run_gateway` through the courier. The gateway must be stopped."""
    tenant_places = platform.tenant_places(tenants)
    compute_places = await create_namespaces(platform, [f"courier-{number:02d}" for number in range(tenants)])
    node = unique_node_name(RUN)
    pairs = [
        NamespacePair(up, down, node=node, token=token) for up, down in zip(tenant_places, compute_places, strict=True)
    ]
    courier = Courier(pairs, token=token)
    kind = PodKind(run=RUN, token=token, selector={_HOST: node})
    watches = [(place.client, constant_place(place.name)) for place in tenant_places]
    async with (
        temporary_nodes([place.client for place in tenant_places], node, capacity=_CAPACITY),
        watch_pods(watches, run=RUN, timeline=courier.tenant_timeline),
        watch_pods([(platform.compute, pod_namespace)], run=RUN, timeline=courier.compute_timeline),
        asyncio.TaskGroup() as group,
    ):
        workers = [group.create_task(courier.run_worker()) for _ in range(IN_FLIGHT)]
        await warm_up(tenant_places, kind, timeline=courier.tenant_timeline)
        warm_up_keys = [(place.name, "warm-up") for place in compute_places]
        await courier.compute_timeline.wait_for("gone", warm_up_keys)  # its last events would count again otherwise
        courier.compute_timeline.drop_pods(warm_up_keys)
        flow = await run_burst(tenant_places, pods, kind, timeline=courier.tenant_timeline, platform=platform)
        for worker in workers:
            worker.cancel()
    return flow
