"""Who may not write to the datastore is told of, once, and again when that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from tests.support.waiting import wait_until
from vkgateway.controlplane.etcd.errors import EtcdUnavailable
from vkgateway.controlplane.etcd.quota import StoreUsage
from vkgateway.gateway import datastore_quota
from vkgateway.gateway.datastore_quota import DatastoreMonitor
from vkgateway.gateway.metrics import BLOCKED_TENANTS, DATASTORE
from vkgateway.model.api import Tenant
from vkgateway.model.names import WRITABLE_ANNOTATION
from vkgateway.model.objects import Meta

GIB = 1 << 30


class FakeDatastore:
    """Holds whom a test says."""

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
    """Two tenants in one datastore."""

    def __init__(self) -> None:
        self.datastore = FakeDatastore()
        self.tenants = [tenant("a"), tenant("b")]
        self.news: list[str] = []
        self.known = True
        self.keeping = DatastoreMonitor(
            self.datastore, tenants=lambda: self.tenants if self.known else None, on_change=self.news.append
        )


async def test_nothing_is_said_before_the_first_look() -> None:
    world = World()
    assert world.keeping.write_verdict("a") is None
    await world.keeping.check_datastore()
    assert world.news == []
    verdict = world.keeping.write_verdict("a")
    assert verdict is not None
    assert verdict.is_true


async def test_a_tenant_that_is_held_is_told_of_with_the_way_out_and_so_is_the_end_of_it() -> None:
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


async def test_tenants_that_may_write_in_any_case_are_named_to_the_datastore() -> None:
    world = World()
    world.tenants += [tenant("c", {WRITABLE_ANNOTATION: "true"}), tenant("d", {WRITABLE_ANNOTATION: "false"})]
    await world.keeping.check_datastore()
    assert world.datastore.exempt == [["c"]]


async def test_nothing_is_done_before_it_is_known_who_may_write_in_any_case() -> None:
    world = World()
    world.known = False
    await world.keeping.check_datastore()
    assert world.datastore.exempt == []
    assert world.keeping.write_verdict("a") is None


async def test_a_tenant_that_was_made_anew_is_not_told_to_be_held() -> None:
    world = World()
    world.datastore.blocked = {"a": GIB}
    await world.keeping.check_datastore()
    del world.datastore.blocked["a"]
    verdict = world.keeping.write_verdict("a")
    assert verdict is not None
    assert verdict.is_true


async def test_who_was_held_in_a_look_that_failed_is_told_of() -> None:
    world = World()
    await world.keeping.check_datastore()
    world.datastore.blocked = {"a": GIB}
    world.datastore.failing = [EtcdUnavailable("etcd did not do Range")]
    with pytest.raises(EtcdUnavailable):
        await world.keeping.check_datastore()
    assert world.news == ["a"]


async def test_figures_are_set() -> None:
    world = World()
    world.datastore.blocked = {"a": 0}
    await world.keeping.check_datastore()
    assert DATASTORE.labels("in_use")._value.get() == 6 * GIB
    assert DATASTORE.labels("quota")._value.get() == 8 * GIB
    assert BLOCKED_TENANTS._value.get() == 1


async def test_a_datastore_that_does_not_answer_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore_quota, "CHECK_SECONDS", 0.001)
    world = World()
    world.datastore.failing = [EtcdUnavailable("etcd did not do Status"), TypeError("a defect")]
    world.datastore.blocked = {"a": GIB}
    work = asyncio.create_task(world.keeping.run())
    await wait_until(lambda: world.news, seconds=5)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert len(world.datastore.exempt) >= 3
