"""Minimal loss of an eviction."""

from __future__ import annotations

import pytest

from bench.eviction import Loss, Victim, find_minimal_loss, total_loss

WHOLE = {"old": Victim({"a": 8}, 80.0), "young": Victim({"b": 8}, 8.0), "wide": Victim({"c": 8, "d": 8}, 20.0)}


def test_minimal_loss_frees_enough_nodes() -> None:
    assert find_minimal_loss(WHOLE, nodes=1) == Loss(8, 8.0)
    assert find_minimal_loss(WHOLE, nodes=3) == Loss(24, 28.0)


def test_gpus_and_work_are_minimized_separately() -> None:
    assert find_minimal_loss(WHOLE, nodes=2) == Loss(16, 20.0)
    dear = {"one": Victim({"a": 4}, 90.0), "two": Victim({"b": 8}, 10.0)}
    assert find_minimal_loss(dear, nodes=1) == Loss(4, 10.0)


def test_shared_node_is_freed_by_both_gangs() -> None:
    halves = {"left": Victim({"a": 4}, 1.0), "right": Victim({"a": 4, "b": 4}, 1.0), "rest": Victim({"b": 4}, 1.0)}
    assert find_minimal_loss(halves, nodes=1) == Loss(12, 2.0)
    assert find_minimal_loss(halves, nodes=2) == Loss(16, 3.0)


def test_total_loss_sums_the_chosen_gangs() -> None:
    assert total_loss(WHOLE, ["old", "wide"]) == Loss(24, 100.0)
    assert total_loss(WHOLE, []) == Loss(0, 0.0)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="does not free 5 nodes"):
        find_minimal_loss(WHOLE, nodes=5)
    with pytest.raises(ValueError, match="15 gangs"):
        find_minimal_loss({str(number): Victim({str(number): 8}) for number in range(15)}, nodes=1)
