"""Leader election: who holds the Lease, and until when its holder may write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.support.machine import patience
from vkgateway.kube import errors, leader_election
from vkgateway.kube.client import Client
from vkgateway.kube.leader_election import LeaderElector, LeaseLost, LeaseTiming
from vkgateway.kube.resources import LEASES
from vkgateway.kube.write_gate import WriteGate

TIMING = LeaseTiming(5, 1.5, 0.5)


class _PatientTiming(LeaseTiming):
    """The same for a slow machine: the fake clock does not stop the time of requests."""

    @property
    def request_timeout(self) -> float:
        return patience(10)


def _elector(client: Client, identity: str, clock: FakeClock) -> LeaderElector:
    gate = WriteGate(clock.monotonic)
    timing = _PatientTiming(TIMING.lease, TIMING.renew, TIMING.retry)
    return LeaderElector(
        client, "gateway", namespace="system", identity=identity, timing=timing, gate=gate, clock=clock
    )


def _spec(server: FakeApiServer) -> dict[str, Any]:
    found: dict[str, Any] = server.store.get(LEASES, "gateway", "system")["spec"]
    return found


def _may_write(elector: LeaderElector) -> bool:
    return elector.gate.is_open


async def _acquire(elector: LeaderElector, clock: FakeClock) -> float:
    """Try until the Lease is acquired, and return the seconds that this took."""
    started = clock.seconds
    while not await elector.try_acquire():
        await clock.sleep(elector.seconds_to_retry())
    return clock.seconds - started


def test_two_renewals_fit_into_time_to_write() -> None:
    assert TIMING.write == 4.0
    assert TIMING.renew + TIMING.retry + 2 * TIMING.request_timeout <= TIMING.write


async def test_free_lease_is_acquired_and_opens_gate(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    assert not _may_write(first)
    assert await first.try_acquire()
    assert (_spec(server)["holderIdentity"], _spec(server)["leaseDurationSeconds"]) == ("first", 5)
    assert first.gate.is_open
    clock.seconds += TIMING.write
    assert not first.gate.is_open


async def test_restarted_holder_acquires_its_lease_at_once(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    before, after = _elector(client, "first", clock), _elector(client, "first", clock)
    await before.try_acquire()
    clock.seconds += 0.5
    assert await after.try_acquire()
    assert after.gate.is_open
    assert _spec(server)["leaseTransitions"] == 1
    with pytest.raises(LeaseLost):
        await before.renew()


async def test_renewed_lease_is_not_taken_over(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", clock)
    await first.try_acquire()
    for _ in range(20):
        assert not await second.try_acquire()
        await clock.sleep(1.5)
        await first.renew()
    assert second.holder == "first"
    assert "leaseTransitions" not in _spec(server)


async def test_renewal_is_one_request(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    await first.try_acquire()
    server.requests.clear()
    await first.renew()
    assert [request.split(" ")[0] for request in server.requests] == ["PUT"]


async def test_lease_is_taken_over_when_it_expires_but_not_while_its_holder_writes(
    server: FakeApiServer, client: Client
) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", clock)
    await first.try_acquire()
    while not await second.try_acquire():
        await clock.sleep(second.seconds_to_retry())
    assert clock.seconds == 1005.0
    assert second.gate.is_open
    assert not first.gate.is_open
    assert (_spec(server)["holderIdentity"], _spec(server)["leaseTransitions"]) == ("second", 1)


async def test_annotation_does_not_renew_lease(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    await _elector(client, "first", clock).try_acquire()
    second = _elector(client, "second", clock)
    while not await second.try_acquire():
        await clock.sleep(second.seconds_to_retry())
        annotations = {"a": str(clock.seconds)}
        await client.patch(LEASES, "gateway", {"metadata": {"annotations": annotations}}, namespace="system")
    assert clock.seconds == 1005.0


async def test_frozen_leader_may_not_write_and_loses_lease(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", clock)
    await first.try_acquire()
    clock.seconds += 60.0
    await _acquire(second, clock)
    assert not first.gate.is_open
    with pytest.raises(LeaseLost, match="second holds the Lease system/gateway now"):
        await first.renew()
    assert not first.gate.is_open


async def test_late_response_to_renewal_before_freeze_does_not_open_gate(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    await first.try_acquire()
    replace = client.replace

    async def frozen(*what: Any, **more: Any) -> bytes:
        answer = await replace(*what, **more)
        clock.seconds += 60.0
        return answer

    monkeypatch.setattr(client, "replace", frozen)
    await first.renew()
    assert not first.gate.is_open


async def test_leader_continues_after_outage_without_successor(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    await first.try_acquire()
    server.fail("*", "/leases/gateway", status=503, times=20)
    for _ in range(20):
        clock.seconds += 5.0
        with pytest.raises(errors.ServerError):
            await first.renew()
        assert not first.gate.is_open
    await first.renew()
    assert first.gate.is_open
    assert "leaseTransitions" not in _spec(server)


async def test_renewal_without_response_is_not_a_loss(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    await first.try_acquire()
    replace = client.replace
    lost = [True]

    async def timeout_once(*what: Any, **more: Any) -> bytes:
        answer = await replace(*what, **more)
        if lost.pop() if lost else False:
            raise errors.Unreachable("no answer in time")
        return answer

    monkeypatch.setattr(client, "replace", timeout_once)
    clock.seconds += 1.5
    with pytest.raises(errors.Unreachable):
        await first.renew()
    clock.seconds += 1.5
    await first.renew()
    assert first.gate.is_open
    clock.seconds += 3.9
    assert first.gate.is_open


async def test_invalid_response_is_transient(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may answer instead of the server for a while, with status 200."""
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    await first.try_acquire()

    async def away(*_: Any, **__: Any) -> bytes:
        return b"<html>back soon</html>"

    with monkeypatch.context() as patch:
        patch.setattr(client, "replace", away)
        with pytest.raises(errors.ServerError, match=r"PUT .*/leases"):
            await first.renew()
    await first.renew()
    assert first.gate.is_open


