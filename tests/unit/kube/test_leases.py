"""Leases: heartbeats, and one leader at a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube.client import Client
from vkgateway.kube.leases import NODE_LEASES, LeaderLease, renew_node_lease
from vkgateway.kube.resources import LEASES

NOW = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


async def test_node_lease_is_made_then_renewed(server: FakeApiServer, client: Client) -> None:
    await renew_node_lease(client, "a100.local", now=NOW, owner_uid="u")
    lease = server.store.get(LEASES, "a100.local", NODE_LEASES)
    assert lease["spec"] == {
        "holderIdentity": "a100.local",
        "leaseDurationSeconds": 40,
        "renewTime": "2030-01-02T03:04:05.000678Z",
    }
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "u"
    await renew_node_lease(client, "a100.local", now=NOW.replace(minute=5), duration=20)
    spec = server.store.get(LEASES, "a100.local", NODE_LEASES)["spec"]
    assert (spec["renewTime"], spec["leaseDurationSeconds"]) == ("2030-01-02T03:05:05.000678Z", 20)
    assert server.requests[-1].startswith("PATCH")


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def _lease(client: Client, identity: str, time: Time) -> LeaderLease:
    return LeaderLease(client, "arbiter", namespace="vkgateway-system", identity=identity, clock=time, sleep=time.sleep)


def _holds(lease: LeaderLease) -> bool:
    return lease.held


async def test_one_leads_until_it_falls_silent(server: FakeApiServer, client: Client) -> None:
    time = Time()
    first, second = _lease(client, "first", time), _lease(client, "second", time)
    assert await first.try_hold()
    assert _holds(first)
    for _ in range(3):
        time.now += 10
        assert not await second.try_hold()
        assert await first.try_hold()
    assert not await second.try_hold()
    time.now += 14
    assert not await second.try_hold()
    assert _holds(first)
    time.now += 1
    assert not _holds(first)
    assert await second.try_hold()
    assert not await first.try_hold()
    spec = server.store.get(LEASES, "arbiter", "vkgateway-system")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("second", 1)


async def test_released_lease_is_free_at_once(server: FakeApiServer, client: Client) -> None:
    time = Time()
    first, second = _lease(client, "first", time), _lease(client, "second", time)
    await first.try_hold()
    await second.release()
    assert _holds(first)
    await first.release()
    assert not _holds(first)
    assert await second.try_hold()


async def test_race_has_one_winner(server: FakeApiServer, client: Client) -> None:
    time = Time()
    rivals = [_lease(client, f"r{number}", time) for number in range(5)]
    held = await asyncio.gather(*(rival.try_hold() for rival in rivals))
    assert sum(held) == 1
    await next(rival for rival in rivals if rival.held).release()
    held = await asyncio.gather(*(rival.try_hold() for rival in rivals))
    assert sum(held) == 1


async def test_work_stops_when_the_lead_is_lost(server: FakeApiServer, client: Client) -> None:
    time = Time()
    lease = _lease(client, "first", time)
    starts: list[bool] = []
    stopped = 0

    async def work() -> None:
        nonlocal stopped
        starts.append(lease.held)
        if len(starts) == 2:
            return
        try:
            server.fail("*", "/leases/arbiter", status=503, times=8)
            await asyncio.Event().wait()
        finally:
            stopped += 1

    async with asyncio.timeout(30):
        await lease.lead(work)
    assert (starts, stopped) == ([True, True], 1)
    assert not _holds(lease)
    assert server.store.get(LEASES, "arbiter", "vkgateway-system")["spec"]["holderIdentity"] == ""


async def test_failure_of_the_work_is_raised_and_the_lease_released(server: FakeApiServer, client: Client) -> None:
    async def work() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await _lease(client, "first", Time()).lead(work)
    assert server.store.get(LEASES, "arbiter", "vkgateway-system")["spec"]["holderIdentity"] == ""
