"""Tests of finalizers with concurrent writers."""

from __future__ import annotations

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.gateway.conftest import tenant_document
from vkgateway.api.names import TENANT_FINALIZER
from vkgateway.api.objects import Meta, decode_object
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import TENANTS
from vkgateway.runtime import finalizers

THEIRS = "backup.example.com/hold"


async def look(client: Client) -> Meta:
    return decode_object(await client.get(TENANTS, "alpha")).metadata


async def change(client: Client, *names: str) -> None:
    await client.patch(TENANTS, "alpha", {"metadata": {"finalizers": list(names) or None}})


async def test_concurrently_added_finalizers_stay(server: FakeApiServer, client: Client) -> None:
    server.store.create(TENANTS, tenant_document("alpha"))
    seen = await look(client)
    await change(client, THEIRS)

    stored = await finalizers.add_finalizer(client, TENANTS, seen, TENANT_FINALIZER, annotations={"note": "kept"})
    assert stored == await look(client)
    assert stored.finalizers == (THEIRS, TENANT_FINALIZER)
    assert stored.annotations["note"] == "kept"

    await change(client, THEIRS, TENANT_FINALIZER, f"{THEIRS}-too")
    await finalizers.remove_finalizer(client, TENANTS, stored, TENANT_FINALIZER)
    assert (await look(client)).finalizers == (THEIRS, f"{THEIRS}-too")


async def test_concurrently_removed_finalizers_stay_removed(server: FakeApiServer, client: Client) -> None:
    server.store.create(TENANTS, tenant_document("alpha"))
    await change(client, THEIRS, TENANT_FINALIZER)
    seen = await look(client)
    await change(client, TENANT_FINALIZER)

    await finalizers.remove_finalizer(client, TENANTS, seen, TENANT_FINALIZER)
    assert (await look(client)).finalizers == ()


async def test_recreated_object_is_not_changed(server: FakeApiServer, client: Client) -> None:
    server.store.create(TENANTS, tenant_document("alpha"))
    seen = await look(client)
    server.store.delete(TENANTS, "alpha", "")
    server.store.create(TENANTS, tenant_document("alpha"))
    await change(client, TENANT_FINALIZER)

    with pytest.raises(errors.NotFound, match="was replaced by a new object"):
        await finalizers.add_finalizer(client, TENANTS, seen, THEIRS)
    await finalizers.remove_finalizer(client, TENANTS, seen, TENANT_FINALIZER)
    assert (await look(client)).finalizers == (TENANT_FINALIZER,)


async def test_endless_conflicts_raise(server: FakeApiServer, client: Client) -> None:
    server.store.create(TENANTS, tenant_document("alpha"))
    server.fail("PATCH", "tenants/alpha", status=409, reason="Conflict", times=100)
    with pytest.raises(errors.Conflict):
        await finalizers.add_finalizer(client, TENANTS, await look(client), TENANT_FINALIZER)
