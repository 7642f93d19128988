"""Placement inside guarantees compared with brute force: an existing placement is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from random import Random

import pytest

from tests.unit.arbiter.simulated_cluster import GPU, KEY, gpu_shape, make_gang, make_node, make_quota
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees, use_for_pods
from vkgateway.scheduler.core.guarantees.refusals import find_refusals
from vkgateway.scheduler.core.snapshot import Gang, Node, Pod, Pool

TENANTS = ("a", "b", "c")
CASES = 1000
"""Number of parts of each test, which may run in parallel."""

Case = tuple[Pool, PoolGuarantees, NodeResources, Gang]


def random_case(random: Random) -> Case | None:
    """Return a small used pool and a new gang; None: the guarantees do not fit there."""
    nodes = tuple(
        make_node(f"n{at}", random.choice((8, 8, 8, 4)), rack=f"r{at % 2}") for at in range(random.randint(1, 4))
    )
    pool = Pool(key=KEY, nodes=nodes, governed=(GPU,), levels=("rack",))
    quotas = [make_quota(tenant, random.choice((0, 4, 6, 8, 12, 16))) for tenant in TENANTS]
    if find_refusals(pool, quotas):
        return None
    guarantees, resources = PoolGuarantees(pool, quotas), NodeResources(pool)
    for _ in range(random.randint(0, 5)):
        name, amount = random.choice(nodes).name, random.choice((1, 2, 4))
        if resources.free.amounts_on(name)[GPU] >= amount * 1000:
            if random.random() < 0.5:
                guarantees.use(random.choice(TENANTS), name, amount * 1000)
            resources.add_pods(name, gpu_shape(amount))
    sizes = [random.choice((1, 1, 2, 3, 4, 8)) for _ in range(random.randint(1, 4))]
    return (
        pool,
        guarantees,
        resources,
        make_gang("g", random.choice(TENANTS), sizes, required_level=random.choice(("", "", "rack"))),
    )


def is_placeable(nodes: Sequence[Node], guarantees: PoolGuarantees, resources: NodeResources, one: Gang) -> bool:
    """Return whether any assignment of the pods respects free capacity, one rack and the guarantees."""
    return any(
        all(resources.free.amounts_on(name)[GPU] >= amount for name, amount in amounts.items())
        and can_hold(guarantees, one.tenant, amounts)
        for amounts in all_assignments(nodes, one)
    )


def all_assignments(nodes: Sequence[Node], one: Gang) -> Iterator[dict[str, int]]:
    for chosen in product(nodes, repeat=len(one.pods)):
        if one.required_level and len({each.labels[one.required_level] for each in chosen}) > 1:
            continue
        yield amounts_on([(pod, each.name) for pod, each in zip(one.pods, chosen, strict=True)])


def amounts_on(placed: Sequence[tuple[Pod, str]]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for pod, name in placed:
        amounts[name] = amounts.get(name, 0) + pod.shape.amount_of(GPU)
    return amounts


def can_hold(guarantees: PoolGuarantees, tenant: str, amounts: dict[str, int]) -> bool:
    """Return whether the guarantees hold the amounts in some order."""
    for names in permutations(amounts):
        with guarantees.trial():
            held = all(guarantees.use(tenant, name, amounts[name]) for name in names)
        if held:
            return True
    return False


@pytest.mark.parametrize("chunk", range(4))
def test_existing_placement_is_found(chunk: int) -> None:
    found = 0
    for seed in range(chunk * CASES, (chunk + 1) * CASES):
        made = random_case(Random(seed))
        if made is None:
            continue
        pool, guarantees, resources, one = made
        nodes = GuaranteedPlacement(guarantees, one.tenant, one.pods, required_level=one.required_level)(resources)
        found += nodes is not None
        assert nodes is not None or not is_placeable(pool.nodes, guarantees, resources, one), f"seed {seed}"
    assert found > CASES // 50


def test_placed_pods_use_guarantees_if_possible() -> None:
    """Promotions and plans of earlier cycles rely on this."""
    found = 0
    for seed in range(CASES // 2):
        made = random_case(Random(seed))
        if made is None:
            continue
        pool, guarantees, resources, one = made
        for chosen in product(pool.nodes, repeat=len(one.pods)):
            placed = [(pod, each.name) for pod, each in zip(one.pods, chosen, strict=True)]
            amounts = amounts_on(placed)
            if any(resources.free.amounts_on(name)[GPU] < amount for name, amount in amounts.items()):
                continue
            can = can_hold(guarantees, one.tenant, amounts)
            with guarantees.trial():
                assert use_for_pods(guarantees, one.tenant, GPU, placed) is can, f"seed {seed}"
            found += can and len(amounts) > 1
    assert found > CASES // 20
