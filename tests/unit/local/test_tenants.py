"""A restarted platform waits for its tenants' API servers, and names the missing ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from vkgateway.kube.kubeconfig import write_file
from vkgateway.kube.resources import TENANTS
from vkgateway.planes.plane_files import PlaneFiles
from vkgateway_platform.embedded import tenants


def from_when(clock: FakeClock, **when: float) -> Callable[[str], Awaitable[bool]]:
    async def serves(name: str) -> bool:
        return clock.seconds >= when[name]

    return serves


async def test_all_tenants_are_waited_for() -> None:
    clock = FakeClock()
    serves = from_when(clock, alpha=4, beta=2.5)
    summary = await tenants.wait_for_tenants(["alpha", "beta"], serves, clock=clock)
    assert (summary, clock.seconds) == ("2 of 2 API servers answer", 4)


async def test_wait_without_tenants_returns_at_once() -> None:
    clock = FakeClock()
    assert await tenants.wait_for_tenants([], from_when(clock), clock=clock) == "none yet"
    assert clock.seconds == 0


async def test_missing_tenants_are_named_after_the_time_limit() -> None:
    clock = FakeClock()
    never = dict.fromkeys(("b", "c", "d", "e"), 1e9)
    summary = await tenants.wait_for_tenants(["a", *never], from_when(clock, a=1, **never), within=10, clock=clock)
    assert summary.startswith("1 of 5 API servers answer; not yet: b, c, d and others; ")
    assert clock.seconds == 10


async def test_only_tenants_that_were_ready_are_waited_for() -> None:
    async with FakeApiServer() as server, server.client() as client:
        for name, phase in (("gamma", "Ready"), ("alpha", "Ready"), ("new", "Provisioning"), ("broken", "Degraded")):
            server.store.create(TENANTS, {"metadata": {"name": name}, "status": {"phase": phase}})
        leaving = {"metadata": {"name": "leaving", "finalizers": ["a/b"]}, "status": {"phase": "Ready"}}
        server.store.create(TENANTS, leaving)
        server.store.delete(TENANTS, "leaving")
        assert await tenants.list_ready(client) == ["alpha", "gamma"]


@pytest.mark.parametrize("there", [True, False])
async def test_serving_check_uses_the_admin_kubeconfig(tmp_path: Path, *, there: bool) -> None:
    answers = tenants.serving_check(tmp_path)
    assert not await answers("alpha")  # no kubeconfig exists yet
    async with FakeApiServer() as server:
        url = server.url if there else "http://127.0.0.1:1"
        cluster = {"name": "alpha", "cluster": {"server": url}}
        context = {"name": "alpha", "context": {"cluster": "alpha", "user": "alpha"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "users": [{"name": "alpha", "user": {}}],
            "contexts": [context],
            "current-context": "alpha",
        }
        write_file(PlaneFiles(tmp_path / "alpha").kubeconfig_path("admin"), config)
        assert await answers("alpha") is there