async def test_released_lease_is_acquired_at_next_attempt(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", clock)
    await first.try_acquire()
    assert not await second.try_acquire()
    first.gate.close()
    await first.release()
    assert (_spec(server).get("holderIdentity"), _spec(server)["leaseDurationSeconds"]) == (None, 1)
    assert await second.try_acquire()
    assert clock.seconds == 1000.0


async def test_lease_is_released_after_renewal_without_response(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    await first.try_acquire()
    await client.patch(LEASES, "gateway", {"metadata": {"annotations": {"a": "b"}}}, namespace="system")
    await first.release()
    assert "holderIdentity" not in _spec(server)


async def test_successor_is_not_released(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", clock)
    await first.try_acquire()
    await _acquire(second, clock)
    with pytest.raises(LeaseLost):
        await first.release()
    assert _spec(server)["holderIdentity"] == "second"


async def test_deleted_lease_is_created_again_while_its_holder_may_write(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(1000.0)
    first = _elector(client, "first", clock)
    await first.try_acquire()
    server.store.delete(LEASES, "gateway", "system")
    await first.renew()
    assert _spec(server)["holderIdentity"] == "first"
    server.store.delete(LEASES, "gateway", "system")
    clock.seconds += 60.0  # meanwhile, another process may have held and deleted it
    with pytest.raises(LeaseLost, match="was deleted"):
        await first.renew()


async def test_one_of_several_candidates_acquires_lease(server: FakeApiServer, client: Client) -> None:
    rivals = [_elector(client, f"r{number}", FakeClock(1000.0)) for number in range(5)]
    assert sum(await asyncio.gather(*(rival.try_acquire() for rival in rivals))) == 1
    assert sum(rival.gate.is_open for rival in rivals) == 1


async def test_standby_is_logged_once_per_leader(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(1000.0)
    first, second = _elector(client, "first", clock), _elector(client, "second", clock)
    await first.try_acquire()
    logs = structlog.testing.LogCapture()
    # A logger that knows nothing of how others were configured, by which levels are left out.
    own = structlog.wrap_logger(None, processors=[logs], wrapper_class=structlog.stdlib.BoundLogger)
    monkeypatch.setattr(leader_election, "log", own)
    for _ in range(3):
        assert not await second.try_acquire()
        clock.seconds += 1.0
        await first.renew()
    assert [line["holder"] for line in logs.entries] == ["first"]
