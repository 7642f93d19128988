"""What it costs to make room on each node by itself."""

from __future__ import annotations

from math import inf

import pytest

from tests.unit.arbiter.lent import NOW, gpus, node, running, world
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import Gang, Shape
from vkgateway.arbiter.nodecosts import node_costs
from vkgateway.arbiter.room import Room


def costs(there: tuple[Room, Evictable], shape: Shape, count: int = 1, **options: object) -> list[float]:
    found: list[float] = node_costs(*there, shape, count, now=NOW, **options).tolist()  # type: ignore[arg-type]
    return found


def gangs() -> list[Gang]:
    return [
        running("half", ["n0"], 4, age=10),
        running("wide", ["n0", "n1"], 4, age=10),
        running("cells", ["n2"], 2, borrowed=False),
        running("one", ["n2"], 6, age=1),
    ]


def there() -> tuple[Room, Evictable]:
    return world([*(node(f"n{index}") for index in range(4)), node("n4", usable=False)], gangs())


def test_gangs_count_in_full_on_each_of_their_nodes() -> None:
    # What is lost, and a thousandth for each GPU.
    assert costs(there(), gpus(8)) == pytest.approx([120, 80, inf, 0, inf], abs=0.1)
    assert costs(there(), gpus(4)) == pytest.approx([40, 0, 6, 0, inf], abs=0.1)


def test_several_pods() -> None:
    assert costs(there(), gpus(2), 3) == pytest.approx([120, 80, 6, 0, inf], abs=0.1)
    assert costs(there(), gpus(2), 4) == pytest.approx([120, 80, inf, 0, inf], abs=0.1)
    assert costs(there(), gpus(2), 5) == [inf] * 5


def test_one_that_is_large_enough_rather_than_a_cheap_one_as_well() -> None:
    both = [running("cheap", ["n0"], 1, age=1), running("dear", ["n0"], 7, age=100)]
    assert costs(world([node("n0")], both), gpus(7)) == pytest.approx([700], abs=0.1)


def test_minimum_run_time_and_gangs_that_are_left_alone() -> None:
    [cost] = costs(world([node("n0")], [running("g", ["n0"], 8, age=1, minimum_run=10)]), gpus(8))
    assert 1e10 < cost < inf
    assert costs(there(), gpus(8), exempt=frozenset({"wide"})) == pytest.approx([inf, inf, inf, 0, inf])


def test_what_no_node_has() -> None:
    assert costs(there(), Shape.of({"tpu": 1})) == [inf] * 5
