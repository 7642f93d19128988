"""Guarantees of a pool with nodes of several sizes: every tenant can have its nodes, all at once, whatever has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.guarantees.refusals import find_refusals
from vkgateway.scheduler.core.snapshot import Node, Pool, Quota

GPU, KEY = "nvidia.com/gpu", ("compute", "pool")
TENANTS = "abc"


def draw_pool(random: Random) -> Pool:
    sizes = random.choice(((8,), (4,), (8, 4), (8, 1), (8, 7, 2)))
    nodes = (Node(name=f"n{at}", allocatable={GPU: random.choice(sizes) * 1000}) for at in range(random.randint(1, 6)))
    return Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,))


def draw_quotas(random: Random, pool: Pool) -> list[Quota]:
    """Return guarantees that the pool holds, some with explicit cells."""
    quotas: list[Quota] = []
    for tenant in TENANTS:
        units, levels = random.randint(0, 20), PoolGuarantees(pool, ()).levels
        cells = tuple(random.choice(levels) for _ in range(random.randint(1, 4))) if random.random() < 0.5 else ()
        quota = Quota(tenant=tenant, pool=KEY, guarantee={GPU: (sum(cells) or units) * 1000}, cells=cells)
        if not find_refusals(pool, [*quotas, quota]):
            quotas.append(quota)
    return quotas


def draw_case(seed: int) -> tuple[Random, Pool, list[Quota], PoolGuarantees]:
    random = Random(seed)
    pool = draw_pool(random)
    quotas = draw_quotas(random, pool)
    return random, pool, quotas, PoolGuarantees(pool, quotas)


def free_on(guarantees: PoolGuarantees, node: Node) -> int:
    """Return the thousandths of a node that no guaranteed pod uses."""
    return node.allocatable[GPU] - sum(guarantees.used_on(tenant, node.name) for tenant in TENANTS)


def run_randomly(random: Random, guarantees: PoolGuarantees, pool: Pool) -> list[tuple[str, str, int]]:
    """Start and end pods inside guarantees at random; return those that run."""
    running: list[tuple[str, str, int]] = []
    for _ in range(30):
        if running and random.random() < 0.4:
            guarantees.release(*running.pop(random.randrange(len(running))))
            continue
        tenant, node = random.choice(TENANTS), random.choice(pool.nodes)
        amount = random.choice((500, 1000, 2000, 3000, 4000, 8000))
        most = guarantees.usable_amounts(tenant)[pool.nodes.index(node)]
        if amount > free_on(guarantees, node):
            continue
        assert guarantees.use(tenant, node.name, amount) is bool(amount <= most)
        if amount <= most:
            running.append((tenant, node.name, amount))
    return running


def answers(guarantees: PoolGuarantees) -> object:
    return [
        (
            guarantees.units_left(tenant),
            guarantees.usable_amounts(tenant).tolist(),
            guarantees.own_nodes(tenant).tolist(),
            guarantees.cells_in_use(tenant),
            guarantees.unused_cells(tenant),
        )
        for tenant in TENANTS
    ], guarantees.losses


def whole_nodes(guarantees: PoolGuarantees, pool: Pool, quota: Quota) -> int:
    """Return how many clean nodes a tenant is promised beside those that it has to itself."""
    largest = guarantees.levels[0] * 1000
    full = [node for node in pool.nodes if node.allocatable[GPU] == largest]
    own = guarantees.own_nodes(quota.tenant)
    has = sum(
        bool(own[pool.nodes.index(node)]) and free_on(guarantees, node) < largest
        for node in full
        if sum(guarantees.used_on(tenant, node.name) > 0 for tenant in TENANTS) == 1
    )
    cells = quota.cells or (quota.guarantee[GPU] // largest * guarantees.levels[0],)
    promised = sum(cell // guarantees.levels[0] for cell in cells)
    return max(0, min(promised - has, guarantees.units_left(quota.tenant) // largest))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_all_tenants_can_have_their_whole_nodes_at_once(seed: int) -> None:
    random, pool, quotas, guarantees = draw_case(seed)
    run_randomly(random, guarantees, pool)

    assert not guarantees.broken_promises()
    size = guarantees.levels[0] * 1000
    waiting = [quota.tenant for quota in quotas for _ in range(whole_nodes(guarantees, pool, quota))]
    random.shuffle(waiting)
    for tenant in waiting:
        usable = guarantees.usable_amounts(tenant)
        nodes = [
            node for node, most in zip(pool.nodes, usable, strict=True) if size <= min(most, free_on(guarantees, node))
        ]
        assert nodes, f"{tenant} gets no node"
        assert guarantees.use(tenant, random.choice(nodes).name, size)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_answers_depend_on_what_runs_alone(seed: int) -> None:
    random, pool, quotas, guarantees = draw_case(seed)
    run_randomly(random, guarantees, pool)
    expected = answers(guarantees)
    placed = guarantees.placed_amounts()
    random.shuffle(placed)
    assert answers(PoolGuarantees(pool, quotas, placed)) == expected
    with guarantees.trial():
        run_randomly(random, guarantees, pool)
    assert answers(guarantees) == expected


def lost_units(guarantees: PoolGuarantees) -> dict[str, int]:
    return {loss.tenant: loss.units for loss in guarantees.losses}


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_missing_nodes_reduce_guarantees_to_what_fits(seed: int) -> None:
    random, pool, quotas, guarantees = draw_case(seed)
    placed = run_randomly(random, guarantees, pool)
    gone = set(random.sample(range(len(pool.nodes)), random.randint(0, len(pool.nodes))))
    left = replace(pool, nodes=tuple(replace(node, usable=at not in gone) for at, node in enumerate(pool.nodes)))

    idle, busy = PoolGuarantees(left, quotas), PoolGuarantees(left, quotas, placed)
    for found in (idle, busy):
        assert found.spare_nodes() >= 0
        lost = lost_units(found)
        assert all(
            found.units_left(quota.tenant) + found.used_amount(quota.tenant)
            == quota.guarantee[GPU] - lost.get(quota.tenant, 0) * 1000
            for quota in quotas
        )
    check_reduction(left, quotas, idle)
    assert sorted(busy.placed_amounts()) == sorted(PoolGuarantees(pool, quotas, placed).placed_amounts())
    names = {node.name for node in left.nodes if not node.usable}
    assert all(not busy.use(tenant, name, 1000) for tenant in TENANTS for name in names)


def check_reduction(left: Pool, quotas: Sequence[Quota], idle: PoolGuarantees) -> None:
    """Check that nothing is lost while all fits, and that units of the pool are left only where no lost cell fits."""
    usable = sum(node.allocatable[GPU] // 1000 for node in left.nodes if node.usable)
    asked = sum(quota.guarantee[GPU] // 1000 for quota in quotas)
    lost = sum(lost_units(idle).values())
    if not find_refusals(left, quotas):
        assert not idle.losses
    assert asked - lost <= usable
    assert not lost or asked - lost == usable, "a lost unit could be kept"
