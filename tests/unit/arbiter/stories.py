"""Random stories: small clusters and their events over time, with shrinking of failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from tests.unit.arbiter.simulated_cluster import KEY, OTHER, gpu_shape, make_gang, make_node, make_quota
from vkgateway.scheduler.core.guarantees.refusals import find_refusals
from vkgateway.scheduler.core.snapshot import Band, Gang, Node, Pool, PoolKey, Quota, Shape

TENANTS = ("a", "b", "c")
NOTICE, GRACE = 10.0, 5.0


@dataclass(frozen=True)
class StoryStep:
    """Events before a cycle, and the seconds that pass after it."""

    arrives: tuple[tuple[Gang, float | None], ...] = ()
    """Gangs, and the run time of each in seconds (None: unlimited)."""
    leaves: tuple[str, ...] = ()
    """Gangs that are deleted."""
    down: frozenset[str] | None = None
    """Nodes that are unusable from now on; None: unchanged."""
    forgets: bool = False
    """The plans of the last cycle are lost."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Story:
    nodes: tuple[Node, ...]
    quotas: tuple[Quota, ...]
    steps: tuple[StoryStep, ...]
    recreate: bool = False
    age_cap: float = 3600.0
    more: tuple[Node, ...] = ()
    """Nodes of a second pool."""
    reserve: int = 0
    """Units that borrowing leaves idle in each pool."""
    limits: dict[str, float] | None = None
    """Default run limits of each band in pools that enforce run limits; None: the pools do not."""
    half_life: float = 0.0
    """Half-life of past shares in seconds; 0: they do not count."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        sizes = ", ".join(f"{each.name}:{node_units(each)}:{each.labels['rack']}" for each in (*self.nodes, *self.more))
        yield f"nodes {sizes}; recreate={self.recreate} age_cap={self.age_cap} reserve={self.reserve}"
        if self.limits is not None:
            yield f"enforces run limits, by default {self.limits}"
        if self.half_life:
            yield f"past shares with a half-life of {self.half_life} s"
        for each in self.quotas:
            has = f"{each.guarantee} limit {each.limit} weight {each.weight} cells {each.cells} stopped {each.stopped}"
            yield f"quota {each.tenant} {each.pool[1]} {has}"
        for number, step in enumerate(self.steps):
            for one, run in step.arrives:
                yield f"{number}: + {_gang_text(one)} runs {run}"
            if step.leaves or step.down is not None or step.forgets:
                yield f"{number}: - {step.leaves} down {step.down and sorted(step.down)} forgets {step.forgets}"
            yield f"{number}: {step.seconds:g} s"


def _gang_text(one: Gang) -> str:
    sizes = [(dict(pod.shape.requests), _pool_names(pod.pools)) for pod in one.pods]
    short = [
        f"{each.get('nvidia.com/gpu', 0) / 1000:g}+{each.get('cpu', 0) // 1000}{at and ' in '}{at}"
        for each, at in sizes
    ]
    pools = _pool_names(one.pools)
    return (
        f"{one.id} {one.tenant} {one.band} {pools} {short} min {one.minimum}"
        f" to {one.maximum} elastic {one.elastic} priority {one.priority} limit {one.run_limit}"
        f" expected {one.expected_run} protected {one.minimum_run} {one.required_level} restart {one.restart_cost}"
        f" notice {one.notice} grace {one.grace}"
    )


def _pool_names(pools: tuple[PoolKey, ...]) -> str:
    return "/".join(key[1] for key in pools)


def node_units(each: Node) -> int:
    return each.allocatable["nvidia.com/gpu"] // 1000


@dataclass
class StoryMix:
    """Parameters of random stories."""

    most_nodes: int = 4
    more_nodes: int = 0
    """Most nodes of a second pool; 0: no second pool."""
    most_gangs: int = 9
    equal: bool = False
    """The pods of a gang are equal, may run on any node and request only GPUs."""
    limits: bool = True
    downs: bool = False
    leaves: bool = True
    often_leaves: bool = False
    forgets: bool = False
    tail: int = 5
    """Steps after the last arrival."""
    step: float = 4.0
    sizes: tuple[int, ...] = (1, 1, 2, 4, 8)
    runs: tuple[float | None, ...] = (None, None, 5.0, 12.0, 40.0)
    without_devices: float = 0.0
    """Fraction of the gangs that request only CPU, or whose first pod does."""
    fields: dict[str, object] = field(default_factory=dict)
    """Fields of all gangs."""


def random_story(random: Random, mix: StoryMix | None = None) -> Story:
    mix = mix or StoryMix()
    cluster = _random_nodes(random, "n", mix.most_nodes)
    more = _random_nodes(random, "m", mix.more_nodes) if mix.more_nodes else ()
    both = cluster + more
    names: list[str] = []
    steps: list[StoryStep] = []
    for _ in range(random.randint(1, mix.most_gangs)):
        while random.random() < 0.3:
            steps.append(_random_step(random, mix, both, names, arrives=()))
        one = random_gang(random, mix, f"g{len(names)}")
        names.append(one.id)
        seconds = mix.step if random.random() < 0.3 else 0.0
        steps.append(
            replace(_random_step(random, mix, both, names, arrives=((one, random.choice(mix.runs)),)), seconds=seconds)
        )
    steps += [_random_step(random, mix, both, names, arrives=()) for _ in range(mix.tail)]
    quotas = _random_quotas(random, mix, cluster)
    if more:
        quotas += tuple(each for each in _random_quotas(random, mix, more, OTHER) if random.random() < 0.8)
    recreate, age_cap = random.random() < 0.5, random.choice((10.0, 3600.0))
    return Story(cluster, quotas, tuple(steps), recreate, age_cap, more)


def _random_nodes(random: Random, letter: str, most: int) -> tuple[Node, ...]:
    return tuple(
        make_node(f"{letter}{index}", random.choice((8, 8, 8, 4)), rack=f"r{index % 2}")
        for index in range(random.randint(1, most))
    )


def _random_step(
    random: Random,
    mix: StoryMix,
    cluster: tuple[Node, ...],
    names: list[str],
    *,
    arrives: tuple[tuple[Gang, float | None], ...],
) -> StoryStep:
    leaves = (
        (random.choice(names),)
        if mix.leaves and names and random.random() < (0.3 if mix.often_leaves else 0.07)
        else ()
    )
    down = None
    if mix.downs and random.random() < 0.5:
        down = frozenset(random.sample([each.name for each in cluster], random.randint(0, min(2, len(cluster)))))
    return StoryStep(arrives, leaves, down, mix.forgets and random.random() < 0.2, mix.step)


def random_gang(random: Random, mix: StoryMix, name: str) -> Gang:
    count = random.choice((1, 1, 2, 2, 3, 4))
    if mix.equal:
        shapes: list[int | Shape] = [random.choice(mix.sizes)] * count
    elif random.random() < 0.2:
        shapes = [gpu_shape(random.choice(mix.sizes), random.choice((0, 8, 40))) for _ in range(count)]
    else:
        shapes = [random.choice(mix.sizes) for _ in range(count)]
    if mix.without_devices and random.random() < mix.without_devices:
        bare = gpu_shape(0, random.choice((8, 24, 40, 64)))
        shapes = [bare] * count if random.random() < 0.7 else [bare, *shapes]
        count = len(shapes)
    elastic = random.random() < 0.4
    run = random.choice(mix.runs)
    fields: dict[str, object] = {
        "band": random.choice((Band.GUARANTEED, Band.LOW)),
        "elastic": elastic,
        "minimum": random.randint(1, count) if elastic or random.random() < 0.15 else count,
        "priority": random.choice((0, 0, 0, 1, 2)),
        "run_limit": run if random.random() < 0.4 else None,
        "expected_run": run if random.random() < 0.2 else None,
        "minimum_run": random.choice((0.0, 0.0, 20.0)),
        "restart_cost": random.choice((0.0, 0.0, 100.0)),
        "required_level": "rack" if not mix.equal and random.random() < 0.2 else "",
        "notice": NOTICE,
        "grace": GRACE,
    }
    tenant = random.choice(TENANTS)
    if mix.more_nodes:
        fields["pools"] = random.choice(((KEY, OTHER), (KEY, OTHER), (OTHER, KEY), (OTHER, KEY), (KEY,), (OTHER,)))
        fields["maximum"] = random.choice((None, None, random.randint(1, count)))
    return make_gang(name, tenant, shapes, **(fields | mix.fields))


def _random_quotas(random: Random, mix: StoryMix, cluster: tuple[Node, ...], key: PoolKey = KEY) -> tuple[Quota, ...]:
    pool = Pool(key=key, nodes=cluster, governed=("nvidia.com/gpu",), levels=("rack",))
    found: list[Quota] = []
    for tenant in TENANTS:
        guarantee = random.choice((0, 0, 1, 2, 4, 6, 8, 12, 16))
        limit = random.choice((None, None, None, 4, 8, 16)) if mix.limits else None
        one = make_quota(
            tenant,
            guarantee,
            limit=None if limit is None else max(limit, guarantee),
            weight=random.choice((1.0, 1.0, 2.0)),
            pool=key,
        )
        if find_refusals(pool, [*found, one]):
            one = replace(one, guarantee={})
        if mix.without_devices:
            one = replace(one, guarantee=one.guarantee | {"cpu": random.choice((0, 0, 16_000, 40_000))})
        found.append(one)
    return tuple(found)


def shorten_story(found: Story, fails: Callable[[Story], bool]) -> Story:
    """Return the story without everything that it fails without, too."""
    again = True
    while again:
        again = False
        for shorter in _shorter_stories(found):
            if fails(shorter):
                found, again = shorter, True
                break
    return found


def _shorter_stories(found: Story) -> Iterator[Story]:
    steps = found.steps
    for index, step in enumerate(steps):
        yield replace(found, steps=steps[:index] + steps[index + 1 :])
        if step.seconds:
            yield replace(found, steps=(*steps[:index], replace(step, seconds=0.0), *steps[index + 1 :]))
    if len(found.nodes) > 1:
        for index in range(len(found.nodes)):
            yield replace(found, nodes=found.nodes[:index] + found.nodes[index + 1 :])
    for index in range(len(found.more)):
        yield replace(found, more=found.more[:index] + found.more[index + 1 :])
    if found.reserve:
        yield replace(found, reserve=found.reserve - 1)
    if found.limits is not None:
        yield replace(found, limits=None)
        if found.limits:
            yield replace(found, limits={})
    for index, each in enumerate(found.quotas):
        for plain in (replace(each, limit={}), replace(each, guarantee={}), replace(each, weight=1.0)):
            if plain != each:
                yield replace(found, quotas=(*found.quotas[:index], plain, *found.quotas[index + 1 :]))
    for index, step in enumerate(steps):
        for other in _simpler_steps(step):
            yield replace(found, steps=(*steps[:index], other, *steps[index + 1 :]))


def _simpler_steps(step: StoryStep) -> Iterator[StoryStep]:
    if step.leaves:
        yield replace(step, leaves=())
    if step.down is not None:
        yield replace(step, down=None)
    for at, (one, run) in enumerate(step.arrives):
        before, after = step.arrives[:at], step.arrives[at + 1 :]
        if before or after:
            yield replace(step, arrives=before + after)
        for other in _simpler_gangs(one, run):
            yield replace(step, arrives=(*before, other, *after))


def _simpler_gangs(one: Gang, run: float | None) -> Iterator[tuple[Gang, float | None]]:
    if len(one.pods) > 1:
        yield replace(one, pods=one.pods[:-1], minimum=min(one.minimum, len(one.pods) - 1)), run
    plain = {"elastic": False, "run_limit": None, "expected_run": None, "minimum_run": 0.0, "required_level": ""}
    plain |= {"restart_cost": 0.0, "priority": 0, "maximum": None}
    for name, value in plain.items():
        if getattr(one, name) != value:
            yield replace(one, **{name: value}), run  # type: ignore[arg-type]
    if len(one.pools) > 1:
        for key in one.pools:
            yield replace(one, pools=(key,)), run
    if run is not None:
        yield one, None
