"""Tests of the datastore's readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.fakes.clock import FakeClock
from tests.support.machine import patience
from tests.unit.controlplane.fakes import FakeEtcd
from vkgateway.planes.etcd.errors import EtcdAuthDisabled, EtcdNotFound, EtcdUnavailable
from vkgateway.planes.etcd.tenancy import Tenancy
from vkgateway.serve.daemon import CHECK_SECONDS, RETRY_SECONDS, DatastoreReadiness


class Datastore:
    """Datastore in a fake etcd, which fails with `failure` if it is set."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._tenancy = Tenancy(etcd)
        self.failure: Exception | None = None
        self.calls = 0

    async def require_auth(self, *, enable: bool) -> None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        await (self._tenancy.ensure_root() if enable else self._tenancy.require_auth())


async def test_etcd_without_auth_is_reported_with_way_out() -> None:
    readiness = DatastoreReadiness(Datastore(FakeEtcd(enabled=False)), enable_auth=False)
    assert readiness.problem() == "not checked yet"
    await readiness.check_datastore()
    assert "no users and roles: every tenant could read the keys of all others" in readiness.problem()
    assert "datastore.enableAuth" in readiness.problem()


async def test_auth_is_enabled_once() -> None:
    etcd = FakeEtcd(enabled=False)
    readiness = DatastoreReadiness(Datastore(etcd), enable_auth=True)
    assert readiness.problem() == "not checked yet"
    await readiness.check_datastore()
    changes = etcd.auth.changes
    await readiness.check_datastore()
    assert (readiness.problem(), etcd.auth.enabled, etcd.auth.changes) == ("", True, changes)
    assert etcd.auth.users == {"root": {"root"}}


@pytest.mark.parametrize("failure", [EtcdUnavailable("etcd at 10.0.0.1:2379 is down"), ValueError("a bug")])
async def test_failure_is_reported_and_retried(failure: Exception) -> None:
    datastore, clock = Datastore(FakeEtcd()), FakeClock()
    datastore.failure = failure
    readiness = DatastoreReadiness(datastore, enable_auth=False, ready_unchecked=True, clock=clock)
    assert readiness.problem() == ""
    work = asyncio.create_task(readiness.run())
    await _until(lambda: datastore.calls == 2)
    assert readiness.problem().startswith(("etcd at 10.0.0.1:2379 is down", "ValueError"))
    datastore.failure = None
    await _until(lambda: not readiness.problem() and clock.sleeps[-1] == CHECK_SECONDS)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert RETRY_SECONDS in clock.sleeps


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience(5)):
        while not condition():  # noqa: ASYNC110 - the fake clock has no event
            await asyncio.sleep(0)


async def test_tenant_is_refused_with_same_sentence() -> None:
    with pytest.raises(EtcdAuthDisabled, match="no users and roles") as caught:
        await Tenancy(FakeEtcd(enabled=False)).ensure_tenant("a")
    assert "datastore.enableAuth" in caught.value.hint


async def test_user_that_etcd_does_not_know_is_reported_with_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = FakeEtcd()

    async def status() -> bool:
        raise EtcdNotFound("etcdserver: user name not found")

    monkeypatch.setattr(etcd.auth, "is_enabled", status)
    readiness = DatastoreReadiness(Datastore(etcd), enable_auth=False)
    await readiness.check_datastore()
    assert "no user for the gateway's client certificate" in readiness.problem()
    assert "common name is root" in readiness.problem()
