"""Leases: heartbeats of nodes, and leader election."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from vkgateway.kube import leases
from vkgateway.kube.client import Client
from vkgateway.kube.leases import NODE_LEASE_NAMESPACE, LeaderElector, LeaseTaken, renew_node_lease
from vkgateway.kube.resources import LEASES
from vkgateway.model.times import render_micro_time

NOW = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


async def test_node_lease_is_created_then_renewed(server: FakeApiServer, client: Client) -> None:
    await renew_node_lease(client, "a100.local", now=NOW, owner_uid="u")
    lease = server.store.get(LEASES, "a100.local", NODE_LEASE_NAMESPACE)
    assert lease["spec"] == {
        "holderIdentity": "a100.local",
        "leaseDurationSeconds": 40,
        "renewTime": "2030-01-02T03:04:05.000678Z",
    }
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "u"
    await renew_node_lease(client, "a100.local", now=NOW.replace(minute=5), duration=20)
    spec = server.store.get(LEASES, "a100.local", NODE_LEASE_NAMESPACE)["spec"]
    assert (spec["renewTime"], spec["leaseDurationSeconds"]) == ("2030-01-02T03:05:05.000678Z", 20)
    assert server.requests[-1].startswith("PATCH")


def _elector(client: Client, identity: str, clock: FakeClock) -> LeaderElector:
    return LeaderElector(client, "gateway", namespace="system", identity=identity, clock=clock)


def _spec(server: FakeApiServer) -> dict[str, object]:
    found: dict[str, object] = server.store.get(LEASES, "gateway", "system")["spec"]
    return found


async def _renew_until(lease: LeaderElector, *, until: Callable[[], bool]) -> None:
    """Renew a Lease until a condition holds."""
    task = asyncio.create_task(lease.renew_lease())
    try:
        async with asyncio.timeout(30):
            while not until() and not task.done():  # noqa: ASYNC110 - the clock moves by our sleeping
                await asyncio.sleep(0)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_free_lease_is_acquired_and_own_lease_is_not_written(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    await _elector(client, "first", clock).acquire_lease()
    assert (_spec(server)["holderIdentity"], _spec(server)["leaseDurationSeconds"]) == ("first", 30)
    server.requests.clear()
    await _elector(client, "first", clock).acquire_lease()
    assert [request.split(" ")[0] for request in server.requests] == ["GET"]


async def test_renewed_lease_is_not_taken_over(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", FakeClock(1000.0))
    await first.acquire_lease()

    async def refused() -> None:
        with pytest.raises(
            LeaseTaken, match=r"^first holds the Lease system/gateway, and renewed it at 2030-01-02T03:2"
        ):
            await second.acquire_lease()

    task = asyncio.create_task(refused())
    await _renew_until(first, until=task.done)
    await task
    assert _spec(server)["holderIdentity"] == "first"


async def test_expired_lease_is_taken_over(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    await _elector(client, "first", clock).acquire_lease()
    await _elector(client, "second", clock).acquire_lease()
    assert clock.seconds == 1030.0
    assert (_spec(server)["holderIdentity"], _spec(server)["leaseTransitions"]) == ("second", 1)


async def test_annotation_does_not_renew_lease(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    await _elector(client, "first", clock).acquire_lease()

    class AnnotatingClock(FakeClock):
        """Clock whose sleeps annotate the Lease."""

        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            annotations = {"a": str(self.seconds)}
            await client.patch(LEASES, "gateway", {"metadata": {"annotations": annotations}}, namespace="system")

    second = _elector(client, "second", AnnotatingClock(1000.0))
    await second.acquire_lease()
    assert _spec(server)["holderIdentity"] == "second"


async def test_former_holder_ends_after_takeover(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", clock)
    await first.acquire_lease()
    await second.acquire_lease()

    async def ends() -> None:
        with pytest.raises(LeaseTaken, match="second holds the Lease"):
            await first.renew_lease()

    task = asyncio.create_task(ends())
    await _renew_until(second, until=task.done)
    await task


async def test_unreachable_server_does_not_end_leadership(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    lease = _elector(client, "first", clock)
    await lease.acquire_lease()
    server.fail("*", "/leases/gateway", status=503, times=20)
    before = _spec(server)["renewTime"]
    await _renew_until(lease, until=lambda: _spec(server)["renewTime"] != before)
    assert clock.seconds >= 1200.0


async def test_invalid_response_does_not_end_leadership(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may answer instead of the server for a while, with status 200."""
    clock = FakeClock(1000.0)
    lease = _elector(client, "first", clock)
    await lease.acquire_lease()
    pages = iter([b"<html>back soon</html>"] * 3)
    get = client.get

    async def away(*what: Any, **more: Any) -> bytes:
        return next(pages, None) or await get(*what, **more)

    monkeypatch.setattr(client, "get", away)
    before = _spec(server)["renewTime"]
    await _renew_until(lease, until=lambda: _spec(server)["renewTime"] != before)
    assert _spec(server)["renewTime"] != before


async def test_waiting_for_lease_is_logged_once(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(1000.0)
    await _elector(client, "first", clock).acquire_lease()
    logs = structlog.testing.LogCapture()
    # A logger that knows nothing of how others were configured, by which levels are left out.
    own = structlog.wrap_logger(None, processors=[logs], wrapper_class=structlog.stdlib.BoundLogger)
    monkeypatch.setattr(leases, "log", own)
    await _elector(client, "second", clock).acquire_lease()
    assert [(line["holder"], line["seconds"]) for line in logs.entries] == [("first", 30)]


async def test_own_late_write_is_not_a_conflict(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    lease = _elector(client, "first", clock)
    await lease.acquire_lease()
    server.fail("PUT", "/leases/gateway", status=409, times=2)
    before = _spec(server)["renewTime"]
    clock.seconds += 5.0
    await _renew_until(lease, until=lambda: _spec(server)["renewTime"] != before)
    assert _spec(server)["renewTime"] == render_micro_time(NOW + timedelta(seconds=1005))


async def test_deleted_lease_is_created_again(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    lease = _elector(client, "first", clock)
    await lease.acquire_lease()
    server.store.delete(LEASES, "gateway", "system")
    await _renew_until(lease, until=lambda: server.store.find(LEASES, "gateway", "system") is not None)
    assert _spec(server)["holderIdentity"] == "first"


async def test_one_of_several_candidates_acquires_lease(server: FakeApiServer, client: Client) -> None:
    rivals = [_elector(client, f"r{number}", FakeClock(1000.0)) for number in range(5)]
    tasks = [asyncio.create_task(rival.acquire_lease()) for rival in rivals]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert sum(task.done() for task in tasks) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
