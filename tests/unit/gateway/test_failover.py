"""Two real gateway processes: the leader is killed, stopped, frozen or cut off, and the other one takes over."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.failover import NODE, Replica, World, failover_world
from tests.support.machine import patience, slowness
from tests.support.waiting import wait_until
from vkgateway.planes.pki import Authority
from vkgateway.settings.config import LeaderElection

# About half of the default times, longer on a slow machine: no process may lose its Lease because it was not scheduled.
# `bench failover` measures the bounds.
_SLOWNESS = math.ceil(slowness())
ELECTION = LeaderElection(lease_seconds=3 * _SLOWNESS, renew_seconds=0.8 * _SLOWNESS, retry_seconds=0.3)
SECONDS_MAX = patience(10)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with failover_world(tmp_path, ELECTION) as world:
        yield world


async def test_standby_takes_over_from_stopped_leader(world: World) -> None:
    leader, _ = await world.start_both()
    assert leader.process is not None
    leader.signal(signal.SIGTERM)
    seconds = await world.forward_pod()
    assert await leader.process.wait() == 0
    assert seconds < SECONDS_MAX


async def test_frozen_leader_writes_nothing_after_it_continues(world: World) -> None:
    leader, standby = await world.start_both()
    assert leader.process is not None
    await _freeze(world, leader)
    assert await leader.process.wait() == 4
    _check_pods(world)
    assert "this gateway does not lead anymore" in leader.log
    await world.start(leader)
    assert "leadership ok: standby" in await leader.readyz()
    assert "leadership ok: leader" in await standby.readyz()


async def _freeze(world: World, leader: Replica) -> None:
    """Freeze the leader while pods are created, continue it, and check that it writes nothing."""
    creating = asyncio.create_task(_create_pods(world))
    await wait_until(lambda: len(world.forwarded()) > 5)
    leader.signal(signal.SIGSTOP)
    holder = world.holder
    await wait_until(lambda: world.holder != holder)
    forwarded = len(world.forwarded())
    await wait_until(lambda: len(world.forwarded()) > forwarded)
    continued = time.monotonic()
    leader.signal(signal.SIGCONT)
    assert leader.process is not None
    await asyncio.wait_for(leader.process.wait(), patience(20))
    creating.cancel()
    assert [write for write in leader.writes if write.time >= continued] == []


async def _create_pods(world: World) -> None:
    while True:
        world.create_pod()
        await asyncio.sleep(0.2)


def _check_pods(world: World) -> None:
    assert [name for name, count in Counter(world.forwarded()).items() if count > 1] == []


async def test_standby_takes_over_from_leader_without_network(world: World) -> None:
    leader, standby = await world.start_both()
    assert leader.process is not None
    leader.drop_packets()
    assert await world.forward_pod() < SECONDS_MAX
    leader.restore_packets()
    assert await leader.process.wait() == 4
    _check_pods(world)
    assert "leadership ok: leader" in await standby.readyz()


async def test_leader_continues_after_outage_of_management_cluster(world: World) -> None:
    leader = world.replicas[0]
    await world.start(leader)
    await world.forward_pod()
    leader.drop_packets()
    await wait_until(partial(_has_lost_lease, leader), interval=0.05)
    leader.restore_packets()
    await world.forward_pod()
    assert "leadership ok: leader" in await leader.readyz()


async def _has_lost_lease(replica: Replica) -> bool:
    return "[-]lease: " in await replica.readyz()


async def test_every_replica_answers_kubelet_endpoint_and_standby_takes_over_from_killed_leader(world: World) -> None:
    leader, standby = await world.start_both()
    assert "leadership ok: leader" in await leader.readyz()
    assert f"leadership ok: standby of {world.holder}" in await standby.readyz()
    world.bind_compute_pods()
    authority = await world.kubelet_authority()
    logs = "/containerLogs/default/pod-1/a"
    for replica in (leader, standby):
        await wait_until(partial(_is_served, replica, logs, authority))
        status, pods = await replica.ask_kubelet(f"/nodes/{NODE}/pods", authority)
        assert status == 200
        assert "pod-1" in pods
        status, text = await replica.ask_kubelet("/containerLogs/default/other/a", authority)
        assert (status, text) == (400, "pod default/other does not exist on a virtual node\n")
    assert standby.writes == []
    leader.signal(signal.SIGKILL)
    assert await world.forward_pod() < SECONDS_MAX
    assert "leadership ok: leader" in await standby.readyz()
    assert await _is_served(standby, logs, authority)


async def _is_served(replica: Replica, path: str, authority: Authority) -> bool:
    status, _ = await replica.ask_kubelet(path, authority)
    return status == 200
