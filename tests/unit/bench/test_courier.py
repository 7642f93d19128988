"""Courier: the unavoidable writes, in the order of the watch events."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from bench.courier import Courier
from bench.floor import NamespacePair
from bench.load import Place
from bench.pods import PodKind
from bench.timeline import Key, Mark, Timeline
from vkgateway.kube.client import Client


class _Place(Place):
    """Place that records its calls."""

    def __init__(self, name: str, asked: list[str]) -> None:
        super().__init__(name, cast(Client, None), name)
        self.asked = asked

    async def create_pod(self, name: str, kind: PodKind) -> bytes:
        self.asked.append(f"create {self.name}/{name}")
        return b""

    async def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        self.asked.append(f"delete {self.name}/{name} {grace}")


class _Pair(NamespacePair):
    def __init__(self, above: _Place, below: _Place) -> None:
        super().__init__(above, below, node="", token=False)
        self.asked = above.asked

    async def copy_token(self, name: str) -> None:
        self.asked.append(f"token {name}")

    async def _patch_pod(self, place: Place, name: str, body: dict[str, Any], *, subresource: str = "") -> None:
        self.asked.append(f"patch {place.name}/{name} {subresource or 'finalizers'}")


@pytest.mark.parametrize("token", [False, True])
async def test_courier_handles_each_mark(token: bool) -> None:
    asked: list[str] = []
    courier = Courier([_Pair(_Place("team", asked), _Place("below", asked))], token=token)
    worker = asyncio.create_task(courier.run_worker())

    above, below = ("team", "p-0"), ("below", "p-0")
    seen: list[tuple[Timeline, Mark, Key]] = [
        (courier.tenant_timeline, "seen", above),
        (courier.tenant_timeline, "bound", above),
        (courier.tenant_timeline, "bound", above),
        (courier.compute_timeline, "ready", below),
        (courier.tenant_timeline, "ready", above),
        (courier.tenant_timeline, "deleting", above),
        (courier.compute_timeline, "deleting", below),
        (courier.compute_timeline, "ended", below),
    ]
    for timeline, mark, key in seen:
        timeline.mark(mark, key)
        await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert asked == [
        *(["token p-0"] if token else []),
        "create below/p-0",
        "patch team/p-0 status",
        "delete below/p-0 None",
        "patch team/p-0 status",
        "patch below/p-0 finalizers",
        "delete team/p-0 0",
    ]
    worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker
