"""The floor: minimal clients that send only the unavoidable writes of a pod's life.

Until a pod is Ready: create and bind the tenant pod, create the bound compute pod, and update both statuses. With a
token, also the token request and the Secret. Afterwards the load deletes the tenant pod. The floor deletes the compute
pod, writes the last status of both pods, as a kubelet does, removes finalizer and Secret, and removes the tenant pod.
Tenant pods are the same as in every system, and compute pods are small. Apart from the watches that measure every
system, there are no watches, reads or decisions. Requests use the same API servers, with as many in flight as the
gateway has workers. No system on this machine can be faster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from bench import load
from bench.flows import BurstFigures, constant_place, create_namespaces, measure_burst, unique_node_name
from bench.platform import Platform
from bench.pods import PodKind, running_status, spread_pods
from bench.settings import IN_FLIGHT
from bench.timeline import Key, Timeline
from bench.watching import watch_pods
from vkgateway.api import times
from vkgateway.api.names import TENANT_LABEL
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK
from vkgateway.kube.leader_election import renew_node_lease
from vkgateway.kube.resources import NODES, PODS, SECRETS, SERVICE_ACCOUNTS

RUN: Final = "floor"
FINALIZER: Final = "bench.vkgateway.io/floor"
TENANT: Final = {TENANT_LABEL: "bench-floor"}
"""Label of the compute pods, so that the compute cluster treats them as the gateway's pods."""
_RENEW: Final = 10.0


class NamespacePair:
    """Tenant namespace and its compute namespace. Pods are bound to `node`."""

    def __init__(self, tenant: load.Place, compute: load.Place, *, node: str, token: bool) -> None:
        self.tenant = tenant
        self.compute = compute
        self.node = node
        self.token = token

    async def start_pod(self, name: str) -> None:
        """Bind the tenant pod, create the compute pod, and update both statuses."""
        await self.tenant.client.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"kind": "Node", "name": self.node},
            },
            namespace=self.tenant.namespace,
            name=name,
            subresource="binding",
            timeout=120,
        )
        if self.token:
            await self.copy_token(name)
        await self.compute.create_pod(
            name,
            PodKind(run=RUN, node=self.node, finalizer=FINALIZER, labels=TENANT, handed_token=self.token),
        )
        await self._write_status(self.compute, name, ready=True)
        await self.report_ready(name)

    async def report_ready(self, name: str) -> None:
        """Update the tenant pod's status to running and ready."""
        await self._write_status(self.tenant, name, ready=True)

    async def copy_token(self, name: str) -> None:
        """Request a token bound to the pod, as a node does, and create a Secret in the compute namespace for it."""
        where = self.tenant
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
        await self.compute.client.create(SECRETS, secret, namespace=self.compute.namespace, timeout=120)

    async def end_pod(self, name: str) -> None:
        """Delete the compute pod, write its last status, and finalize."""
        await self.compute.delete_pod(name, grace=0)
        await self._write_status(self.compute, name, ready=False)
        await self.finalize_pod(name)

    async def finalize_pod(self, name: str) -> None:
        """Write the tenant pod's last status, remove the finalizer, then the tenant pod.

        Its removal comes last, because it ends the measurement.
        """
        await self._write_status(self.tenant, name, ready=False)
        await self._patch_pod(self.compute, name, {"metadata": {"finalizers": None}})
        if self.token:
            await self.compute.client.delete(SECRETS, name, namespace=self.compute.namespace, timeout=120)
        await self.tenant.delete_pod(name, grace=0)

    async def _write_status(self, place: load.Place, name: str, *, ready: bool) -> None:
        status = running_status(times.render_time(datetime.now(UTC)), ready=ready)
        await self._patch_pod(place, name, {"status": status}, subresource="status")

    async def _patch_pod(self, place: load.Place, name: str, body: dict[str, Any], *, subresource: str = "") -> None:
        await place.client.patch(
            PODS, name, body, namespace=place.namespace, subresource=subresource or None, timeout=120
        )


