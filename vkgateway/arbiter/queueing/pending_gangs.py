"""What each gang asks for in a cycle: the pods that it still needs to start, and those beyond; or why it cannot ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from vkgateway.arbiter.decisions import PendingReason, PendingReport
from vkgateway.arbiter.snapshot import NOTIFIED, PLACED, WAITING, Gang, Pod, PoolKey


@dataclass(frozen=True, slots=True)
class PendingGang:
    """A gang that has pods waiting."""

    gang: Gang
    min_members: tuple[Pod, ...]
    """Start together or not at all, and with what runs they are the gang's minimum; none: the minimum runs."""
    surplus: tuple[Pod, ...]
    """Beyond its minimum, up to its maximum: may start one by one."""
    running: tuple[Pod, ...]
    """Placed, and not told to go."""
    notified: tuple[Pod, ...] = ()
    """Told to go, and may stay after all."""
    equivalence_key: Hashable = None
    """All of it that decides whether its core can start; equal for gangs that can stand in for each other."""
    equivalence_class: int = -1
    """A number for that."""
    bound_pool: PoolKey | None = None
    """The pool of what is there."""

    @property
    def placed_pods(self) -> tuple[Pod, ...]:
        """What runs, and what was told to go and may stay: it binds the gang to its pool, and to a required domain."""
        return self.running + self.notified

    @property
    def tenant(self) -> str:
        """Who asks."""
        return self.gang.tenant

    @property
    def allowed_pools(self) -> tuple[PoolKey, ...]:
        """Where it may go: what is there already binds it to its pool."""
        return (self.bound_pool,) if self.bound_pool is not None else self.gang.pools

    @property
    def part_pools(self) -> tuple[tuple[PoolKey, ...], ...]:
        """Where it and, if it is a part of a gang, the other parts may go."""
        part = self.gang.part_info
        return part.pools if part is not None else (self.allowed_pools,)


def read_pending_gang(gang: Gang, kind: Callable[[Hashable], int] = lambda _: -1) -> PendingGang | PendingReport | None:
    """What the gang asks for; a hold: nothing can be done for it yet; None: nothing of it waits.

    `equivalence_class` gives numbers to what is equal.
    """
    waiting = [pod for pod in gang.pods if pod.state is WAITING]
    if not waiting:
        return None
    running = tuple(pod for pod in gang.pods if pod.state is PLACED)
    told = tuple(pod for pod in gang.pods if pod.state is NOTIFIED)
    fault = next(_find_faults(gang), None)
    if fault is not None:
        return PendingReport(gang=gang.id, code=PendingReason.INVALID, message=fault)
    core = _missing_members(gang, running, waiting)
    if core is None:
        return _report_incomplete(gang, len(running) + len(waiting))
    chosen = {pod.uid for pod in core}
    rest = sorted((pod for pod in waiting if pod.uid not in chosen), key=_rank_key)
    if gang.maximum is not None:
        rest = rest[: max(0, gang.maximum - (len(gang.pods) - len(waiting)) - len(core))]
        # Whoever was told to go may stay after all: with it the core must not be too much, either.
        may_stay = len(running) + len(told)
        if (not core and not rest) or (core and may_stay + len(core) > max(gang.minimum, gang.maximum)):
            return report_maximum(gang, len(waiting))
    what = gang.id if running or told else make_equivalence_key(gang, core, gang.pools)
    if gang.part_info is not None:
        what = (
            gang.id
            if gang.part_info.equivalence_key is None
            else (gang.part_info.number, gang.part_info.equivalence_key)
        )
    bound = next((pod.pool for pod in running + told), None)
    return PendingGang(gang, tuple(core), tuple(rest), running, told, what, kind(what), bound)


def make_equivalence_key(gang: Gang, core: Sequence[Pod], pools: Sequence[PoolKey]) -> Hashable:
    """All that decides whether these pods of a gang can start, of which nothing is there."""
    return (
        # Images decide among equal nodes at most: never whether there is one.
        tuple((pod.shape.requests, pod.shape.terms, pod.shape.tolerations) for pod in core),
        pools,
        gang.required_level,
        gang.preferred_level,
        gang.band,
        gang.run_limit,
        gang.expected_run,
        gang.minimum_run,
        gang.preempts,
    )


def _rank_key(pod: Pod) -> tuple[int, str]:
    return pod.rank, pod.uid


def _missing_members(gang: Gang, running: Sequence[Pod], waiting: Sequence[Pod]) -> list[Pod] | None:
    """The waiting pods of lowest rank that make up the minimum with what runs; None: there are not so many."""
    wanted = dict(gang.role_minimum)
    for pod in running:
        wanted[pod.role] = wanted.get(pod.role, 0) - 1
    core, others = [], []
    for pod in sorted(waiting, key=_rank_key):
        if wanted.get(pod.role, 0) > 0:
            wanted[pod.role] -= 1
            core.append(pod)
        else:
            others.append(pod)
    short = max(0, gang.minimum - len(running) - len(core))
    if len(others) < short or any(number > 0 for role, number in wanted.items() if role in gang.role_minimum):
        return None
    return core + others[:short]


def report_maximum(gang: Gang, waiting: int) -> PendingReport:
    """The hold of a gang of which nothing waits but what is beyond its maximum."""
    there = len(gang.pods) - waiting
    pods = f"{waiting} more waits" if waiting == 1 else f"{waiting} more wait"
    return PendingReport(
        gang=gang.id,
        code=PendingReason.MAXIMUM,
        message=f"has {there} pods, and may grow to {gang.maximum}; {pods} until one of these has ended",
        numbers={"running": float(there), "waiting": float(waiting), "maximum": float(gang.maximum or 0)},
    )


def _report_incomplete(gang: Gang, there: int) -> PendingReport:
    wanted = max(gang.minimum, sum(gang.role_minimum.values()))
    going = len(gang.pods) - there
    message = f"{there} of {wanted} pods created" + (f", and {going} that are ending" if going else "")
    missing = [
        f"{role} {number - have}"
        for role, number in sorted(gang.role_minimum.items())
        if (have := sum(pod.role == role and pod.state in _STAYING_STATES for pod in gang.pods)) < number
    ]
    if missing:
        message += f"; missing: {', '.join(missing)}"
    return PendingReport(
        gang=gang.id,
        code=PendingReason.MEMBERS,
        message=message,
        numbers={"created": float(there), "minimum": float(wanted)},
    )


_STAYING_STATES = (PLACED, WAITING)


def _find_faults(gang: Gang) -> Iterator[str]:
    if gang.minimum < 1 and gang.part_info is None:
        yield f"its minimum is {gang.minimum}; it must be 1 or more"
    for role, number in sorted(gang.role_minimum.items()):
        if number < 0:
            yield f"its minimum of {role or 'pods without a role'} is {number}; it must be 0 or more"
    if gang.run_limit is not None and not gang.run_limit > 0:
        yield f"its run limit is {gang.run_limit:g} s; it must be more than 0"
    for pod in gang.pods:
        for resource, amount in pod.shape.requests:
            if amount < 0:
                yield f"pod {pod.uid} asks for less than nothing of {resource}"
    if not gang.pools:
        yield "it names no pool that it may run in"
    if len({pod.pool for pod in gang.pods if pod.state is PLACED and not pod.pools}) > 1:
        yield "its pods run in more than one pool"
