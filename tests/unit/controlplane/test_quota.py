"""A tenant that fills the shared etcd does not stop the writes of others."""

from __future__ import annotations

import itertools

import pytest

from tests.fakes.clock import FakeClock
from tests.unit.controlplane.fakes import FakeEtcd, FakeKeys
from vkgateway.planes.etcd.client import EtcdMaintenance, MemberStatus
from vkgateway.planes.etcd.errors import EtcdDenied, EtcdFull
from vkgateway.planes.etcd.quota import (
    BLOCKING_SHARE,
    COMPACTION_SHARE,
    UNBLOCKING_SHARE,
    URGENT_SHARE,
    QuotaController,
)
from vkgateway.planes.etcd.tenancy import Tenancy, tenant_user

QUOTA = 1000_000
SOME = 5_000
"""Bytes of one object: 0.5 % of the quota."""


class SmallKeys(FakeKeys):
    """Keys with history until a compaction, in a file that only grows; writes above the quota are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.quota = QUOTA
        self.revision = 1
        self.history: list[tuple[int, int]] = []
        """Bytes of overwritten values, with the revision that replaced them."""
        self.file = 0
        self.full = False

    @property
    def in_use(self) -> int:
        """Return 1.5 times the stored bytes, since pages are never full."""
        live = sum(len(key) + len(value) for key, value in self.held.items())
        return (live + sum(size for _, size in self.history)) * 3 // 2

    async def put(self, key: str, value: bytes) -> None:
        if self.full or max(self.file, self.in_use) + len(value) >= QUOTA:
            self.full = True
            raise EtcdFull("etcdserver: mvcc: database space exceeded")
        self._bury(key)
        await super().put(key, value)
        self.file = max(self.file, self.in_use)

    async def remove(self, key: str) -> None:
        """Delete one key."""
        self._bury(key)
        del self.held[key.encode()]

    def _bury(self, key: str) -> None:
        self.revision += 1
        if old := self.held.get(key.encode()):
            self.history.append((self.revision, len(key) + len(old)))


class SmallMaintenance(EtcdMaintenance):
    """Maintenance of an etcd with small keys; `upkeep` lists what was done."""

    def __init__(self, keys: SmallKeys) -> None:
        self.keys = keys
        self.upkeep: list[str] = []

    async def member_status(self) -> MemberStatus:
        alarms = ("memberID:1 alarm:NOSPACE ",) if self.keys.full else ()
        return MemberStatus("3.6.8", self.keys.file, self.keys.in_use, self.keys.quota, self.keys.revision, alarms)

    async def compact(self, revision: int) -> None:
        self.upkeep.append("compact")
        self.keys.history = [(since, size) for since, size in self.keys.history if since > revision]

    async def defragment(self) -> None:
        self.upkeep.append("defragment")
        self.keys.file = self.keys.in_use

    async def allow_writes(self) -> None:
        self.upkeep.append("allow writes")
        self.keys.full = False


class SmallEtcd(FakeEtcd):
    """An etcd with a quota."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: SmallKeys = SmallKeys()
        self.maintenance: SmallMaintenance = SmallMaintenance(self.keys)


class World:
    """Tenants that write as their API servers do."""

    def __init__(self) -> None:
        self.etcd = SmallEtcd()
        self.tenancy = Tenancy(self.etcd)
        self.keeper = self.another()

    def another(self) -> QuotaController:
        """Return a controller without state, as after a restart."""
        return QuotaController(self.etcd.maintenance, self.tenancy, clock=FakeClock())

    async def write(self, tenant: str, name: str, *, size: int = SOME) -> None:
        (may_write,) = self.etcd.auth.roles[tenant_user(tenant)].values()
        if not may_write:
            raise EtcdDenied("etcdserver: permission denied")
        await self.etcd.keys.put(f"/tenants/{tenant}/{name}", bytes(size))

    async def fill(self, tenant: str, share: float, *, name: str = "object", look: bool = True) -> None:
        """Add objects of a tenant up to a share of the quota; check the usage after every second object."""
        number = 0
        while self.etcd.keys.in_use < share * QUOTA:
            await self.write(tenant, f"{name}-{number}")
            number += 1
            if look and number % 2 == 0:
                await self.keeper.check_usage()

    def keys(self, part: str) -> list[str]:
        """Return the keys that contain a text."""
        return [name for key in self.etcd.keys.held if part in (name := key.decode())]

    async def rewrite(self, tenant: str, *, times: int, look: bool = False) -> None:
        """Overwrite one object of a tenant repeatedly; check the usage now and then."""
        for number in range(times):
            await self.write(tenant, "one", size=20_000)
            if look and number % 5 == 0:
                await self.keeper.check_usage()


