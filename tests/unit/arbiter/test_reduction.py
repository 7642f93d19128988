"""Reduction of guarantees when nodes are missing."""

from __future__ import annotations

from collections.abc import Sequence

from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.snapshot import Node, Pool, Quota

GPU = "nvidia.com/gpu"
KEY = ("c", "p")


def make_pool(*sizes: int, used: Sequence[int] = (), gone: Sequence[int] = ()) -> Pool:
    """Return nodes n0, n1, ... of these sizes; `used` is what unmanaged pods hold, `gone` are the unusable nodes."""
    nodes = (
        Node(
            name=f"n{at}",
            allocatable={GPU: size * 1000},
            used={GPU: used[at] * 1000} if used else {},
            usable=at not in gone,
        )
        for at, size in enumerate(sizes)
    )
    return Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,))


def make_quota(
    tenant: str, units: int, *, weight: float = 1.0, granted: float = 0.0, cells: tuple[int, ...] = ()
) -> Quota:
    return Quota(tenant=tenant, pool=KEY, guarantee={GPU: units * 1000}, weight=weight, granted=granted, cells=cells)


def test_latest_grant_is_reduced_first() -> None:
    quotas = [make_quota("a", 8, granted=1.0), make_quota("b", 8, granted=2.0)]

    cells = PoolGuarantees(make_pool(8, 8, gone=[1]), quotas)

    (loss,) = cells.losses
    assert (loss.tenant, loss.units, dict(loss.asked), dict(loss.held)) == ("b", 8, {8: 1}, {})
    assert cells.unused_cells("a") == {8: 1}
    assert cells.unused_cells("b") == {}


def test_higher_weight_loses_less() -> None:
    quotas = [make_quota("a", 16, granted=1.0), make_quota("b", 16, granted=2.0, weight=4.0)]

    cells = PoolGuarantees(make_pool(8, 8, 8, 8, gone=[0, 1]), quotas)

    assert [(loss.tenant, loss.units) for loss in cells.losses] == [("a", 16)]


def test_loss_is_shared_by_guarantee_size() -> None:
    quotas = [make_quota("a", 32, granted=1.0), make_quota("b", 16, granted=2.0)]

    cells = PoolGuarantees(make_pool(*[8] * 6, gone=[0, 1, 2]), quotas)

    assert [(loss.tenant, loss.units) for loss in cells.losses] == [("a", 16), ("b", 8)]


def test_half_node_keeps_half_guarantee() -> None:
    cells = PoolGuarantees(
        make_pool(8, 8, used=[0, 4]), [make_quota("a", 8, granted=1.0), make_quota("b", 8, granted=2.0)]
    )

    (loss,) = cells.losses
    assert (loss.tenant, loss.units, dict(loss.held)) == ("b", 4, {4: 1})


def test_smaller_cells_are_reported_without_lost_units() -> None:
    cells = PoolGuarantees(make_pool(8, 4, 4, gone=[0]), [make_quota("a", 8)])

    (loss,) = cells.losses
    assert (loss.units, dict(loss.asked), dict(loss.held)) == (0, {8: 1}, {4: 2})


def test_weight_of_zero_or_less_loses_first() -> None:
    quotas = [make_quota("a", 8, granted=1.0, weight=-3.0), make_quota("b", 8, granted=2.0)]

    assert [loss.tenant for loss in PoolGuarantees(make_pool(8, 8, gone=[0]), quotas).losses] == ["a"]


def test_pool_without_nodes_loses_all_cells() -> None:
    cells = PoolGuarantees(make_pool(), [make_quota("a", 8)])

    assert [(loss.tenant, loss.units) for loss in cells.losses] == [("a", 8)]
    assert cells.usable_amounts("a").tolist() == []


def test_quotas_of_other_pools_are_ignored() -> None:
    other = Quota(tenant="a", pool=("c", "other"), guarantee={GPU: 8000})

    assert PoolGuarantees(make_pool(8), [other]).unused_cells("a") == {}


def test_huge_nodes_take_no_longer() -> None:
    huge = 137_438_953_471

    cells = PoolGuarantees(make_pool(huge, huge, gone=[0]), [make_quota("a", huge), make_quota("b", huge - 1)])

    assert sum(loss.units for loss in cells.losses) == huge - 1
