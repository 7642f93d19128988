"""Invariants of the arbiter over random stories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random

from tests.unit.arbiter.checked_cluster import CheckedCluster, RepeatedCycles, SlowTerminations, StartsInTime
from tests.unit.arbiter.simulated_cluster import GPU, KEY, OTHER, Cluster, make_gang, make_node, make_quota
from tests.unit.arbiter.stories import (
    GRACE,
    NOTICE,
    TENANTS,
    Story,
    StoryMix,
    StoryStep,
    node_units,
    random_gang,
    random_story,
)
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.placement import place_pods
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement
from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.guarantees.refusals import find_refusals
from vkgateway.arbiter.snapshot import Band, Gang, Policy, Pool, PoolKey, Quota

StoryCheck = tuple[Story, Callable[[Story], None]]


def whatever_comes(random: Random, *, more: int = 0, without_devices: float = 0.0) -> StoryCheck:
    mix = StoryMix(more_nodes=more, without_devices=without_devices)
    return random_story(random, mix), lambda each: CheckedCluster.from_story(each).play_story(each)


def called_in_at_once(random: Random, *, more: int = 0) -> StoryCheck:
    """Low elastic work fills what there is, and all tenants call their guarantees in between two cycles."""
    fields: dict[str, object] = {"band": Band.LOW, "elastic": True}
    low = StoryMix(more_nodes=more, most_gangs=3, limits=False, leaves=False, tail=0, sizes=(1, 2, 4), fields=fields)
    begins = random_story(random, replace(low, runs=(None,)))
    high = replace(low, equal=True, fields={"band": Band.GUARANTEED})
    come = [replace(random_gang(random, high, f"h{at}"), tenant=tenant) for at, tenant in enumerate(TENANTS)]
    together = StoryStep(arrives=tuple((one, None) for one in come), seconds=low.step)
    steps = (*begins.steps, together, StoryStep(seconds=low.step), StoryStep(seconds=low.step))
    return replace(begins, steps=steps), lambda each: CheckedCluster.from_story(each).play_story(each)


def deciding_again(random: Random, *, more: int = 0, without_devices: float = 0.0) -> StoryCheck:
    downs, forgets = random.random() < 0.3, random.random() < 0.3
    mix = StoryMix(more_nodes=more, downs=downs, forgets=forgets, tail=2, without_devices=without_devices)
    return random_story(random, mix), lambda each: RepeatedCycles.from_story(each).play_story(each)


def in_time(random: Random, *, more: int = 0) -> StoryCheck:
    def tell(each: Story) -> None:
        StartsInTime(each.nodes, each.quotas, recreate=each.recreate, more=each.more, reserve=each.reserve).play_story(
            each
        )

    return random_story(random, StoryMix(more_nodes=more, equal=True, limits=False, leaves=False)), tell


def whatever_comes_beside_slow_ends(random: Random, *, more: int = 0) -> StoryCheck:
    mix = StoryMix(more_nodes=more, most_gangs=12, limits=False, often_leaves=True)

    def tell(each: Story) -> None:
        SlowTerminations.from_story(replace(each, recreate=False)).play_story(each)

    return random_story(random, mix), tell


def in_time_beside_slow_ends(random: Random, *, more: int = 0) -> StoryCheck:
    """Also where pods inside others' guarantees take very long to end."""

    def tell(each: Story) -> None:
        StartsInTime(each.nodes, each.quotas, recreate=False, more=each.more, reserve=each.reserve).play_story(each)

    mix = StoryMix(more_nodes=more, most_gangs=12, equal=True, limits=False, often_leaves=True)
    return random_story(random, mix), tell


