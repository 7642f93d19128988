"""Tests of the division of pools into virtual nodes."""

from __future__ import annotations

from vkgateway.api.types import Pool, TenantPool, TenantPoolStatus
from vkgateway.clusters.pools import WHOLE_POOL, PoolPart, split_pool

ZONE = "topology.kubernetes.io/zone"
WANTED = TenantPool(name="a100")
UNDIVIDED = Pool(name="a100", node_selector={"pool": "a100"})
BY_ZONE = Pool(name="a100", node_selector={"pool": "a100"}, virtual_nodes_by=ZONE)


def shown(value: str = "", by: str = "") -> TenantPoolStatus:
    part = PoolPart(label=by, value=value)
    return TenantPoolStatus(
        name="a100", compute_cluster="local", node_name=part.node_name(WANTED), virtual_nodes_by=by, value=value
    )


def found(
    pool: Pool, *values: str, before: tuple[TenantPoolStatus, ...] = (), occupied: str = "", known: bool = True
) -> tuple[PoolPart, ...]:
    return split_pool(
        pool, frozenset(values), nodes_known=known, shown=before, is_occupied=lambda name: name in occupied.split()
    )


def test_undivided_pool_has_one_virtual_node() -> None:
    assert found(UNDIVIDED, "") == (WHOLE_POOL,)
    assert WHOLE_POOL.node_name(WANTED) == "a100.local"
    assert (WHOLE_POOL.node_selector(UNDIVIDED), WHOLE_POOL.absent_label) == ({"pool": "a100"}, "")


def test_divided_pool_has_node_per_value_and_for_unlabeled_nodes() -> None:
    bare, zone_a, zone_b = found(BY_ZONE, "b", "", "a")
    assert [part.node_name(WANTED) for part in (bare, zone_a, zone_b)] == [
        "a100.local",
        "a100.a.local",
        "a100.b.local",
    ]
    assert (bare.node_selector(BY_ZONE), bare.absent_label) == ({"pool": "a100"}, ZONE)
    assert (zone_a.node_selector(BY_ZONE), zone_a.absent_label) == ({"pool": "a100", ZONE: "a"}, "")


def test_divided_pool_without_nodes_has_one_virtual_node() -> None:
    assert found(BY_ZONE) == (PoolPart(label=ZONE),)


def test_occupied_node_is_retired_when_its_value_disappears() -> None:
    before = (shown("a", ZONE), shown("b", ZONE))
    assert found(BY_ZONE, "a", before=before, occupied="a100.b.local") == (
        PoolPart(label=ZONE, value="a"),
        PoolPart(label=ZONE, value="b", retired=True),
    )
    assert found(BY_ZONE, "a", before=before) == (PoolPart(label=ZONE, value="a"),)


def test_node_is_retired_when_division_changes() -> None:
    whole = (shown(),)
    assert found(BY_ZONE, "a", before=whole, occupied="a100.local") == (
        PoolPart(label=ZONE, value="a"),
        PoolPart(retired=True),
    )
    parted = (shown("a", ZONE),)
    assert found(UNDIVIDED, "a", before=parted, occupied="a100.a.local") == (
        WHOLE_POOL,
        PoolPart(label=ZONE, value="a", retired=True),
    )


def test_virtual_nodes_stay_while_compute_nodes_are_unknown() -> None:
    before = (shown("a", ZONE), shown("b", ZONE))
    assert found(BY_ZONE, before=before, known=False) == (
        PoolPart(label=ZONE, value="a"),
        PoolPart(label=ZONE, value="b"),
    )
    assert found(UNDIVIDED, known=False) == (WHOLE_POOL,)
