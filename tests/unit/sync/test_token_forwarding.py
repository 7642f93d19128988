"""Service account tokens and root certificate: created before the pod, refreshed while it runs, deleted after it."""

from __future__ import annotations

import base64
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.clock import AdjustedClock
from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.api.names import POD_SERVICE_ACCOUNT
from vkgateway.kube.resources import CONFIG_MAPS, PODS, SECRETS, SERVICE_ACCOUNTS

TOKEN_VOLUME: dict[str, Any] = {
    "serviceAccountName": "builder",
    "volumes": [
        {
            "name": "kube-api-access-abcde",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                ]
            },
        }
    ],
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


async def test_tokens_and_root_certificate_are_forwarded(world: World) -> None:
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME)
    async with world.run_gateway():
        below = await world.wait_forwarded()
        secrets = world.compute_server.store.all(SECRETS)

    assert len(secrets) == 1
    (key,) = secrets[0]["data"]
    assert base64.b64decode(secrets[0]["data"][key]).startswith(b"token.default.builder")
    sources = below["spec"]["volumes"][0]["projected"]["sources"]
    assert sources[0]["secret"]["name"] == secrets[0]["metadata"]["name"]
    assert sources[1]["configMap"]["name"] == "vkgateway-root-ca.crt"
    assert below["spec"]["serviceAccountName"] == POD_SERVICE_ACCOUNT
    assert below["spec"]["automountServiceAccountToken"] is False


async def test_deleted_tokens_are_created_again(world: World) -> None:
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        await world.wait_settled()
        (secret,) = world.compute_server.store.all(SECRETS)
        world.compute_server.store.delete(SECRETS, secret["metadata"]["name"], COMPUTE_NAMESPACE)
        (recreated,) = await wait_until(lambda: world.compute_server.store.all(SECRETS))
    assert recreated["metadata"]["name"] == secret["metadata"]["name"]
    assert recreated["metadata"]["uid"] != secret["metadata"]["uid"]


async def test_tokens_are_deleted_with_their_pod(world: World) -> None:
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        world.delete_pod(grace=0)
        await wait_until(lambda: (world.compute_pod() or {}).get("metadata", {}).get("deletionTimestamp"))
        world.end_pod(code=137)
        await wait_until(lambda: world.compute_server.store.all(SECRETS) == [])


async def test_tokens_are_refreshed_before_they_expire() -> None:
    clock = AdjustedClock()

    async with start_world(clock=clock) as world:
        world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
        world.tenant_server.store.create(
            CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
        )
        world.create_pod(**TOKEN_VOLUME)
        async with world.run_gateway() as sync:
            await world.wait_forwarded()
            world.run_pod()
            await wait_until(lambda: world.pod_phase() == "Running")
            first = copy.deepcopy(world.compute_server.store.all(SECRETS)[0]["data"])
            clock.passed = 3000.0
            sync.resync()
            await wait_until(lambda: world.compute_server.store.all(SECRETS)[0]["data"] != first)


async def create_terminating(world: World, *, by_tenant: bool) -> dict[str, Any]:
    """Run a pod with a token and a grace period of an hour, delete it, and return the token."""
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME, terminationGracePeriodSeconds=3600)
    await world.wait_forwarded()
    world.run_pod()
    await wait_until(lambda: world.pod_phase() == "Running")
    if by_tenant:
        world.delete_pod()
    else:
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
    await wait_until(lambda: (world.compute_pod() or {})["metadata"].get("deletionTimestamp"))
    await world.wait_settled()
    return copy.deepcopy(world.compute_server.store.all(SECRETS)[0]["data"])


@pytest.mark.parametrize("by_tenant", [True, False])
async def test_tokens_of_a_terminating_pod_are_refreshed(by_tenant: bool) -> None:
    clock = AdjustedClock()
    async with start_world(clock=clock) as world, world.run_gateway() as sync:
        first = await create_terminating(world, by_tenant=by_tenant)
        clock.passed = 3000.0
        sync.resync()
        await wait_until(lambda: world.compute_server.store.all(SECRETS)[0]["data"] != first)
        assert world.pod_phase() == "Running"


async def test_tokens_of_a_deleted_account_stay_while_the_pod_terminates() -> None:
    clock = AdjustedClock()
    async with start_world(clock=clock) as world, world.run_gateway() as sync:
        first = await create_terminating(world, by_tenant=True)
        world.tenant_server.store.delete(SERVICE_ACCOUNTS, "builder", "default")
        asked = len([request for request in world.tenant_server.requests if "/token" in request])
        clock.passed = 3000.0
        sync.resync()
        await wait_until(
            lambda: len([request for request in world.tenant_server.requests if "/token" in request]) > asked
        )
        world.end_pod(code=143)
        await wait_until(lambda: world.tenant_pod() is None)
        assert first
    assert len([request for request in world.tenant_server.requests if "/token" in request]) == asked + 1
