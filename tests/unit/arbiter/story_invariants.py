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
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.guarantees.refusals import find_refusals
from vkgateway.scheduler.core.snapshot import Band, Gang, Policy, Pool, PoolKey, Quota

StoryCheck = tuple[Story, Callable[[Story], None]]


def whatever_comes(
    random: Random, *, more: int = 0, without_devices: float = 0.0, keeps_low: bool = False
) -> StoryCheck:
    def check(each: Story) -> None:
        cluster = CheckedCluster.from_story(each)
        if keeps_low:
            cluster.keep_low()
        cluster.play_story(each)

    return random_story(random, StoryMix(more_nodes=more, without_devices=without_devices)), check


def called_in_at_once(random: Random, *, more: int = 0) -> StoryCheck:
    """Low elastic gangs fill the pool, and all tenants reclaim their guarantees between two cycles."""
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
    def check(each: Story) -> None:
        StartsInTime(each.nodes, each.quotas, recreate=each.recreate, more=each.more, reserve=each.reserve).play_story(
            each
        )

    return random_story(random, StoryMix(more_nodes=more, equal=True, limits=False, leaves=False)), check


def whatever_comes_beside_slow_ends(random: Random, *, more: int = 0) -> StoryCheck:
    mix = StoryMix(more_nodes=more, most_gangs=12, limits=False, often_leaves=True)

    def check(each: Story) -> None:
        SlowTerminations.from_story(replace(each, recreate=False)).play_story(each)

    return random_story(random, mix), check


def in_time_beside_slow_ends(random: Random, *, more: int = 0) -> StoryCheck:
    """Gangs start in time even if pods inside other guarantees terminate slowly."""

    def check(each: Story) -> None:
        StartsInTime(each.nodes, each.quotas, recreate=False, more=each.more, reserve=each.reserve).play_story(each)

    mix = StoryMix(more_nodes=more, most_gangs=12, equal=True, limits=False, often_leaves=True)
    return random_story(random, mix), check


def nobody_starves(
    random: Random,
    *,
    more: int = 0,
    shipped: bool = False,
    limited: bool = False,
    inside: bool = False,
    half_life: float = 0.0,
) -> StoryCheck:
    """A gang that fits an empty pool starts, whatever arrives later without a higher rank in its tenant.

    A low gang that yields to the guaranteed band may wait for it: then all that arrives is low.

    `shipped`: with the default policy, and all times scaled to its age cap. `limited`: its tenant's limit leaves little
    for other gangs. `inside`: so does its guarantee. `half_life`: of past shares, in seconds.
    """
    policy = Policy() if shipped else Policy(age_cap=20.0, age_weight=0.3, half_life=half_life)
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
    keeps_low = random.random() < 0.5

    def check(each: Story) -> None:
        recreate, more, reserve = each.recreate, each.more, each.reserve
        cluster = Cluster(each.nodes, each.quotas, policy=policy, recreate=recreate, more=more, reserve=reserve)
        if keeps_low:
            cluster.keep_low()
        only_low = not keeps_low and band is Band.LOW and not inside
        names = {one.id for step in each.steps for one, _ in step.arrives}
        for step in _repeat_steps(each.steps):
            if "big" in cluster.start_times:
                break
            for one, run in step.arrives:
                cluster.add(_stretch_times(replace(one, band=Band.LOW) if only_low else one, times))
                cluster.run_times[one.id] = (run or 20.0) * times
            cluster.cycle()
            cluster.advance(step.seconds * times)
        for _ in range(2):
            cluster.cycle()
            cluster.advance(4.0 * times)
        assert "big" not in names or "big" in cluster.start_times, "it starves"

    return replace(begins, quotas=quotas, steps=(*begins.steps, *comes, *always)), check


def _small_step(random: Random, big: Gang, small: StoryMix, name: str, *, own: bool) -> StoryStep:
    """Return a step with a small gang; `own`: mostly of the large gang's tenant, with the next one soon."""
    one = random_gang(random, small, name)
    one = _rank_below(big, one, own=own and random.random() < 0.7)
    run = random.choice(small.runs)
    return StoryStep(((one, run),), seconds=random.choice((2.0,) if own else (2.0, 6.0)))


