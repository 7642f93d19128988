"""Pending gangs: the pods that a gang still needs to start, its surplus, or why it cannot be scheduled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import NOTIFIED, PLACED, WAITING, Gang, Pod, PoolKey


@dataclass(frozen=True, slots=True)
class PendingGang:
    """A gang with pending pods."""

    gang: Gang
    min_members: tuple[Pod, ...]
    """Pending pods that start together or not at all, and make up the minimum with running pods; empty: the minimum
    runs.
    """
    surplus: tuple[Pod, ...]
    """Pending pods beyond the minimum, up to the maximum, which may start one by one."""
    running: tuple[Pod, ...]
    """Placed pods that are not notified."""
    notified: tuple[Pod, ...] = ()
    """Notified pods, which may be reprieved."""
    equivalence_key: Hashable = None
    """Everything that decides whether its min members can start; equal for equivalent gangs."""
    equivalence_class: int = -1
    """Number of the equivalence key."""
    bound_pool: PoolKey | None = None
    """The pool of its placed pods."""

    @property
    def placed_pods(self) -> tuple[Pod, ...]:
        """Running and notified pods. They bind the gang to its pool, and to a required domain."""
        return self.running + self.notified

    @property
    def tenant(self) -> str:
        """The gang's tenant."""
        return self.gang.tenant

    @property
    def allowed_pools(self) -> tuple[PoolKey, ...]:
        """Pools in which the gang may run: the one of its placed pods, or all it names."""
        return (self.bound_pool,) if self.bound_pool is not None else self.gang.pools

    @property
    def part_pools(self) -> tuple[tuple[PoolKey, ...], ...]:
        """Allowed pools of the gang, or of each part of a gang in several pools."""
        part = self.gang.part_info
        return part.pools if part is not None else (self.allowed_pools,)


def read_pending_gang(
    gang: Gang, equivalence_class_of: Callable[[Hashable], int] = lambda _: -1
) -> PendingGang | PendingReport | None:
    """Return the pending gang, or a report if it cannot be scheduled yet; None: none of its pods is pending.

    `equivalence_class_of` returns the number of an equivalence key.
    """
    waiting = [pod for pod in gang.pods if pod.state is WAITING]
    if not waiting:
        return None
    running = tuple(pod for pod in gang.pods if pod.state is PLACED)
    notified = tuple(pod for pod in gang.pods if pod.state is NOTIFIED and not pod.limit_reached)
    fault = next(_find_faults(gang), None)
    if fault is not None:
        return PendingReport(gang=gang.id, code=PendingReason.INVALID, message=fault)
    if _run_ends(gang):
        return _report_ending(gang)
    members = _missing_members(gang, running, waiting)
    if members is None:
        return _report_incomplete(gang, len(running) + len(waiting))
    chosen = {pod.uid for pod in members}
    surplus = sorted((pod for pod in waiting if pod.uid not in chosen), key=_rank_key)
    if gang.maximum is not None:
        surplus = surplus[: max(0, gang.maximum - (len(gang.pods) - len(waiting)) - len(members))]
        # Notified pods may be reprieved: together with them, min members must not exceed the maximum.
        may_stay = len(running) + len(notified)
        if (not members and not surplus) or (members and may_stay + len(members) > max(gang.minimum, gang.maximum)):
            return report_maximum(gang, len(waiting))
    key = make_equivalence_key(gang, members, gang.pools)
    if running or notified or gang.short:
        # No other gang is equivalent, nor is this one once it lacks other members.
        key = gang.id, key
    if gang.part_info is not None:
        key = (
            gang.id
            if gang.part_info.equivalence_key is None
            else (gang.part_info.number, gang.part_info.equivalence_key)
        )
    bound = next((pod.pool for pod in running + notified), None)
    return PendingGang(gang, tuple(members), tuple(surplus), running, notified, key, equivalence_class_of(key), bound)


def make_equivalence_key(gang: Gang, members: Sequence[Pod], pools: Sequence[PoolKey]) -> Hashable:
    """Return everything that decides whether these pods can start, for a gang without placed pods."""
    return (
        # Images decide among equal nodes at most: never whether there is one.
        tuple((pod.shape.requests, pod.shape.terms, pod.shape.tolerations, pod.shape.peers) for pod in members),
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
    """Return the pending pods of lowest rank that complete the minimum; None: there are too few."""
    missing = dict(gang.role_minimum)
    for pod in running:
        missing[pod.role] = missing.get(pod.role, 0) - 1
    members, others = [], []
    for pod in sorted(waiting, key=_rank_key):
        if missing.get(pod.role, 0) > 0:
            missing[pod.role] -= 1
            members.append(pod)
        else:
            others.append(pod)
    missing_count = max(0, gang.minimum - len(running) - len(members))
    if len(others) < missing_count or any(number > 0 for role, number in missing.items() if role in gang.role_minimum):
        return None
    return members + others[:missing_count]


def _run_ends(gang: Gang) -> bool:
    """Return whether the gang's run ends at its limit."""
    ends_elsewhere = gang.part_info is not None and gang.part_info.run_ends
    return ends_elsewhere or any(pod.limit_reached for pod in gang.pods)


def _report_ending(gang: Gang) -> PendingReport:
    """Return the report of a gang whose run ends at its limit: it ends as a whole before the next run begins."""
    ending = sum(pod.limit_reached for pod in gang.pods)
    pods = f"{ending} pod has" if ending == 1 else f"{ending} pods have" if ending else "its other pods have"
    return PendingReport(
        gang=gang.id,
        code=PendingReason.EVICTION,
        message=f"its run reached the run limit; it starts again when {pods} terminated",
        numbers={"nodes": 0.0, "leaving": float(ending)},
    )


def report_maximum(gang: Gang, waiting: int) -> PendingReport:
    """Return the report of a gang whose pending pods all exceed its maximum."""
    there = len(gang.pods) - waiting
    pods = f"{waiting} more waits" if waiting == 1 else f"{waiting} more wait"
    return PendingReport(
        gang=gang.id,
        code=PendingReason.MAXIMUM,
        message=f"has {there} pods and a maximum of {gang.maximum}; {pods} until one of these terminates, or the "
        f"maximum is {len(gang.pods)}",
        numbers={"running": float(there), "waiting": float(waiting), "maximum": float(gang.maximum or 0)},
    )


def _report_incomplete(gang: Gang, there: int) -> PendingReport:
    required = max(gang.minimum, sum(gang.role_minimum.values()))
    terminating = len(gang.pods) - there
    message = f"{there} of {required} pods created" + (f", {terminating} terminating" if terminating else "")
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
        numbers={"created": float(there), "minimum": float(required)},
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
                yield f"pod {pod.uid} requests a negative amount of {resource}"
    if not gang.pools:
        yield "it allows no pool"
    if len({pod.pool for pod in gang.pods if pod.state is PLACED and not pod.pools}) > 1:
        yield "its pods run in more than one pool"
