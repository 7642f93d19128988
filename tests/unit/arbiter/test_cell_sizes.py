"""Cell sizes, and guarantees split into them."""

from __future__ import annotations

import pytest

from vkgateway.scheduler.core.guarantees.cell_sizes import (
    cell_sizes,
    count_cells,
    pool_levels,
    quota_cells,
    smallest_cover,
    units_for_cells,
)
from vkgateway.scheduler.core.snapshot import Node, Pool, Quota

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("size", "levels"),
    [
        (8, (8, 4, 2, 1)),
        (6, (6, 3, 1)),
        (12, (12, 6, 3, 1)),
        (7, (7, 1)),
        (1, (1,)),
        (0, (1,)),
    ],
)
def test_cell_sizes_divide_each_other(size: int, levels: tuple[int, ...]) -> None:
    assert cell_sizes(size) == levels


def test_guarantee_is_split_into_largest_cells() -> None:
    assert count_cells(23, (8, 4, 2, 1)) == [2, 1, 1, 1]
    assert count_cells(0, (8, 4, 2, 1)) == [0, 0, 0, 0]
    assert count_cells(-1, (8, 4, 2, 1)) == [0, 0, 0, 0]


def test_largest_node_determines_levels() -> None:
    nodes = (Node(name="a", allocatable={GPU: 4000}), Node(name="b", allocatable={GPU: 8000}, usable=False))

    assert pool_levels(Pool(key=("c", "p"), nodes=nodes, governed=(GPU,))) == (8, 4, 2, 1)


def test_partly_used_unit_holds_no_cell() -> None:
    assert units_for_cells(Node(name="a", allocatable={GPU: 8900}, used={GPU: 1001}), GPU) == 6
    assert units_for_cells(Node(name="a", allocatable={GPU: 1000}, used={GPU: 5000}), GPU) == 0
    assert units_for_cells(Node(name="a", allocatable={}), GPU) == 0


def test_cover_has_the_fewest_spare_units() -> None:
    assert smallest_cover([1, 1, 0, 1], (8, 4, 2, 1), 5) == [0, 1, 0, 1]
    assert smallest_cover([1, 0, 0, 0], (8, 4, 2, 1), 5) == [1, 0, 0, 0]
    assert smallest_cover([0, 1, 0, 0], (8, 4, 2, 1), 5) is None


def test_explicit_cells_are_counted_and_unknown_sizes_split() -> None:
    quota = Quota(tenant="a", pool=("c", "p"), guarantee={GPU: 14000}, cells=(8, 3, 1, 1, 1))

    assert quota_cells(quota, GPU, (8, 4, 2, 1)) == [1, 0, 1, 4]
