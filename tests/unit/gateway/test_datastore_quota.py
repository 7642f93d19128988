"""Tests of the datastore monitor."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from tests.support.waiting import wait_until
from vkgateway.api.names import WRITABLE_ANNOTATION
from vkgateway.api.objects import Meta
from vkgateway.api.types import Tenant
from vkgateway.planes.etcd.errors import EtcdUnavailable
from vkgateway.planes.etcd.quota import StoreUsage
from vkgateway.serve import datastore_quota
from vkgateway.serve.datastore_quota import DatastoreMonitor
from vkgateway.tenants.metrics import BLOCKED_TENANTS, DATASTORE

GIB = 1 << 30


class FakeDatastore:
    """Datastore that blocks the tenants that a test selects."""

    def __init__(self) -> None:
        self.blocked: dict[str, int] = {}
        self.exempt: list[Collection[str]] = []
        self.failing: list[Exception] = []

    async def check_usage(self, *, exempt: Collection[str]) -> StoreUsage:
        self.exempt.append(exempt)
        if self.failing:
            raise self.failing.pop()
        return StoreUsage(in_use=6 * GIB, file_size=7 * GIB, quota=8 * GIB)


def tenant(name: str, annotations: dict[str, str] | None = None) -> Tenant:
    return Tenant(metadata=Meta(name=name, annotations=annotations or {}))


class World:
    """Monitor of two tenants in one datastore."""

    def __init__(self) -> None:
        self.datastore = FakeDatastore()
        self.tenants = [tenant("a"), tenant("b")]
        self.news: list[str] = []
        self.known = True
        self.keeping = DatastoreMonitor(
            self.datastore, tenants=lambda: self.tenants if self.known else None, on_change=self.news.append
        )


async def test_verdict_is_unknown_before_first_check() -> None:
    world = World()
    assert world.keeping.write_verdict("a") is None
    await world.keeping.check_datastore()
    assert world.news == []
    verdict = world.keeping.write_verdict("a")
    assert verdict is not None
    assert verdict.is_true


async def test_blocked_tenant_is_reported_with_way_out_until_unblocked() -> None:
    world = World()
    world.datastore.blocked = {"a": 5 * GIB}
    await world.keeping.check_datastore()
    await world.keeping.check_datastore()
    assert world.news == ["a"]
    verdict = world.keeping.write_verdict("a")
    assert verdict is not None
    assert (verdict.status, verdict.reason, verdict.is_failure) == ("False", "DatastoreFull", True)
    for words in ("6.0 GiB of 8.0 GiB", "this tenant uses 5.0 GiB", WRITABLE_ANNOTATION):
        assert words in verdict.message
    world.datastore.blocked = {}
    await world.keeping.check_datastore()
    assert world.news == ["a", "a"]
    after = world.keeping.write_verdict("a")
    assert after is not None
    assert after.is_true


async def test_writable_tenants_are_exempt() -> None:
    world = World()
    world.tenants += [tenant("c", {WRITABLE_ANNOTATION: "true"}), tenant("d", {WRITABLE_ANNOTATION: "false"})]
    await world.keeping.check_datastore()
    assert world.datastore.exempt == [["c"]]


async def test_check_waits_until_tenants_are_known() -> None:
    world = World()
    world.known = False
    await world.keeping.check_datastore()
    assert world.datastore.exempt == []
    assert world.keeping.write_verdict("a") is None


async def test_recreated_tenant_is_not_reported_as_blocked() -> None:
    world = World()
    world.datastore.blocked = {"a": GIB}
    await world.keeping.check_datastore()
    del world.datastore.blocked["a"]
    verdict = world.keeping.write_verdict("a")
    assert verdict is not None
    assert verdict.is_true


async def test_tenants_blocked_by_failed_check_are_reported() -> None:
    world = World()
    await world.keeping.check_datastore()
    world.datastore.blocked = {"a": GIB}
    world.datastore.failing = [EtcdUnavailable("etcd did not do Range")]
    with pytest.raises(EtcdUnavailable):
        await world.keeping.check_datastore()
    assert world.news == ["a"]


async def test_metrics_are_set() -> None:
    world = World()
    world.datastore.blocked = {"a": 0}
    await world.keeping.check_datastore()
    assert DATASTORE.labels("in_use")._value.get() == 6 * GIB
    assert DATASTORE.labels("quota")._value.get() == 8 * GIB
    assert BLOCKED_TENANTS._value.get() == 1


async def test_failed_check_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore_quota, "CHECK_SECONDS", 0.001)
    world = World()
    world.datastore.failing = [EtcdUnavailable("etcd did not do Status"), TypeError("a defect")]
    world.datastore.blocked = {"a": GIB}
    work = asyncio.create_task(world.keeping.run())
    await wait_until(lambda: world.news, seconds=5)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert len(world.datastore.exempt) >= 3