def nobody_starves(
    random: Random, *, more: int = 0, shipped: bool = False, limited: bool = False, inside: bool = False
) -> StoryCheck:
    """A gang that fits an empty pool starts, whatever keeps coming: of others, or what its own tenant has no better.

    `shipped`: by the policy that the platform ships; all times are as many times longer as its age cap is. `limited`:
    its tenant's limit lets it run beside little else. `inside`: so does its guarantee.
    """
    policy = Policy() if shipped else Policy(age_cap=20.0, age_weight=0.3)
    times = policy.age_cap / 20.0
    runs = (5.0, 12.0, 20.0)
    mix = StoryMix(most_nodes=3, more_nodes=more, most_gangs=3, limits=False, leaves=False, tail=0, runs=runs)
    begins = random_story(random, mix)
    quotas = tuple(replace(each, guarantee={}) for each in begins.quotas)
    pools = (KEY, OTHER) if more else (KEY,)
    band = random.choice((Band.GUARANTEED, Band.LOW))
    big = make_gang("big", random.choice(TENANTS), _largest_sizes(random, begins), pools=pools, band=band)
    if limited:
        most = sum(pod.shape.amount_of(GPU) for pod in big.pods) + random.choice((0, 1000, 3000))
        quotas = tuple(replace(each, limit={GPU: most}) if each.tenant == big.tenant else each for each in quotas)
    if inside:
        big = replace(big, band=Band.GUARANTEED)
        quotas = tuple(_with_guarantee(random, each, begins, big) for each in quotas)
    comes = (StoryStep(((big, 20.0),), seconds=4.0),)
    small = StoryMix(more_nodes=more, sizes=(1, 2, 4), runs=runs)
    always = tuple(_small_step(random, big, small, f"s{number}", own=limited or inside) for number in range(20))

    def tell(each: Story) -> None:
        recreate, more, reserve = each.recreate, each.more, each.reserve
        there = Cluster(each.nodes, each.quotas, policy=policy, recreate=recreate, more=more, reserve=reserve)
        names = {one.id for step in each.steps for one, _ in step.arrives}
        for step in _repeat_steps(each.steps):
            if "big" in there.start_times:
                break
            for one, run in step.arrives:
                there.add(_stretch_times(one, times))
                there.run_times[one.id] = (run or 20.0) * times
            there.cycle()
            there.advance(step.seconds * times)
        for _ in range(2):
            there.cycle()
            there.advance(4.0 * times)
        assert "big" not in names or "big" in there.start_times, "it starves"

    return replace(begins, quotas=quotas, steps=(*begins.steps, *comes, *always)), tell


def _small_step(random: Random, big: Gang, small: StoryMix, name: str, *, own: bool) -> StoryStep:
    """A small gang comes; `own`: mostly of the large gang's tenant, and soon the next."""
    one = random_gang(random, small, name)
    one = _rank_below(big, one, own=own and random.random() < 0.7)
    run = random.choice(small.runs)
    return StoryStep(((one, run),), seconds=random.choice((2.0,) if own else (2.0, 6.0)))


def _with_guarantee(random: Random, one: Quota, begins: Story, big: Gang) -> Quota:
    """The tenant's guarantee holds its gang, and little else."""
    if one.tenant != big.tenant or one.pool != KEY:
        return one
    least, most = sum(pod.shape.amount_of(GPU) for pod in big.pods) // 1000, sum(map(node_units, begins.nodes))
    pool = Pool(key=KEY, nodes=begins.nodes, governed=(GPU,), levels=("rack",))
    for size in (random.randint(least, most), least, most):
        found = replace(one, guarantee={GPU: size * 1000})
        if (
            not find_refusals(pool, [found])
            and GuaranteedPlacement(PoolCells(pool, [found]), one.tenant, big.pods)(NodeResources(pool)) is not None
        ):
            return found
    return one


def _rank_below(big: Gang, one: Gang, *, own: bool) -> Gang:
    """Its tenant's own work is no better, so that it is not ahead of it for ever."""
    if one.tenant != big.tenant and not own:
        return one
    return replace(one, tenant=big.tenant, band=big.band if one.band is big.band else Band.LOW, priority=0)


def _repeat_steps(steps: tuple[StoryStep, ...]) -> Iterator[StoryStep]:
    """The steps, and what came after the big gang again and again, as new gangs."""
    yield from steps
    for lap in range(1, 8):
        for step in steps:
            small = [(one, run) for one, run in step.arrives if one.id.startswith("s")]
            if small:
                yield replace(step, arrives=tuple((_renamed_gang(one, f"{one.id}.{lap}"), run) for one, run in small))


def _renamed_gang(one: Gang, name: str) -> Gang:
    return replace(one, id=name, pods=tuple(replace(pod, uid=f"{name}-{pod.rank}") for pod in one.pods))


def _stretch_times(one: Gang, times: float) -> Gang:
    limit, expected = one.run_limit, one.expected_run
    return replace(
        one,
        run_limit=None if limit is None else limit * times,
        expected_run=None if expected is None else expected * times,
        minimum_run=one.minimum_run * times,
    )


