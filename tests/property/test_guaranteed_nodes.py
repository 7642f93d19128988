"""Guarantees as numbers of nodes, compared with brute force: every promise holds, now and after any pods end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.scheduler.core.guaranteed_nodes import GuaranteedNodes, Guarantees, pack_cells

TENANTS = "abcd"
Uses = list[dict[str, int]]


def excess_of(uses: Uses, guarantees: Guarantees, taken: set[int]) -> int:
    """Return the excess if groups take these nodes."""
    left = [use for node, use in enumerate(uses) if use and node not in taken]
    exclusive = {tenant: sum(list(use) == [tenant] for use in left) for tenant in TENANTS}
    surplus = sum(max(0, count - guarantees.nodes.get(tenant, 0)) for tenant, count in exclusive.items())
    return sum(len(use) > 1 for use in left) + surplus


def choices(uses: Uses, guarantees: Guarantees) -> Iterator[dict[int, int]]:
    """Yield all nodes that groups can take: node by group."""
    fitting = [
        [-1, *(n for n, use in enumerate(uses) if use and all(u <= group.get(t, 0) for t, u in use.items()))]
        for group in guarantees.groups
    ]
    for chosen in product(*fitting):
        taken = {group: node for group, node in enumerate(chosen) if node >= 0}
        if len(set(taken.values())) == len(taken):
            yield taken


def best_choice(uses: Uses, guarantees: Guarantees) -> tuple[int, dict[int, int]]:
    """Return the smallest excess of all choices, and the first choice with it."""
    found = [(excess_of(uses, guarantees, set(taken.values())), taken) for taken in choices(uses, guarantees)]
    return min(found, key=lambda each: each[0])


def count_sizes(cells: dict[str, list[int]]) -> dict[str, Counter[int]]:
    return {tenant: Counter(sizes) for tenant, sizes in cells.items()}


def draw_guarantees(random: Random, nodes: int, node_units: int) -> Guarantees:
    """Return the guarantees of random cells that fit the nodes."""
    cells: dict[str, list[int]] = {tenant: [] for tenant in TENANTS}
    for _ in range(random.randint(1, 12)):
        tenant = random.choice(TENANTS)
        cells[tenant].append(random.choice([size for size in (1, 2, 4, 8) if size <= node_units]))
        if sum(map(sum, cells.values())) > nodes * node_units:
            cells[tenant].pop()
    return pack_cells(count_sizes(cells), [node_units] * nodes)[node_units]


def check_promises(uses: Uses, guarantees: Guarantees, taken: dict[int, int]) -> None:
    """Check that all tenants and groups can have their nodes to themselves at once."""
    left = [use for node, use in enumerate(uses) if node not in taken.values()]
    needed = sum(
        max(0, count - sum(list(use) == [tenant] for use in left)) for tenant, count in guarantees.nodes.items()
    )
    assert needed + len(guarantees.groups) - len(taken) <= sum(not use for use in uses)


def is_promised(uses: Uses, guarantees: Guarantees, taken: dict[int, int], tenant: str, units: int, full: int) -> bool:
    """Return whether a pod would fit a private cluster of its tenant's cells, beside the tenant's pods."""
    own = [use for node, use in enumerate(uses) if list(use) == [tenant] and node not in taken.values()]
    return (
        len(own) < guarantees.nodes.get(tenant, 0)
        or any(use[tenant] + units <= full for use in own)
        or any(
            (uses[taken[number]].get(tenant, 0) if number in taken else 0) + units <= group.get(tenant, 0)
            for number, group in enumerate(guarantees.groups)
        )
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_every_promise_holds_after_any_placements_and_ends(seed: int) -> None:
    random = Random(seed)
    count, full = random.randint(1, 6), random.choice((2, 4, 8))
    guarantees = draw_guarantees(random, count, full)
    limits = {
        tenant: guarantees.nodes.get(tenant, 0) * full + sum(group.get(tenant, 0) for group in guarantees.groups)
        for tenant in TENANTS
    }
    nodes = GuaranteedNodes(count, guarantees)
    uses: Uses = [{} for _ in range(count)]
    pods: list[tuple[str, int, int]] = []
    for _ in range(40):
        smallest, taken = best_choice(uses, guarantees)
        assert nodes.excess() == smallest <= nodes.spare
        check_promises(uses, guarantees, taken)
        if pods and random.random() < 0.4:
            tenant, node, units = pods.pop(random.randrange(len(pods)))
            nodes.remove(tenant, node, units)
            uses[node][tenant] -= units
            uses[node] = {name: used for name, used in uses[node].items() if used}
            continue
        tenant, units = random.choice(TENANTS), random.choice([size for size in (1, 2, 4, 8) if size <= full])
        if sum(used for name, _, used in pods if name == tenant) + units > limits[tenant]:
            continue
        allowed = [
            node
            for node, use in enumerate(uses)
            if sum(use.values()) + units <= full and nodes.may_add(tenant, node, units)
        ]
        most = limits[tenant] - sum(used for name, _, used in pods if name == tenant)
        for node in range(count):
            largest = nodes.largest_amount(tenant, node, most)
            assert [amount for amount in range(1, most + 1) if nodes.may_add(tenant, node, amount)] == [
                *range(1, largest + 1)
            ]
        assert allowed or not is_promised(uses, guarantees, taken, tenant, units, full)
        if allowed:
            node = random.choice(allowed)
            nodes.add(tenant, node, units)
            uses[node][tenant] = uses[node].get(tenant, 0) + units
            pods.append((tenant, node, units))


def test_small_cells_of_all_tenants_fill_whole_nodes() -> None:
    """Cells of 4, 4, 2, 1 and 1 units of nodes with 8 units: no gap between them."""
    found = pack_cells(count_sizes({"a": [8, 4, 1], "b": [4, 2], "c": [1]}), [8, 8, 8])
    assert found == {8: Guarantees({"a": 1}, ({"a": 4, "b": 4}, {"b": 2, "a": 1, "c": 1}))}


def test_cells_name_the_smallest_nodes_that_hold_them() -> None:
    found = pack_cells(count_sizes({"a": [4, 1], "b": [8]}), [8, 4, 8, 1])
    assert found == {8: Guarantees({"b": 1}), 4: Guarantees({"a": 1}), 1: Guarantees({"a": 1})}


def test_node_with_cells_of_one_tenant_is_its_own() -> None:
    assert pack_cells({"a": {4: 1, 1: 1}}, [8, 8]) == {8: Guarantees({"a": 1})}


def test_while_nodes_are_missing_a_tenant_keeps_what_makes_no_promise_worse() -> None:
    nodes = GuaranteedNodes(1, Guarantees({"a": 1, "b": 1}))
    assert nodes.spare == -1
    assert nodes.may_add("a", 0, 4)
    nodes.add("a", 0, 4)
    assert nodes.may_add("a", 0, 4)
    assert not nodes.may_add("b", 0, 4)
