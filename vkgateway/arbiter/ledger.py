"""What has been decided so far in a cycle, and the standing of each pool with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vkgateway.arbiter.asks import Ask, read
from vkgateway.arbiter.decisions import Admit, Evict, Hold, Promote, Reprieve
from vkgateway.arbiter.facts import Gang, Plan, Pod, PodState, PoolKey, Snapshot
from vkgateway.arbiter.standing import Standing


@dataclass(frozen=True, slots=True)
class Start:
    """A gang that starts in this cycle, and where."""

    standing: Standing
    nodes: dict[str, str]


class Ledger:
    """A cycle under way."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.now = now
        self.policy = snapshot.policy
        self.unreadable: list[Hold] = []
        """Gangs of which some wait, and nothing can be done for them."""
        self.asks: dict[str, Ask] = {}
        self.plans: dict[str, Plan] = {}
        self.started: dict[str, Start] = {}
        self.evicts: list[Evict] = []
        self._admits: list[Admit] = []
        self._original = snapshot.gangs
        gangs = [_as_of_now(gang, now) for gang in sorted(snapshot.gangs, key=lambda gang: gang.id)]
        self.gangs = {gang.id: gang for gang in gangs}
        for gang in gangs:
            found = read(gang)
            if isinstance(found, Ask):
                self.asks[gang.id] = found
            elif found is not None:
                self.unreadable.append(found)
        self.standings = {
            pool.key: Standing(pool, snapshot.quotas, gangs, policy=snapshot.policy, now=now)
            for pool in snapshot.pools
            if pool.governed
        }
        self._told: dict[PoolKey, list[tuple[Gang, Pod]]] = {}
        for gang in gangs:
            for pod in gang.pods:
                if pod.state is PodState.NOTIFIED and pod.pool is not None:
                    self._told.setdefault(pod.pool, []).append((gang, pod))

    def planned(self) -> Iterator[Ask]:
        """Gangs that the last cycle planned for, that still have not what they need to run, and of which nothing has
        been decided in this one.
        """
        yield from (ask for ask in self.waiting() if ask.gang.plan is not None)

    def waiting(self) -> Iterator[Ask]:
        """Gangs that have not what they need to run, and nothing is planned for them."""
        for ask in self.asks.values():
            if ask.core and ask.gang.id not in self.started and ask.gang.id not in self.plans:
                yield ask

    def pools(self, ask: Ask) -> Iterator[Standing]:
        """The pools that the gang may use, best liked first."""
        for key in ask.pools:
            standing = self.standings.get(key)
            if standing is not None and standing.usable_by(ask):
                yield standing

    def told(self, standing: Standing) -> Sequence[tuple[Gang, Pod]]:
        """Pods in a pool that were told to go before this cycle, with their gangs."""
        return self._told.get(standing.pool.key, ())

    def told_for(self, gang: str, standing: Standing) -> list[tuple[Gang, Pod]]:
        """Those of them that go for this gang."""
        return [each for each in self.told(standing) if each[1].evicted_for == gang]

    def leaving_gangs(self, standing: Standing) -> list[Gang]:
        """Gangs of which pods in a pool were told to go, before or in this cycle."""
        names = {gang.id for gang, _ in self.told(standing)} | {evict.gang for evict in self.evicts}
        return [standing.gangs[name] for name in sorted(names) if name in standing.gangs]

    def start(
        self,
        ask: Ask,
        standing: Standing,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        inside: bool,
        behind: str = "",
    ) -> None:
        """These pods start now; their room is taken already, and their cells are held if they are inside.

        `behind`: the gang in whose reserved place they start.
        """
        self._book(ask, standing, pods, inside=inside)
        self._admit(ask, standing, pods, nodes, inside=inside, behind=behind)

    def start_planned(self, ask: Ask, standing: Standing, nodes: Mapping[str, str]) -> None:
        """A gang that has a plan starts on other nodes than planned; room and cells are seen to."""
        plan = self.plans.pop(ask.gang.id)
        self._admit(ask, standing, ask.core, nodes, inside=not plan.borrowed)

    def _admit(
        self,
        ask: Ask,
        standing: Standing,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        inside: bool,
        behind: str = "",
    ) -> None:
        gang = ask.gang
        chosen = {pod.uid: nodes[pod.uid] for pod in pods}
        admit = Admit(gang=gang.id, pool=standing.pool.key, nodes=chosen, borrowed=not inside, behind=behind)
        self._admits.append(admit)
        before = self.started.get(gang.id)
        self.started[gang.id] = Start(standing, {**(before.nodes if before else {}), **nodes})
        standing.ends.add_start(gang, pods, nodes, self.now)

    def plan(
        self, ask: Ask, standing: Standing, nodes: Mapping[str, str], *, inside: bool, evicts: Iterable[Evict] = ()
    ) -> None:
        """The gang starts there when those have gone who leave; its room is taken already, its cells are held."""
        self._book(ask, standing, ask.core, inside=inside)
        self.plans[ask.gang.id] = Plan(pool=standing.pool.key, nodes=dict(nodes), borrowed=not inside)
        for evict in evicts:
            pods = standing.told_to_go(evict.gang, evict.pods)
            standing.ends.add_leaving(standing.gangs[evict.gang], pods, evict.deadline)
            self.evicts.append(evict)

    def _book(self, ask: Ask, standing: Standing, pods: Sequence[Pod], *, inside: bool) -> None:
        for pod in pods:
            standing.count(ask.tenant, pod)
        if inside:
            standing.mark_inside(ask.tenant, pods)

    def admits(self) -> Iterator[Admit]:
        """One for each gang and side of the cells; what was admitted in pieces is put together."""
        together: dict[tuple[str, bool, str], Admit] = {}
        for admit in self._admits:
            key = admit.gang, admit.borrowed, admit.behind
            known = together.get(key)
            nodes = {**known.nodes, **admit.nodes} if known is not None else admit.nodes
            together[key] = replace(admit, nodes=nodes)
        yield from together.values()

    def reprieves(self) -> Iterator[Reprieve]:
        """Who was told to go and may stay, because nobody counts on it."""
        again = {uid for evict in self.evicts for uid in evict.pods}
        leaving = {uid for standing in self.standings.values() for uid in standing.leaving}
        for gang in sorted(self._original, key=lambda gang: gang.id):
            pods = tuple(
                pod.uid
                for pod in gang.pods
                if pod.state is PodState.NOTIFIED
                and pod.deadline > self.now
                and pod.uid not in again
                and pod.uid not in leaving
            )
            if pods:
                yield Reprieve(gang=gang.id, pods=pods)

    def promotes(self) -> Iterator[Promote]:
        """Running pods that borrowed and are inside cells now; not those that are to go."""
        going = {uid for evict in self.evicts for uid in evict.pods}
        for standing in self.standings.values():
            for gang in sorted(standing.promoted):
                pods = tuple(
                    pod.uid
                    for pod in standing.gangs[gang].pods
                    if pod.state is PodState.PLACED
                    and pod.borrowed
                    and pod.uid in standing.inside
                    and pod.uid not in going
                )
                if pods:
                    yield Promote(gang=gang, pods=pods)


def _as_of_now(gang: Gang, now: float) -> Gang:
    """Notified pods whose time has come are ending."""
    if all(pod.state is not PodState.NOTIFIED or pod.deadline > now for pod in gang.pods):
        return gang
    return replace(gang, pods=tuple(_pod_as_of_now(gang, pod, now) for pod in gang.pods))


def _pod_as_of_now(gang: Gang, pod: Pod, now: float) -> Pod:
    if pod.state is not PodState.NOTIFIED or pod.deadline > now:
        return pod
    return replace(pod, state=PodState.ENDING, deadline=now + gang.grace)