def _with_guarantee(random: Random, one: Quota, begins: Story, big: Gang) -> Quota:
    """Return a quota whose guarantee holds the large gang and little else."""
    if one.tenant != big.tenant or one.pool != KEY:
        return one
    least, most = sum(pod.shape.amount_of(GPU) for pod in big.pods) // 1000, sum(map(node_units, begins.nodes))
    pool = Pool(key=KEY, nodes=begins.nodes, governed=(GPU,), levels=("rack",))
    for size in (random.randint(least, most), least, most):
        found = replace(one, guarantee={GPU: size * 1000})
        placement = GuaranteedPlacement(PoolGuarantees(pool, [found]), one.tenant, big.pods)
        if not find_refusals(pool, [found]) and placement(NodeResources(pool)) is not None:
            return found
    return one


def _rank_below(big: Gang, one: Gang, *, own: bool) -> Gang:
    """Return the gang with a rank no higher than the large one's within the same tenant."""
    if one.tenant != big.tenant and not own:
        return one
    return replace(one, tenant=big.tenant, band=big.band if one.band is big.band else Band.LOW, priority=0)


def _repeat_steps(steps: tuple[StoryStep, ...]) -> Iterator[StoryStep]:
    """Yield the steps, and repeat those after the large gang with new gangs."""
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
    """Return pod sizes that fit an empty pool but little beside them."""
    resources = NodeResources(Pool(key=KEY, nodes=begins.nodes, governed=(GPU,), levels=("rack",)))
    sizes: list[int] = []
    for size in random.choice(((8,), (4,), (8, 4), (8, 2))):
        while place_pods(resources, make_gang("x", "a", [size]).pods) is not None and len(sizes) < 8:
            sizes.append(size)
    return sizes or [1]


def better_than_alone(random: Random, *, more: int = 0) -> StoryCheck:
    """No guaranteed gang waits longer than in a private cluster of its tenant's cells, plus notice and grace period.

    The tenant's gangs have equal priority: a gang that arrives within notice and grace period may pass gangs that
    started before it in the private cluster. All of them use one pool: with two pools, the choice may depend on other
    tenants.
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

    def check(each: Story) -> None:
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
                for cluster in (shared, private):
                    if cluster is shared or one.tenant == "a":
                        cluster.add(one)
                        cluster.run_times[one.id] = run or 40.0
            for cluster in (shared, private) if any(own) else ():
                cluster.run_for(step.seconds)
        for name, time in private.start_times.items():
            if shared.now > time + NOTICE + GRACE + 1:
                assert shared.start_times.get(name, 1e9) <= time + NOTICE + GRACE + 1, (
                    f"{name} would start sooner alone"
                )

    return replace(found, steps=tuple(steps)), check


def _single_pod_gang(one: Gang, size: int, key: PoolKey) -> Gang:
    return make_gang(one.id, one.tenant, [size], band=Band.GUARANTEED, pools=(key,))


def _own_cells(cluster: Cluster, pool: Pool) -> list[int]:
    cells = cluster.count_guarantees(pool).unused_cells("a")
    return [size for size, number in cells.items() for _ in range(number)]


def with_past_shares(random: Random, *, invariant: Callable[[Random], StoryCheck]) -> StoryCheck:
    """The invariant holds if past shares count, whatever their half-life."""
    found, check = invariant(random)
    return replace(found, half_life=random.choice((2.0, 30.0, 3600.0))), check


_INVARIANTS = (whatever_comes, called_in_at_once, deciding_again, in_time, nobody_starves, better_than_alone)

INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    **{each.__name__: each for each in _INVARIANTS},
    **{f"{each.__name__}_in_two_pools": partial(each, more=3) for each in _INVARIANTS},
    "whatever_comes_while_low_stays": partial(whatever_comes, keeps_low=True),
    "whatever_comes_without_devices": partial(whatever_comes, without_devices=0.6),
    "deciding_again_without_devices": partial(deciding_again, without_devices=0.6),
    "in_time_beside_slow_ends": in_time_beside_slow_ends,
    "in_time_beside_slow_ends_in_two_pools": partial(in_time_beside_slow_ends, more=3),
    "whatever_comes_beside_slow_ends": whatever_comes_beside_slow_ends,
    "nobody_starves_by_the_shipped_policy": partial(nobody_starves, shipped=True),
    "nobody_starves_below_a_limit": partial(nobody_starves, limited=True),
    "nobody_starves_by_past_shares": partial(nobody_starves, half_life=60.0),
    **{
        f"{each.__name__}_by_past_shares": partial(with_past_shares, invariant=partial(each, more=3))
        for each in (whatever_comes, called_in_at_once, deciding_again)
    },
    "nobody_starves_inside_its_guarantee": partial(nobody_starves, inside=True),
}