@pytest.fixture
async def world() -> World:
    world = World()
    for tenant in ("calm", "wild", "other"):
        await world.tenancy.ensure_tenant(tenant)
        await world.write(tenant, "first")
    return world


async def test_nothing_happens_while_there_is_space(world: World) -> None:
    await world.fill("wild", COMPACTION_SHARE - 0.05)
    assert world.etcd.maintenance.upkeep == []
    assert world.keeper.blocked == {}


async def test_repeated_writes_do_not_fill_the_store(world: World) -> None:
    await world.rewrite("wild", times=2000, look=True)
    await world.write("calm", "more")
    assert world.keeper.blocked == {}
    assert world.etcd.keys.file < QUOTA


async def test_store_restored_from_a_backup_is_compacted(world: World) -> None:
    await world.rewrite("wild", times=500, look=True)
    world.etcd.keys.revision, world.etcd.keys.history = 5, []
    await world.rewrite("wild", times=200, look=True)
    assert world.keeper.blocked == {}
    await world.write("calm", "more")


async def test_created_and_deleted_objects_do_not_fill_the_store(world: World) -> None:
    for number in range(2000):
        await world.write("wild", f"one-{number}", size=20_000)
        await world.etcd.keys.remove(f"/tenants/wild/one-{number}")
        if number % 5 == 0:
            await world.keeper.check_usage()
    await world.write("calm", "more")
    assert world.keeper.blocked == {}


async def test_only_the_tenant_that_fills_the_store_is_blocked(world: World) -> None:
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0)
    assert set(world.keeper.blocked) == {"wild"}
    assert world.etcd.keys.in_use < (BLOCKING_SHARE + 0.05) * QUOTA
    for tenant in ("calm", "other"):
        await world.write(tenant, "more")


async def test_large_tenant_that_barely_grows_is_not_blocked(world: World) -> None:
    await world.fill("calm", COMPACTION_SHARE + 0.05)
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0)
    assert set(world.keeper.blocked) == {"wild"}
    await world.write("calm", "more")


async def test_two_tenants_that_fill_the_store_are_both_blocked(world: World) -> None:
    number, stopped = 0, set[str]()
    while stopped != {"wild", "other"}:
        for tenant in {"wild", "other"} - stopped:
            try:
                await world.write(tenant, f"object-{number}", size=1000)
            except EtcdDenied:
                stopped.add(tenant)
        number += 1
        await world.keeper.check_usage()
    assert world.etcd.keys.in_use < URGENT_SHARE * QUOTA
    await world.write("calm", "more")


async def test_restart_blocks_no_other_tenant(world: World) -> None:
    await world.fill("calm", 0.35)
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0)
    for _ in range(3):
        keeper = world.another()
        await keeper.check_usage()
        await keeper.check_usage()
        assert set(keeper.blocked) == {"wild"}
    await world.write("calm", "more")


async def test_growth_counts_from_the_smallest_size(world: World) -> None:
    await world.fill("calm", 0.2)
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0)
    await world.keeper.check_usage(exempt={"wild"})
    for key in world.keys("wild/object")[:20]:
        await world.etcd.keys.remove(key)
        await world.keeper.check_usage(exempt={"wild"})
    assert COMPACTION_SHARE < world.etcd.keys.in_use / QUOTA < UNBLOCKING_SHARE
    await world.write("calm", "a-little-more")
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0, name="again")
    assert set(world.keeper.blocked) == {"wild"}


@pytest.mark.parametrize("quota", [0, -1])
async def test_without_a_quota_no_tenant_is_blocked_and_a_full_store_is_reopened(world: World, quota: int) -> None:
    world.etcd.keys.quota = quota
    with pytest.raises(EtcdFull):
        await world.rewrite("wild", times=200, look=True)
    assert world.etcd.maintenance.upkeep == []
    await world.keeper.check_usage()
    assert world.etcd.maintenance.upkeep == ["compact", "defragment", "allow writes"]
    assert world.keeper.blocked == {}
    await world.write("calm", "more")


async def test_next_tenant_is_blocked_if_one_was_not_enough(world: World) -> None:
    for tenant in ("wild", "other"):
        with pytest.raises(EtcdDenied):
            await world.fill(tenant, 1.0)
    assert set(world.keeper.blocked) == {"wild", "other"}
    await world.write("calm", "more")


async def test_late_controller_blocks_the_largest_tenant(world: World) -> None:
    await world.fill("wild", URGENT_SHARE, look=False)
    await world.another().check_usage()
    with pytest.raises(EtcdDenied):
        await world.write("wild", "more")


async def test_timely_controller_waits_to_see_which_tenant_grows(world: World) -> None:
    await world.fill("wild", BLOCKING_SHARE, look=False)
    world.keeper = world.another()
    await world.keeper.check_usage()
    assert world.keeper.blocked == {}
    with pytest.raises(EtcdDenied):
        await world.fill("other", 1.0)
    assert set(world.keeper.blocked) == {"other"}


