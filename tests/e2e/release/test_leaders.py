"""Leader and standby of a release: whatever ends the leader, another replica continues, and no pod is doubled.

Each test begins when both replicas are ready. The order keeps the pods' containers from long pauses between restarts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.chart import SYSTEM, ChartPlatform
from tests.e2e.cluster import Cluster, Document, eventually
from tests.e2e.release.podstream import PodStream, open_stream
from tests.e2e.release.replicas import (
    frozen,
    kill_until_replaced,
    name_of,
    packets_dropped,
    wait_for_standby,
    wait_replaced,
)
from tests.e2e.release.writes import Write, Writes, count_unseen, count_writes


@pytest.fixture(scope="module")
def writes(installed: ChartPlatform) -> Iterator[Writes]:
    """Count all writes of the gateway's pods."""
    with count_writes(installed) as writes:
        yield writes
        assert count_unseen(installed) == 0


@pytest.fixture
def stream(installed: ChartPlatform, gamma: Cluster, tmp_path: Path) -> Iterator[PodStream]:
    """Yield a stream of tenant pods on a hollow node."""
    with open_stream(gamma, installed.compute, namespace="gamma--default", folder=tmp_path) as stream:
        yield stream


def check_logs_and_exec(tenant: Cluster) -> None:
    """Wait until logs and exec of a pod on the real node work: a Service may lead to the lost replica for a while."""

    def answers(*args: str) -> str:
        try:
            return tenant.try_kubectl(*args, timeout=10).out
        except subprocess.TimeoutExpired:
            return ""

    eventually(lambda: "started" in answers("logs", "stays"), what="logs")
    eventually(lambda: "works" in answers("exec", "stays", "--", "echo", "works"), what="exec")


def created_pods(writes: list[Write]) -> set[str]:
    """Return the names of the compute pods that these writes create."""
    return {write.name for write in writes if (write.operation, write.resource) == ("CREATE", "pods")}


@dataclass(frozen=True)
class Scene:
    """What a test of a lost leader acts on."""

    platform: ChartPlatform
    tenant: Cluster
    writes: Writes
    stream: PodStream

    def lose(self, leader: Document, fault: Callable[[Document], AbstractContextManager[None]]) -> list[Write]:
        """Replace a leader that has a fault for a while, with pods created all the time; return its writes until then.

        Afterwards, each tenant pod has one compute pod.
        """
        with self.stream.creating():
            self.stream.wait_forwarded()
            with fault(leader):
                wait_replaced(self.platform, leader)
                before = self.writes.of(name_of(leader))
                self.stream.wait_forwarded()
                check_logs_and_exec(self.tenant)
            self.stream.wait_forwarded()
        self.stream.check()
        return before


@pytest.fixture
def scene(installed: ChartPlatform, gamma: Cluster, writes: Writes, stream: PodStream) -> Scene:
    return Scene(installed, gamma, writes, stream)


def test_leader_without_network_is_replaced(installed: ChartPlatform, writes: Writes, scene: Scene) -> None:
    leader = wait_for_standby(installed)
    before = scene.lose(leader, packets_dropped)
    assert created_pods(before)
    assert writes.of(name_of(leader)) == before


def test_frozen_leader_writes_nothing_when_it_continues(
    installed: ChartPlatform, writes: Writes, stream: PodStream, scene: Scene
) -> None:
    leader = wait_for_standby(installed)
    before = scene.lose(leader, frozen)
    assert name_of(wait_for_standby(installed)) != name_of(leader)
    assert created_pods(before)
    assert created_pods(writes.seen) >= stream.uids.keys()
    assert writes.of(name_of(leader)) == before


def test_deleted_leader_is_replaced(
    installed: ChartPlatform, gamma: Cluster, writes: Writes, stream: PodStream
) -> None:
    leader = wait_for_standby(installed)
    with stream.creating():
        stream.wait_forwarded()
        installed.compute.kubectl("delete", "pod", name_of(leader), "-n", SYSTEM, "--wait=false")
        wait_replaced(installed, leader)
        stream.wait_forwarded()
    check_logs_and_exec(gamma)
    stream.check()
    assert created_pods(writes.of(name_of(leader)))


def test_killed_leader_is_replaced(installed: ChartPlatform, gamma: Cluster, writes: Writes, stream: PodStream) -> None:
    leader = wait_for_standby(installed)
    with stream.creating():
        stream.wait_forwarded()
        kill_until_replaced(installed, leader)
        stream.wait_forwarded()
    check_logs_and_exec(gamma)
    stream.check()
    # A new pod starts at once, the killed one only after a pause.
    installed.compute.kubectl("delete", "pod", name_of(leader), "-n", SYSTEM, "--wait=false")