def _largest_sizes(random: Random, begins: Story) -> list[int]:
    """Pods that fit an empty pool, but would not fit beside much."""
    room = NodeResources(Pool(key=KEY, nodes=begins.nodes, governed=(GPU,), levels=("rack",)))
    sizes: list[int] = []
    for size in random.choice(((8,), (4,), (8, 4), (8, 2))):
        while place_pods(room, make_gang("x", "a", [size]).pods) is not None and len(sizes) < 8:
            sizes.append(size)
    return sizes or [1]


def better_than_alone(random: Random, *, more: int = 0) -> StoryCheck:
    """No guaranteed gang waits for longer than in a cluster of its tenant's own cells, but for notice and grace.

    Of that tenant's gangs none is ahead of another by priority: one that comes within notice and grace would pass those
    that had started before it came, had they been alone, and whoever asks for that order wants it so. And all of them
    are for one pool: where there are two, which of them a gang takes may depend on who else is there.
    """
    mix = StoryMix(
        more_nodes=more, equal=True, limits=False, leaves=False, tail=30, runs=(5.0, 12.0, 40.0), most_gangs=12
    )
    found = random_story(random, mix)
    size = random.choice((1, 2, 4, 8))
    steps = []
    for step in found.steps:
        arrives = []
        for one, run in step.arrives:
            mine = one.tenant == "a"
            arrives.append(
                (_single_pod_gang(one, size, random.choice((KEY, OTHER)) if more else KEY) if mine else one, run)
            )
        steps.append(replace(step, arrives=tuple(arrives)))

    def tell(each: Story) -> None:
        shared = Cluster(each.nodes, each.quotas, recreate=True, more=each.more, reserve=each.reserve)
        own = [_own_cells(shared, pool) for pool in shared.pools]
        quotas = [
            make_quota("a", sum(sizes), cells=tuple(sizes), pool=pool.key)
            for pool, sizes in zip(shared.pools, own, strict=True)
            if sizes
        ]
        names = ("own", "more")[: len(own)]
        nodes = [
            [make_node(f"{name}{at}", size) for at, size in enumerate(sizes)]
            for name, sizes in zip(names, own, strict=True)
        ]
        private = Cluster(nodes[0], quotas, recreate=True, more=nodes[1] if len(nodes) > 1 else ())
        for step in each.steps:
            for one, run in step.arrives:
                for there in (shared, private):
                    if there is shared or one.tenant == "a":
                        there.add(one)
                        there.run_times[one.id] = run or 40.0
            for there in (shared, private) if any(own) else ():
                there.run_for(step.seconds)
        for name, time in private.start_times.items():
            if shared.now > time + NOTICE + GRACE + 1:
                assert shared.start_times.get(name, 1e9) <= time + NOTICE + GRACE + 1, (
                    f"{name} would start sooner alone"
                )

    return replace(found, steps=tuple(steps)), tell


def _single_pod_gang(one: Gang, size: int, key: PoolKey) -> Gang:
    return make_gang(one.id, one.tenant, [size], band=Band.GUARANTEED, pools=(key,))


def _own_cells(there: Cluster, pool: Pool) -> list[int]:
    cells = there.derive_cells(pool).unused_cells("a")
    return [size for size, number in cells.items() for _ in range(number)]


_INVARIANTS = (whatever_comes, called_in_at_once, deciding_again, in_time, nobody_starves, better_than_alone)

INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    **{each.__name__: each for each in _INVARIANTS},
    **{f"{each.__name__}_in_two_pools": partial(each, more=3) for each in _INVARIANTS},
    "whatever_comes_without_devices": partial(whatever_comes, without_devices=0.6),
    "deciding_again_without_devices": partial(deciding_again, without_devices=0.6),
    "in_time_beside_slow_ends": in_time_beside_slow_ends,
    "in_time_beside_slow_ends_in_two_pools": partial(in_time_beside_slow_ends, more=3),
    "whatever_comes_beside_slow_ends": whatever_comes_beside_slow_ends,
    "nobody_starves_by_the_shipped_policy": partial(nobody_starves, shipped=True),
    "nobody_starves_below_a_limit": partial(nobody_starves, limited=True),
    "nobody_starves_inside_its_guarantee": partial(nobody_starves, inside=True),
}