async def run_floor(platform: Platform, *, pods: int, tenants: int, token: bool) -> BurstFigures:
    """Send the unavoidable writes for a burst of pods.

    The gateway must be stopped, because the pods are not on its nodes.
    """
    tenant_places = platform.tenant_places(tenants)
    compute_places = await create_namespaces(platform, [f"floor-{number:02d}" for number in range(tenants)])
    node = unique_node_name(RUN)
    pairs = [
        NamespacePair(up, down, node=node, token=token) for up, down in zip(tenant_places, compute_places, strict=True)
    ]
    timeline = Timeline()
    watches = [(place.client, constant_place(place.name)) for place in tenant_places]
    async with (
        temporary_nodes([platform.compute, *(place.client for place in tenant_places)], node),
        watch_pods(watches, run=RUN, timeline=timeline),
    ):
        await _run_burst(pairs, len(pairs), token=token, timeline=timeline, platform=platform)
        return await _run_burst(pairs, pods, token=token, timeline=timeline, platform=platform)


async def _run_burst(
    pairs: Sequence[NamespacePair], count: int, *, token: bool, timeline: Timeline, platform: Platform
) -> BurstFigures:
    kind = PodKind(run=RUN, scheduler=RUN, token=token)
    wanted = spread_pods(count, len(pairs))
    keys = [_pod_key(pairs, item) for item in wanted]

    async def create(item: tuple[int, str]) -> None:
        timeline.mark("sent", _pod_key(pairs, item))
        await pairs[item[0]].tenant.create_pod(item[1], kind)

    async def start(item: tuple[int, str]) -> None:
        await pairs[item[0]].start_pod(item[1])

    async def delete(item: tuple[int, str]) -> None:
        await pairs[item[0]].tenant.delete_pod(item[1])

    async def end(item: tuple[int, str]) -> None:
        await pairs[item[0]].end_pod(item[1])

    flow = await measure_burst(
        keys,
        start=lambda: run_pipeline(wanted, create, start),
        end=lambda: run_pipeline(wanted, delete, end),
        timeline=timeline,
        platform=platform,
    )
    timeline.drop_pods(keys)
    return flow


def _pod_key(pairs: Sequence[NamespacePair], item: tuple[int, str]) -> Key:
    return pairs[item[0]].tenant.name, item[1]


async def run_pipeline(
    items: Sequence[tuple[int, str]],
    first: Callable[[tuple[int, str]], Awaitable[None]],
    second: Callable[[tuple[int, str]], Awaitable[None]],
) -> None:
    """Run `first` for all items and, as each completes, `second`, with `IN_FLIGHT` workers each."""
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
        await load.for_each(items, one)
        for _ in range(IN_FLIGHT):
            ready.put_nowait(None)


@contextlib.asynccontextmanager
async def temporary_nodes(
    clients: Sequence[Client], name: str, *, capacity: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Create a node for the load's pods at each server, and renew its lease until the block ends.

    Schedulers can use the node if it has a `capacity`.
    """

    async def renew() -> None:
        while True:
            for client in clients:
                await renew_node_lease(client, name, now=SYSTEM_CLOCK.now())
            await asyncio.sleep(_RENEW)

    task: asyncio.Task[None] | None = None
    try:
        for client in clients:
            with contextlib.suppress(errors.AlreadyExists):
                await client.create(NODES, _node_manifest(name, capacity))
        task = asyncio.create_task(renew())
        yield
    finally:
        if task is not None:
            task.cancel()
        for client in clients:
            with contextlib.suppress(errors.ApiError):
                await client.delete(NODES, name)


def _node_manifest(name: str, capacity: Mapping[str, str] | None) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "message": "for the load's pods"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {} if capacity else {"unschedulable": True},
        "status": {"conditions": [ready], "capacity": capacity or {}, "allocatable": capacity or {}},
    }
