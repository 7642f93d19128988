"""Datastore quota: a tenant fills the shared datastore, other tenants continue, and the tenant recovers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.controlplane.world import World, run_world
from vkgateway.api.objects import Meta
from vkgateway.api.types import Tenant
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS
from vkgateway.planes.access import ControlPlane
from vkgateway.planes.etcd.errors import EtcdFull
from vkgateway.planes.etcd.quota import (
    BLOCKING_SHARE,
    COMPACTION_SHARE,
    URGENT_SHARE,
    QuotaController,
    StoreUsage,
)
from vkgateway.planes.etcd.tenancy import Tenancy

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

QUOTA = 128 << 20
LARGE = "x" * 900_000
"""Value of nearly the maximum size of an object."""


class TenantApi:
    """Tenant with its API server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def create(self, name: str, *, text: str = "") -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}}
        await self.client.create(CONFIG_MAPS, body, namespace="default")

    async def fill(self, keeper: QuotaController) -> None:
        """Create large objects until they are refused. The keeper reconciles after each hundredth of the quota."""
        for number in range(2 * QUOTA // len(LARGE)):
            await self.create(f"large-{number}", text=LARGE)
            await keeper.check_usage()


async def rewrite_object(place: World, *, keeper: QuotaController | None = None) -> None:
    """Rewrite one large object through `wild`'s API server until the sum exceeds the quota."""
    async with place.etcd_as("tenant-wild") as etcd:
        for number in range(2 * QUOTA // len(LARGE)):
            await etcd.keys.put("/tenants/wild/again", LARGE.encode())
            if keeper is not None and number % 5 == 0:
                await keeper.check_usage()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with run_world(tmp_path_factory.mktemp("platform"), quota=QUOTA) as place:
        yield place


@pytest.fixture
def keeper(place: World) -> QuotaController:
    return QuotaController(place.etcd.maintenance, Tenancy(place.etcd))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wild(place: World) -> AsyncIterator[TenantApi]:
    async with (await _tenant(place, "wild")).create_client() as client:
        yield TenantApi(client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calm(place: World) -> AsyncIterator[TenantApi]:
    async with (await _tenant(place, "calm")).create_client() as client:
        yield TenantApi(client)


async def _tenant(place: World, name: str) -> ControlPlane:
    return await place.provisioner().provision(Tenant(metadata=Meta(name=name)))


async def _quota_share(place: World) -> float:
    return StoreUsage.from_status(await place.etcd.maintenance.member_status()).used_share


async def test_rewritten_object_blocks_no_tenant(
    place: World, keeper: QuotaController, wild: TenantApi, calm: TenantApi
) -> None:
    await rewrite_object(place, keeper=keeper)
    await calm.create("meanwhile")
    assert keeper.blocked == {}
    assert (await place.etcd.maintenance.member_status()).size < QUOTA


async def test_tenant_over_quota_is_read_only_and_others_continue(
    place: World, keeper: QuotaController, wild: TenantApi, calm: TenantApi
) -> None:
    with pytest.raises(errors.ApiError, match="permission denied"):
        await wild.fill(keeper)
    assert set(keeper.blocked) == {"wild"}
    assert keeper.blocked["wild"] > QUOTA // 3
    assert BLOCKING_SHARE <= await _quota_share(place) < URGENT_SHARE
    await calm.create("afterwards")
    await TenantApi(place.management).create("below")
    assert await wild.client.get(CONFIG_MAPS, "large-0", namespace="default")
    with pytest.raises(errors.ApiError, match="permission denied"):
        await wild.client.delete(CONFIG_MAPS, "large-0", namespace="default")


async def test_tenant_that_frees_space_may_write_again(
    place: World, keeper: QuotaController, wild: TenantApi, calm: TenantApi
) -> None:
    await keeper.check_usage()
    assert set(keeper.blocked) == {"wild"}
    await keeper.check_usage(exempt={"wild"})
    number = 0
    while await _quota_share(place) >= COMPACTION_SHARE:
        await wild.client.delete(CONFIG_MAPS, f"large-{number}", namespace="default")
        number += 1
        if number % 5 == 0:
            await keeper.check_usage(exempt={"wild"})
    await keeper.check_usage()
    assert keeper.blocked == {}
    for side in (wild, calm):
        await side.create("again-free")


async def test_full_datastore_is_reopened(place: World, keeper: QuotaController, wild: TenantApi) -> None:
    with pytest.raises(EtcdFull):
        await rewrite_object(place)
    assert (await place.etcd.maintenance.member_status()).is_full
    with pytest.raises(errors.ApiError, match="space exceeded"):
        await TenantApi(place.management).create("refused")

    await keeper.check_usage()

    status = await place.etcd.maintenance.member_status()
    assert not status.is_full
    assert status.size < QUOTA // 2
    await TenantApi(place.management).create("taken")
    await wild.create("taken")
