"""Tests of the stored sums, with the gateway's own rights in the management cluster."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.fakes.apiserver import FakeApiServer
from tests.unit.usage.records import HOUR, at, used
from vkgateway.api.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS, NAMESPACES
from vkgateway.tenants.usage.ledger import UsageLedger
from vkgateway.tenants.usage.monitor import UsageStore, config_map

NOON = at("2026-11-26 12:00")


def counted(hours: float) -> UsageLedger:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + hours * HOUR, band="low", borrowed=True)])
    return ledger


async def test_month_is_created_then_changed_and_read_again(server: FakeApiServer, client: Client) -> None:
    server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
    store = UsageStore(client)
    assert await store.load() == []
    for hours in (1, 2):
        (month,) = counted(hours).take_changed(NOON + hours * HOUR)
        await store.save(month)
        assert await store.load() == [month]
    found = server.store.get(CONFIG_MAPS, "usage-alpha-2026-11", SYSTEM_NAMESPACE)
    assert TENANT_LABEL not in found["metadata"]["labels"], "a compute cluster would take it for a copy"
    await store.delete([("alpha", "", "2026-11"), ("alpha", "", "2026-10")])
    assert await store.load() == []


async def test_unreadable_and_foreign_objects_are_left_out(server: FakeApiServer, client: Client) -> None:
    server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
    (month,) = counted(1).take_changed(NOON + HOUR)
    broken = config_map(month) | {"data": {"usage.json": "{"}}
    broken["metadata"]["name"] = "usage-beta-2026-11"
    server.store.create(CONFIG_MAPS, broken)
    server.store.create(CONFIG_MAPS, {"metadata": {"name": "other", "namespace": SYSTEM_NAMESPACE}})
    with capture_logs() as lines:
        assert await UsageStore(client).load() == []
    assert [line["config_map"] for line in lines] == ["usage-beta-2026-11"]


async def test_unreadable_sums_are_kept_beside_the_new_ones(server: FakeApiServer, client: Client) -> None:
    server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
    (month,) = counted(1).take_changed(NOON + HOUR)
    server.store.create(CONFIG_MAPS, config_map(month) | {"data": {"usage.json": "{"}})
    store = UsageStore(client)
    await store.load()
    for _ in range(2):
        await store.save(month)
        assert server.store.get(CONFIG_MAPS, "usage-alpha-2026-11", SYSTEM_NAMESPACE)["data"]["unreadable.json"] == "{"
    assert await store.load() == [month]


async def test_tenants_of_one_name_have_config_maps_of_their_own(server: FakeApiServer, client: Client) -> None:
    server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
    ledger, store = UsageLedger(), UsageStore(client)
    ledger.count([used("p", NOON, NOON + HOUR, tenantUid=uid) for uid in ("first", "next")])
    months = ledger.take_changed(NOON + HOUR)
    for month in months:
        await store.save(month)
    assert await store.load() == months
    await store.delete([("alpha", "first", "2026-11")])
    assert await store.load() == months[1:]
