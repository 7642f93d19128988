"""Tests of our finalizer on objects that others change at the same moment."""

from __future__ import annotations

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.gateway.conftest import tenant_document
from vkgateway.gateway import finalizers
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import TENANTS
from vkgateway.model.names import TENANT_FINALIZER
from vkgateway.model.objects import Meta, decode_object

THEIRS = "backup.example.com/hold"


async def look(client: Client) -> Meta:
    return decode_object(await client.get(TENANTS, "alpha")).metadata


async def change(client: Client, *names: str) -> None:
    await client.patch(TENANTS, "alpha", {"metadata": {"finalizers": list(names) or None}})


async def test_what_others_put_on_meanwhile_stays(server: FakeApiServer, client: Client) -> None:
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


async def test_what_others_took_off_meanwhile_does_not_come_back(server: FakeApiServer, client: Client) -> None:
    server.store.create(TENANTS, tenant_document("alpha"))
    await change(client, THEIRS, TENANT_FINALIZER)
    seen = await look(client)
    await change(client, TENANT_FINALIZER)

    await finalizers.remove_finalizer(client, TENANTS, seen, TENANT_FINALIZER)
    assert (await look(client)).finalizers == ()


async def test_another_object_of_that_name_is_left_alone(server: FakeApiServer, client: Client) -> None:
    server.store.create(TENANTS, tenant_document("alpha"))
    seen = await look(client)
    server.store.delete(TENANTS, "alpha", "")
    server.store.create(TENANTS, tenant_document("alpha"))
    await change(client, TENANT_FINALIZER)

    with pytest.raises(errors.NotFound, match="was replaced by a new object"):
        await finalizers.add_finalizer(client, TENANTS, seen, THEIRS)
    await finalizers.remove_finalizer(client, TENANTS, seen, TENANT_FINALIZER)
    assert (await look(client)).finalizers == (TENANT_FINALIZER,)


async def test_who_loses_every_race_says_so(server: FakeApiServer, client: Client) -> None:
    server.store.create(TENANTS, tenant_document("alpha"))
    server.fail("PATCH", "tenants/alpha", status=409, reason="Conflict", times=100)
    with pytest.raises(errors.Conflict):
        await finalizers.add_finalizer(client, TENANTS, await look(client), TENANT_FINALIZER)
