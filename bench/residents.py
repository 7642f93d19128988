"""Tenants that are mostly idle: a few running pods each, and a client that acts like an operator in every fifth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from bench import load
from bench.flows import constant_place
from bench.load import Place
from bench.pods import PodKind, spread_pods
from bench.timeline import Key, Timeline
from bench.watching import watch_pods
from vkgateway.api.objects import Meta
from vkgateway.api.times import render_micro_time
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import CONFIG_MAPS, LEASES, PODS, SERVICES

PODS_EACH: Final = 4
OPERATOR_EVERY: Final = 5
"""The first tenant of each group of this size has an operator."""
LEASE_SECONDS: Final = 2.0
"""Interval of client-go between two renewals of a leader's Lease."""
_LEASE: Final = "bench-operator"
_KINDS: Final = (PODS, CONFIG_MAPS, SERVICES)


class _Seen(msgspec.Struct, gc=False):
    metadata: Meta


_decode = msgspec.json.Decoder(_Seen).decode


class Residents:
    """Pods and operators of tenants, which `add_tenants` extends."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: list[asyncio.Task[None]] = []
        self._count = 0

    @property
    def pods(self) -> int:
        """Number of running pods."""
        return self._count * PODS_EACH

    @property
    def operators(self) -> int:
        """Number of operators."""
        return sum(map(has_operator, range(self._count)))

    async def add_tenants(self, places: list[Place]) -> None:
        """Create the pods and operators of further tenants, and wait until the pods are ready."""
        for number, place in enumerate(places, start=self._count):
            if has_operator(number):
                await self._start_operator(place.client)
        self._count += len(places)
        await _create_pods(places)

    async def _start_operator(self, client: Client) -> None:
        """Start watches of three kinds in all namespaces, and the renewal of a Lease."""
        for resource in _KINDS:
            reflector = Reflector(client, resource, decode=_decode, on_change=lambda _old, _new: None)
            self._tasks.append(self._group.create_task(reflector.run()))
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": _LEASE}}
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(LEASES, lease, namespace="default")
        self._tasks.append(self._group.create_task(_renew_lease(client)))

    def stop_operators(self) -> None:
        """Cancel all operators."""
        for task in self._tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def open_residents() -> AsyncIterator[Residents]:
    """Yield residents whose operators stop with the block. Their pods remain."""
    async with asyncio.TaskGroup() as group:
        residents = Residents(group)
        try:
            yield residents
        finally:
            residents.stop_operators()


def has_operator(number: int) -> bool:
    """Return whether the tenant of this number has an operator."""
    return number % OPERATOR_EVERY == 0


async def _create_pods(places: list[Place]) -> None:
    kind = PodKind(run="resident")
    timeline = Timeline()
    wanted = spread_pods(PODS_EACH * len(places), len(places), prefix=kind.run)
    keys: list[Key] = [(places[index].name, name) for index, name in wanted]
    async with watch_pods(
        [(place.client, constant_place(place.name)) for place in places], run=kind.run, timeline=timeline
    ):
        await load.create_all(places, wanted, kind, timeline=timeline)
        await timeline.wait_for("ready", keys)


async def _renew_lease(client: Client) -> None:
    while True:
        renewed = {"spec": {"holderIdentity": _LEASE, "renewTime": render_micro_time(datetime.now(UTC))}}
        with contextlib.suppress(errors.ApiError):  # an operator retries, too
            await client.patch(LEASES, _LEASE, renewed, namespace="default")
        await asyncio.sleep(LEASE_SECONDS)