async def test_exempt_tenant_is_not_blocked(world: World) -> None:
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0)
    await world.keeper.check_usage(exempt={"wild"})
    assert world.keeper.blocked == {}
    await world.write("wild", "more")
    for key in world.keys("object"):
        await world.etcd.keys.remove(key)
        await world.keeper.check_usage(exempt={"wild"})
    await world.keeper.check_usage()
    assert world.keeper.blocked == {}
    assert world.etcd.keys.in_use < UNBLOCKING_SHARE * QUOTA
    await world.write("wild", "again")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("share", [BLOCKING_SHARE, URGENT_SHARE, 0.9])
async def test_no_other_tenant_is_blocked_while_an_exempt_one_fills_the_store_and_cleans_up(
    world: World, share: float, restarted: bool
) -> None:
    await world.fill("other", 0.1)
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0)
    for number in itertools.count():
        await world.keeper.check_usage(exempt={"wild"})
        if world.etcd.keys.in_use >= share * QUOTA:
            break
        for part in range(4):
            await world.write("wild", f"more-{number}-{part}")
    if restarted:
        world.keeper = world.another()
    for key in world.keys("wild/"):
        await world.etcd.keys.remove(key)
        await world.keeper.check_usage(exempt={"wild"})
        assert world.keeper.blocked == {}


async def test_tenant_that_grew_earlier_is_not_blocked_while_the_store_shrinks(world: World) -> None:
    await world.fill("wild", COMPACTION_SHARE + 0.02)
    await world.fill("calm", BLOCKING_SHARE - 0.05)
    await world.fill("wild", URGENT_SHARE, name="more", look=False)
    await world.keeper.check_usage(exempt={"wild", "calm"})
    while world.etcd.keys.in_use >= BLOCKING_SHARE * QUOTA:
        await world.etcd.keys.remove(world.keys("wild/")[0])
        await world.keeper.check_usage(exempt={"wild"})
        assert world.keeper.blocked == {}


async def test_restart_blocks_no_other_tenant_in_a_crowded_store(world: World) -> None:
    await world.fill("calm", 0.25)
    await world.fill("wild", URGENT_SHARE + 0.05, look=False)
    await world.keeper.check_usage()
    for _ in range(3):
        keeper = world.another()
        await keeper.check_usage()
        await keeper.check_usage()
        assert set(keeper.blocked) == {"wild"}


async def test_tenants_are_allowed_to_write_again_one_by_one(world: World) -> None:
    await world.tenancy.block_writes("wild")
    await world.tenancy.block_writes("other")
    await world.keeper.check_usage()
    assert len(world.keeper.blocked) == 1
    await world.keeper.check_usage()
    assert world.keeper.blocked == {}
    for tenant in ("wild", "other"):
        await world.write(tenant, "more")


async def test_next_controller_knows_blocked_tenants_until_they_are_removed(world: World) -> None:
    with pytest.raises(EtcdDenied):
        await world.fill("wild", 1.0)
    keeper = world.another()
    await keeper.check_usage()
    assert set(keeper.blocked) == {"wild"}
    await world.tenancy.remove_tenant("wild")
    await world.tenancy.ensure_tenant("wild")
    await keeper.check_usage()
    assert keeper.blocked == {}
    await world.write("wild", "first")


async def test_tenant_removed_while_it_is_unblocked_is_no_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    released = world.tenancy.allow_writes

    async def release(tenant: str) -> None:
        world.keeper.blocked.pop(tenant, None)
        await released(tenant)

    await world.tenancy.block_writes("wild")
    monkeypatch.setattr(world.tenancy, "allow_writes", release)
    await world.keeper.check_usage()
    assert world.keeper.blocked == {}


async def test_full_store_is_reopened(world: World) -> None:
    with pytest.raises(EtcdFull):
        await world.rewrite("wild", times=200)
    with pytest.raises(EtcdFull):
        await world.write("calm", "more")
    await world.keeper.check_usage()
    assert world.etcd.maintenance.upkeep == ["compact", "defragment", "allow writes"]
    await world.write("calm", "more")


async def test_store_full_of_objects_is_reopened_if_space_can_be_freed(world: World) -> None:
    with pytest.raises(EtcdFull):
        await world.fill("wild", 2.0, look=False)
    await world.keeper.check_usage()
    assert set(world.keeper.blocked) == {"wild"}
    assert (await world.etcd.maintenance.member_status()).is_full
    for number in range(20):
        await world.etcd.keys.remove(f"/tenants/wild/object-{number}")
    await world.keeper.check_usage()
    assert not (await world.etcd.maintenance.member_status()).is_full
    await world.write("calm", "more")
