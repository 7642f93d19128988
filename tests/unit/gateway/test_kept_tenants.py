"""Tenants of which only the data is kept: what is free, what stays, and what restarts of the gateway change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.fakes.clock import AdjustedClock
from tests.support.waiting import let_pass, wait_until
from tests.unit.gateway.conftest import condition
from tests.unit.gateway.test_tenant_controller import World, pool, set_deletion, world
from vkgateway.api.times import render_time
from vkgateway.clusters.status import true_verdict
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS, TENANTS
from vkgateway.tenants.accepted_specs import ACCEPTED_SPEC_ANNOTATION

__all__ = ["world"]

FAR = "2999-01-01T00:00:00Z"


def ready_reason(world: World, name: str) -> str:
    return str(condition(world.server, "Ready", name).get("reason", ""))


def accepted(world: World, name: str) -> dict[str, Any]:
    return condition(world.server, "Accepted", name)


async def keep(world: World, name: str, *, until: str = FAR) -> None:
    """Delete a tenant later, and wait until only its data is left."""
    set_deletion(world, name, until)
    await wait_until(lambda: ready_reason(world, name) == "DataKept")


def add_claim(world: World, tenant: str) -> None:
    """Create a pod of the tenant with a compute claim in its compute namespace."""
    world.add_pod(tenant, "web")
    world.server.store.create(
        PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data"}, "spec": {}}, f"{tenant}--default"
    )


def has_claim(world: World, tenant: str) -> bool:
    return world.server.store.find(PERSISTENT_VOLUME_CLAIMS, "data", f"{tenant}--default") is not None


async def test_volumes_stay_until_the_end_of_the_time_and_are_deleted_then(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha")
    async with world.gateway(clock=clock) as tenants:
        await wait_until(lambda: world.phase("alpha") == "Ready")
        add_claim(world, "alpha")
        await keep(world, "alpha", until=render_time(clock.now() + timedelta(minutes=5)))
        assert world.server.store.find(PODS, "web", "alpha--default") is None
        assert has_claim(world, "alpha")
        set_deletion(world, "alpha", None)
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert has_claim(world, "alpha")
        await keep(world, "alpha", until=render_time(clock.now() + timedelta(minutes=5)))
        clock.passed += 301
        tenants.enqueue("alpha")
        await wait_until(lambda: world.gone("alpha"))
    assert not has_claim(world, "alpha")
    assert world.server.store.find(NAMESPACES, "alpha--default") is None


async def test_time_that_ends_while_no_gateway_runs_is_observed_by_the_next(world: World) -> None:
    clock = AdjustedClock()
    world.create("alpha")
    async with world.gateway(clock=clock):
        await wait_until(lambda: world.phase("alpha") == "Ready")
        add_claim(world, "alpha")
        await keep(world, "alpha", until=render_time(clock.now() + timedelta(minutes=5)))
    clock.passed += 301
    async with world.gateway(clock=clock):
        await wait_until(lambda: world.gone("alpha"))
    assert not has_claim(world, "alpha")
    assert world.planes.removed["alpha"] == 2, "before its creation, and now"


async def test_restored_tenant_whose_guarantee_is_taken_gets_it_at_no_restart(world: World) -> None:
    world.create("alpha", pools=[pool(12)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        await keep(world, "alpha")
        world.create("beta", pools=[pool(12)])
        await wait_until(lambda: world.phase("beta") == "Ready")
        set_deletion(world, "alpha", None)
        await wait_until(lambda: accepted(world, "alpha")["status"] == "False")
    for _ in range(2):
        async with world.gateway() as tenants:
            await wait_until(lambda: {"alpha", "beta"} <= set(tenants.tenants.tenant_names()))
            await wait_until(lambda: world.phase("beta") == "Ready")
            await let_pass(0.1)
            assert tenants.accepted_specs.spec_of("alpha") is None
            assert "alpha" not in world.planes.there
            await wait_until(lambda: accepted(world, "alpha")["reason"] == "GuaranteeBeyondPool")
    assert "pool local/a100" in accepted(world, "alpha")["message"]
    async with world.gateway():
        world.server.store.delete(TENANTS, "beta")
        await wait_until(lambda: world.gone("beta"))
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert ACCEPTED_SPEC_ANNOTATION in world.get("alpha")["metadata"]["annotations"]


async def test_tenant_restored_before_it_is_stopped_keeps_its_guarantee(world: World) -> None:
    world.create("alpha", pools=[pool(12)])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        set_deletion(world, "alpha", FAR)
        await wait_until(lambda: ACCEPTED_SPEC_ANNOTATION not in world.get("alpha")["metadata"]["annotations"])
        set_deletion(world, "alpha", None)
        await wait_until(lambda: ACCEPTED_SPEC_ANNOTATION in world.get("alpha")["metadata"]["annotations"])
        await wait_until(lambda: world.phase("alpha") == "Ready")


async def test_control_plane_of_a_kept_tenant_is_not_repaired(world: World) -> None:
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        await keep(world, "alpha")
    async with world.gateway() as tenants:
        tenants.repair_control_plane("alpha")  # its driver misses a Deployment
        await wait_until(lambda: world.planes.stopped["alpha"] == 2)
        tenants.repair_control_plane("alpha")
        await let_pass(0.1)
        assert world.planes.made["alpha"] == 1
        set_deletion(world, "alpha", None)
        await wait_until(lambda: world.phase("alpha") == "Ready")
        assert world.planes.made["alpha"] == 2


async def test_guarantee_of_a_kept_tenant_is_not_reported(world: World) -> None:
    world.create("alpha", pools=[pool(12)])
    world.guarantees["alpha"] = true_verdict("Kept")
    async with world.gateway():
        await wait_until(lambda: condition(world.server, "GuaranteeKept", "alpha"))
        await keep(world, "alpha")
        await wait_until(lambda: not condition(world.server, "GuaranteeKept", "alpha"))  # it is free
        set_deletion(world, "alpha", None)
        await wait_until(lambda: condition(world.server, "GuaranteeKept", "alpha"))


async def test_compute_cluster_stays_attached_while_it_has_data_of_a_tenant(world: World) -> None:
    world.create("alpha", pools=[pool()])
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        add_claim(world, "alpha")
        await keep(world, "alpha")
    async with world.gateway():
        world.server.store.delete(COMPUTE_CLUSTERS, "local")
        await wait_until(lambda: condition(world.server, "Ready", "local", tenant=False).get("reason") == "InUse")
        message = condition(world.server, "Ready", "local", tenant=False)["message"]
        assert message.endswith("still in use by: alpha")
        world.server.store.delete(TENANTS, "alpha")
        await wait_until(lambda: world.gone("alpha"))
        assert not has_claim(world, "alpha")
        await wait_until(lambda: world.server.store.find(COMPUTE_CLUSTERS, "local") is None)


@pytest.mark.parametrize("restarted", [False, True])
async def test_forced_deletion_of_a_kept_tenant_is_cleaned_up(world: World, *, restarted: bool) -> None:
    world.create("alpha")
    async with world.gateway():
        await wait_until(lambda: world.phase("alpha") == "Ready")
        add_claim(world, "alpha")
        await keep(world, "alpha")
        if not restarted:
            world.remove_by_force("alpha")
            await wait_until(lambda: not has_claim(world, "alpha"))
    if restarted:
        async with world.gateway():
            await wait_until(lambda: world.planes.stopped["alpha"] == 2)
            await wait_until(lambda: ready_reason(world, "alpha") == "DataKept")
            world.remove_by_force("alpha")
            await wait_until(lambda: not has_claim(world, "alpha"))
            await wait_until(lambda: world.planes.removed["alpha"] == 2)
