"""Refusals of guarantees that do not fit, each with the largest that fits."""

from __future__ import annotations

from vkgateway.scheduler.core.guarantees.pool_guarantees import PlacedAmount
from vkgateway.scheduler.core.guarantees.refusals import displaces_pods, find_refusals
from vkgateway.scheduler.core.snapshot import Node, Pool, Quota

GPU, CPU = "nvidia.com/gpu", "cpu"
KEY = ("east", "a100")


def make_pool(count: int, *, gone: int = 0) -> Pool:
    nodes = (
        Node(name=f"n{at}", allocatable={GPU: 8000, CPU: 64_000}, used={CPU: 4000}, usable=at >= gone)
        for at in range(count)
    )
    return Pool(key=KEY, nodes=tuple(nodes), governed=(GPU, CPU))


def make_quota(tenant: str, gpus: int, cpus: int = 0, *, cells: tuple[int, ...] = (), granted: float = 0.0) -> Quota:
    guarantee = {GPU: gpus, CPU: cpus}
    return Quota(tenant=tenant, pool=KEY, guarantee=guarantee, cells=cells, granted=granted)


def test_fitting_guarantees_are_accepted() -> None:
    assert find_refusals(make_pool(2), [make_quota("a", 8000, 60_000), make_quota("b", 8000, 60_000)]) == []


def test_refusal_names_largest_guarantee() -> None:
    assert find_refusals(make_pool(2), [make_quota("a", 12_000), make_quota("b", 8000, granted=1.0)]) == [
        "tenant b requests a guarantee of 8 nvidia.com/gpu in pool east/a100: 8 in cells of 4 or more, of which other "
        "guarantees leave 4; the largest guarantee that fits is 4"
    ]


def test_earlier_grant_takes_precedence() -> None:
    refusals = find_refusals(
        make_pool(1), [make_quota("late", 8000, granted=2.0), make_quota("early", 8000, granted=1.0)]
    )

    assert [sentence.split()[1] for sentence in refusals] == ["late"]


def test_refused_quota_takes_nothing_from_others() -> None:
    refusals = find_refusals(make_pool(1), [make_quota("a", 16_000, granted=1.0), make_quota("b", 8000, granted=2.0)])

    assert [sentence.split()[1] for sentence in refusals] == ["a"]


def test_sums_of_other_resources_must_fit() -> None:
    assert find_refusals(
        make_pool(2), [make_quota("a", 8000, 100_000), make_quota("b", 8000, 20_500, granted=1.0)]
    ) == ["tenant b requests a guarantee of 20500m cpu in pool east/a100; other guarantees leave 20"]


def test_only_usable_nodes_count() -> None:
    assert len(find_refusals(make_pool(2, gone=1), [make_quota("a", 16_000)])) == 1


def test_cells_must_match_pool_sizes_and_guarantee() -> None:
    assert find_refusals(make_pool(2), [make_quota("a", 8000, cells=(3, 3, 2))]) == [
        "tenant a requests a guarantee of 8 nvidia.com/gpu in pool east/a100 in cells of 3; "
        "the cell sizes of the pool are 8, 4, 2, 1"
    ]
    assert find_refusals(make_pool(2), [make_quota("a", 8000, cells=(4, 2))]) == [
        "tenant a requests a guarantee of 8 nvidia.com/gpu in pool east/a100, but its cells of 4, 2 hold 6; "
        "the two must be equal: request a guarantee of 6, or omit the cells"
    ]
    assert find_refusals(make_pool(2), [make_quota("a", 8000, cells=(4, 2, 1, 1))]) == []


def test_invalid_amounts_are_refused() -> None:
    assert find_refusals(make_pool(2), [make_quota("a", -1000), make_quota("b", 500)]) == [
        "tenant a requests a guarantee of -1 nvidia.com/gpu in pool east/a100; a guarantee cannot be less than 0",
        "tenant b requests a guarantee of 500m nvidia.com/gpu in pool east/a100; "
        "only whole units can be guaranteed: request 0 or 1",
    ]


def test_quotas_of_other_pools_are_ignored() -> None:
    other = Quota(tenant="a", pool=("west", "a100"), guarantee={GPU: 80_000})

    assert find_refusals(make_pool(1), [other]) == []


def test_guaranteed_pods_can_block_new_guarantee() -> None:
    """Three nodes of 8 hold cells of 8, 4, 4 and 8, but not while the 4s are on two nodes next to the 8."""
    others, more = [make_quota("a", 12_000), make_quota("b", 4000)], make_quota("c", 8000, granted=1.0)
    apart: list[PlacedAmount] = [("a", "n2", 8000), ("a", "n0", 4000), ("b", "n1", 4000)]
    together: list[PlacedAmount] = [("a", "n2", 8000), ("a", "n0", 4000), ("b", "n0", 4000)]

    assert find_refusals(make_pool(3), [*others, more]) == []
    assert displaces_pods(make_pool(3), others, more, apart)
    assert not displaces_pods(make_pool(3), others, more, together)
    assert not displaces_pods(make_pool(3), others, more, apart[:2])
    assert displaces_pods(make_pool(3), others, make_quota("c", 4000), apart)
    assert not displaces_pods(make_pool(3), others, make_quota("c", 4000), together)
    assert displaces_pods(make_pool(3), [others[1], more], others[0], apart), "its own pods are not moved either"
    assert not displaces_pods(make_pool(3), [others[1], more], others[0], together)


def test_existing_reduction_is_no_conflict() -> None:
    placed: list[PlacedAmount] = [("a", "n1", 8000)]
    assert not displaces_pods(make_pool(2, gone=1), [make_quota("a", 16_000)], make_quota("c", 0), placed)
