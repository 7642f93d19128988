"""Cells: a guarantee is whole nodes and parts of nodes that are available on demand, not a sum."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vkgateway.arbiter.guarantees.cells import PlacedAmount, PoolCells
from vkgateway.arbiter.guarantees.derived_bindings import rebind_tenants
from vkgateway.arbiter.snapshot import Node, Pool, Quota

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


def test_single_pods_leave_whole_node_of_other_tenant() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 8), make_quota("b", 8)])

    assert cells.allocate_cells("b", "n0", 1000)
    assert not cells.allocate_cells("b", "n1", 1000), "the last whole node is a's"
    assert cells.allocate_cells("b", "n0", 7000)
    assert cells.allocate_cells("a", "n1", 8000)


def test_sum_of_free_units_does_not_hold_whole_node_cell() -> None:
    cells = PoolCells(make_pool(8, 8, used=[4, 4]), [make_quota("a", 4), make_quota("b", 4)])

    assert cells.usable_amounts("a").tolist() == [4000, 4000]
    assert not cells.allocate_cells("a", "n0", 8000)
    assert cells.allocate_cells("a", "n0", 4000)


def test_halves_of_two_tenants_share_a_node() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 4), make_quota("b", 4), make_quota("c", 8)])

    assert cells.allocate_cells("a", "n0", 4000)
    assert not cells.allocate_cells("b", "n1", 4000), "c would have no whole node any more"
    assert cells.allocate_cells("b", "n0", 4000)


def test_cell_is_bound_on_use_and_unbound_with_last_pod() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 8)])
    assert cells.unused_cells("a") == {8: 1}
    assert cells.bound_cells("a") == {}

    assert cells.allocate_cells("a", "n1", 2000)
    assert cells.allocate_cells("a", "n1", 3000)
    assert cells.bound_cells("a") == {"n1": (8,)}
    assert cells.spare_amount("a", "n1") == 3000
    assert cells.spare_amount("a", "n0") == 0

    cells.release_cells("a", "n1", 2000)
    assert cells.bound_cells("a") == {"n1": (8,)}
    cells.release_cells("a", "n1", 3000)
    assert cells.bound_cells("a") == {}
    assert cells.unused_cells("a") == {8: 1}


def test_single_pod_uses_cell_of_one_unit() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 9)])

    assert cells.allocate_cells("a", "n0", 1000)

    assert cells.bound_cells("a") == {"n0": (1,)}
    assert cells.unused_cells("a") == {8: 1}


def test_larger_cell_replaces_smaller_one_for_more_pods() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 12)])
    assert cells.allocate_cells("a", "n0", 4000)
    assert cells.bound_cells("a") == {"n0": (4,)}

    assert cells.allocate_cells("a", "n0", 4000)

    assert cells.bound_cells("a") == {"n0": (8,)}
    assert cells.unused_cells("a") == {4: 1}


def test_no_cell_beyond_guarantee_can_be_used() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 4)])

    assert not cells.allocate_cells("a", "n0", 5000)
    assert not cells.allocate_cells("b", "n0", 1000)
    assert cells.usable_amounts("b").tolist() == [0, 0]
    assert cells.usable_amounts("a").tolist() == [4000, 4000]


def test_usable_amounts_by_node() -> None:
    cells = PoolCells(make_pool(8, 8, 8), [make_quota("a", 9), make_quota("b", 9)])
    assert cells.allocate_cells("a", "n0", 500)

    assert cells.usable_amounts("a").tolist() == [7500, 8000, 8000], "on n0 its 8 in place of its 1"
    assert cells.usable_amounts("b").tolist() == [1000, 8000, 8000]


def test_pods_with_fractions_of_unit_share_cell() -> None:
    cells = PoolCells(make_pool(2), [make_quota("a", 1)])

    assert cells.allocate_cells("a", "n0", 500)
    assert cells.allocate_cells("a", "n0", 500)
    assert not cells.allocate_cells("a", "n0", 1)


def test_units_of_unmanaged_pods_hold_no_cells() -> None:
    cells = PoolCells(make_pool(8, 8, used=[1, 0]), [make_quota("a", 8)])

    assert cells.usable_amounts("a").tolist() == [0, 8000]


def test_unusable_node_accepts_no_pods_but_its_pods_count() -> None:
    cells = PoolCells(make_pool(8, 8, gone=[0]), [make_quota("a", 8), make_quota("b", 4)], [("a", "n0", 4000)])

    assert cells.bound_cells("a") == {"n0": (8,)}
    assert cells.spare_amount("a", "n0") == 0
    assert cells.usable_amounts("a").tolist() == [0, 0]
    assert not cells.allocate_cells("b", "n0", 1000)
    assert not cells.allocate_cells("a", "n0", 1000)
    assert not cells.allocate_cells("a", "n1", 1000), "its only cell is on n0"
    assert cells.guarantee_losses == ()


def test_pods_on_removed_node_count() -> None:
    cells = PoolCells(make_pool(8), [make_quota("a", 8)], [("a", "elsewhere", 1000)])

    assert cells.bound_cells("a") == {"elsewhere": (8,)}
    assert cells.usable_amounts("a").tolist() == [0]


def test_explicit_cells_are_kept() -> None:
    cells = PoolCells(make_pool(8), [make_quota("a", 4, cells=(1, 1, 1, 1))])

    assert cells.unused_cells("a") == {1: 4}


def test_explicit_cell_of_unknown_size_is_split() -> None:
    cells = PoolCells(make_pool(4, 4, 4, 4), [make_quota("a", 11, cells=(8, 3))])

    assert cells.unused_cells("a") == {4: 2, 2: 1, 1: 1}


def test_bindings_are_derived_after_some_pods_ended() -> None:
    """Pods of 4 and 4 filled the whole node n0. With 4 bound there for the remaining pod, no node fits 8."""
    shared, quotas = make_pool(8, 8, 8, 8, used=[0, 4, 0, 0]), [make_quota("a", 12), make_quota("b", 9)]
    full = PoolCells(shared, quotas, [("a", "n0", 8000), ("b", "n2", 1000)])
    assert full.bound_cells("a") == {"n0": (8,)}

    left = PoolCells(shared, quotas, [("a", "n0", 4000), ("b", "n2", 1000)])

    assert left.bound_cells("a") == {"n0": (8,)}
    assert left.bound_cells("b") == {"n2": (1,)}, "where nothing is short, the smallest"
    assert left.spare_amount("a", "n0") == 4000
    assert left.guarantee_losses == ()


def test_small_cell_is_left_for_small_node() -> None:
    cells = PoolCells(make_pool(8, 8, 8, used=[0, 4, 0]), [make_quota("a", 12)], [("a", "n0", 4000), ("a", "n1", 3000)])

    assert cells.bound_cells("a") == {"n0": (8,), "n1": (4,)}
    assert cells.excess_by_node("a") == {}


def assert_all_guaranteed(cells: PoolCells, quotas: Sequence[Quota]) -> None:
    assert cells.guarantee_losses == ()
    assert [cells.excess_by_node(each.tenant) for each in quotas] == [{} for _ in quotas]


def test_cells_of_one_tenant_leave_space_for_pods_of_other() -> None:
    """The single pod of a must not get the 8 that is left when its 2 and 1 hold the pods on n1."""
    quotas = [make_quota("a", 11), make_quota("b", 13)]

    cells = PoolCells(make_pool(8, 8, 8), quotas, [("a", "n0", 1000), ("b", "n0", 5000), ("a", "n1", 3000)])

    assert_all_guaranteed(cells, quotas)


def test_nodes_exchange_cells_to_free_capacity() -> None:
    """With 2 on n0 and 4 on n1, no node fits the 4 of b."""
    quotas = [make_quota("a", 6), make_quota("b", 20), make_quota("c", 8), make_quota("d", 3)]
    placed = [("c", "n2", 3000), ("a", "n0", 2000), ("a", "n1", 1000), ("d", "n5", 1000)]

    cells = PoolCells(make_pool(5, 6, 8, 8, 8, 3), quotas, placed)

    assert_all_guaranteed(cells, quotas)
    assert cells.bound_cells("a") == {"n0": (4,), "n1": (2,)}
    assert cells.bound_cells("d") == {"n5": (1,)}, "where nothing is short, the smallest"


def test_several_changes_help_where_none_does_alone() -> None:
    quotas = [make_quota("a", 4, cells=(3, 1)), make_quota("b", 11, cells=(3, 3, 3, 1, 1))]

    cells = PoolCells(make_pool(1, 9, 5), quotas, [("a", "n1", 1000), ("b", "n1", 5000)])

    assert_all_guaranteed(cells, quotas)
    assert cells.bound_cells("a") == {"n1": (3,)}
    assert cells.bound_cells("b") == {"n1": (3, 3)}


def test_pods_without_cell_block_no_cell() -> None:
    cells = PoolCells(make_pool(8), [make_quota("a", 8)], [("a", "n0", 4000), ("x", "n0", 4000)])

    assert cells.bound_cells("a") == {"n0": (8,)}
    assert cells.excess_by_node("x") == {"n0": 4000}


def test_remaining_cells_hold_part_of_pods() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 6)], [("a", "n0", 8000)])

    assert cells.bound_cells("a") == {"n0": (4, 2)}
    assert cells.excess_by_node("a") == {"n0": 2000}


def test_partial_cover_does_not_take_cell_of_other_pods() -> None:
    quotas = [make_quota("a", 8, granted=1.0), make_quota("b", 8, granted=2.0)]

    cells = PoolCells(make_pool(8, 8, used=[0, 4]), quotas, [("b", "n0", 5000)])

    assert cells.bound_cells("b") == {}
    assert cells.unused_cells("b") == {4: 1}
    assert cells.usable_amounts("a").tolist() == [8000, 0]


def test_latest_grant_is_reduced_first() -> None:
    quotas = [make_quota("a", 8, granted=1.0), make_quota("b", 8, granted=2.0)]

    cells = PoolCells(make_pool(8, 8, gone=[1]), quotas)

    (loss,) = cells.guarantee_losses
    assert (loss.tenant, loss.units, dict(loss.asked), dict(loss.held)) == ("b", 8, {8: 1}, {})
    assert cells.unused_cells("a") == {8: 1}
    assert cells.unused_cells("b") == {}


def test_higher_weight_loses_less() -> None:
    quotas = [make_quota("a", 16, granted=1.0), make_quota("b", 16, granted=2.0, weight=4.0)]

    cells = PoolCells(make_pool(8, 8, 8, 8, gone=[0, 1]), quotas)

    assert [(loss.tenant, loss.units) for loss in cells.guarantee_losses] == [("a", 16)]


def test_loss_is_shared_by_guarantee_size() -> None:
    quotas = [make_quota("a", 32, granted=1.0), make_quota("b", 16, granted=2.0)]

    cells = PoolCells(make_pool(*[8] * 6, gone=[0, 1, 2]), quotas)

    assert [(loss.tenant, loss.units) for loss in cells.guarantee_losses] == [("a", 16), ("b", 8)]


def test_half_node_keeps_half_guarantee() -> None:
    cells = PoolCells(make_pool(8, 8, used=[0, 4]), [make_quota("a", 8, granted=1.0), make_quota("b", 8, granted=2.0)])

    (loss,) = cells.guarantee_losses
    assert (loss.tenant, loss.units, dict(loss.held)) == ("b", 4, {4: 1})


def test_smaller_cells_are_reported_without_lost_units() -> None:
    cells = PoolCells(make_pool(8, 4, 4, gone=[0]), [make_quota("a", 8)])

    (loss,) = cells.guarantee_losses
    assert (loss.units, dict(loss.asked), dict(loss.held)) == (0, {8: 1}, {4: 2})


def test_cells_bound_to_removed_node_free_capacity_for_others() -> None:
    quotas = [make_quota("a", 8, granted=1.0), make_quota("b", 8, granted=2.0)]

    cells = PoolCells(make_pool(8, 8, 4, gone=[1]), quotas, [("b", "n0", 4000), ("b", "n1", 2000)])

    (loss,) = cells.guarantee_losses
    assert (loss.tenant, loss.units, dict(loss.held)) == ("b", 0, {4: 2})
    assert cells.bound_cells("b") == {"n1": (4,)}
    assert cells.excess_by_node("b") == {"n0": 4000}


def test_pods_of_reduced_cell_borrow() -> None:
    quotas = [make_quota("a", 8, granted=1.0), make_quota("b", 8, granted=2.0)]

    cells = PoolCells(make_pool(8, 8, gone=[1]), quotas, [("b", "n0", 5000), ("b", "n0", 3000)])

    assert cells.excess_by_node("b") == {"n0": 8000}
    assert cells.usable_amounts("a").tolist() == [8000, 0]
    cells.release_cells("b", "n0", 8000)
    assert cells.excess_by_node("b") == {}
    assert cells.allocate_cells("a", "n0", 8000)


def test_pods_beyond_reduced_quota_borrow() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 4)], [("a", "n0", 3000), ("a", "n1", 2000)])

    assert cells.bound_cells("a") == {"n0": (4,)}
    assert cells.excess_by_node("a") == {"n1": 2000}
    assert PoolCells(make_pool(8), [], [("x", "n0", 1000)]).excess_by_node("x") == {"n0": 1000}


def test_weight_of_zero_or_less_loses_first() -> None:
    quotas = [make_quota("a", 8, granted=1.0, weight=-3.0), make_quota("b", 8, granted=2.0)]

    assert [loss.tenant for loss in PoolCells(make_pool(8, 8, gone=[0]), quotas).guarantee_losses] == ["a"]


def test_pool_without_nodes_loses_all_cells() -> None:
    cells = PoolCells(make_pool(), [make_quota("a", 8)])

    assert [(loss.tenant, loss.units) for loss in cells.guarantee_losses] == [("a", 8)]
    assert cells.usable_amounts("a").tolist() == []


def test_reduction_of_huge_nodes_is_fast() -> None:
    huge = 137_438_953_471

    cells = PoolCells(make_pool(huge, huge, gone=[0]), [make_quota("a", huge), make_quota("b", huge - 1)])

    assert sum(loss.units for loss in cells.guarantee_losses) == huge - 1


@pytest.mark.parametrize("wrong", [("a", "n0", 3000), ("a", "n1", 1), ("b", "n0", 1), ("a", "nowhere", 1)])
def test_release_of_unused_amount_raises(wrong: PlacedAmount) -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 8)], [("a", "n0", 2000)])

    with pytest.raises(ValueError, match="uses less"):
        cells.release_cells(*wrong)


def test_oversized_cell_is_rebound() -> None:
    cells = PoolCells(make_pool(8, 4, 4), [make_quota("a", 1), make_quota("b", 6), make_quota("c", 8)])
    assert cells.allocate_cells("a", "n2", 1000)
    assert cells.allocate_cells("b", "n1", 2000)
    assert cells.bound_cells("b") == {"n1": (4,)}, "beside the cell of a there is no room for it any more"
    assert not rebind_tenants(cells.bindings, {"a", "b"})

    cells.release_cells("a", "n2", 1000)
    assert not cells.allocate_cells("a", "n1", 1000)
    mark = cells.bindings.mark()

    assert not rebind_tenants(cells.bindings, {"a"})
    assert rebind_tenants(cells.bindings, {"a", "b"})
    assert cells.bound_cells("b") == {"n1": (2,)}
    assert cells.allocate_cells("a", "n1", 1000)
    cells.bindings.undo(mark)
    assert cells.bound_cells("b") == {"n1": (4,)}


def test_undo_restores_cells() -> None:
    cells = PoolCells(make_pool(8, 8), [make_quota("a", 16)])
    assert cells.allocate_cells("a", "n0", 8000)
    mark = cells.bindings.mark()
    assert cells.allocate_cells("a", "n1", 8000)
    cells.release_cells("a", "n0", 8000)

    cells.bindings.undo(mark)

    assert cells.bound_cells("a") == {"n0": (8,)}
    assert cells.unused_cells("a") == {8: 1}
    assert cells.spare_amount("a", "n0") == 0
    assert cells.usable_amounts("a").tolist() == [0, 8000]


def test_quotas_of_other_pools_are_ignored() -> None:
    other = Quota(tenant="a", pool=("c", "other"), guarantee={GPU: 8000})

    assert PoolCells(make_pool(8), [other]).unused_cells("a") == {}
