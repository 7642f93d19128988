"""When those who wait for one pool may start, as far as that can be foreseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.ends import End
from vkgateway.arbiter.facts import Pod
from vkgateway.arbiter.forecast import Future
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import among
from vkgateway.arbiter.reserve import reserve_for
from vkgateway.arbiter.room import Room
from vkgateway.arbiter.standing import Standing


class Outlook:
    """When the gangs of one pool start, if they start in their turn and nobody else comes."""

    def __init__(self, ledger: Ledger, standing: Standing) -> None:
        self._ledger = ledger
        self._standing = standing
        self._behind: Room | None = None
        """With all those that were asked for before, where they will start."""
        self._later: list[End] = []
        """Their ends."""
        self._last: tuple[Ask, float] | None = None
        """The last of them, which is not there yet."""
        self._alone: dict[int, float | None] = {}

    def next(self, ask: Ask) -> tuple[float | None, float | None]:
        """Earliest (as if it were alone in line) and likely (behind all those that were asked for before)."""
        alone = self._time_alone(ask)
        if alone is None:
            return None, None
        if self._last is not None:
            self._start(*self._last)
        time = alone if self._behind is None else self._earliest(self._behind, ask, alone)
        self._last = (ask, time) if time is not None else None
        return alone, time

    def _time_alone(self, ask: Ask) -> float | None:
        if ask.kind not in self._alone or ask.gang.whole in self._standing.behind:
            self._alone[ask.kind] = self._earliest(self._standing.room, ask, None)
        return self._alone[ask.kind]

    def _start(self, ask: Ask, time: float) -> None:
        nodes = self._place(ask, time)
        if self._behind is None:
            self._behind = self._standing.room.copy()
        run = self._standing.ends.run(ask.gang)
        for pod in ask.core:
            self._behind.take(nodes[pod.uid], pod.shape)
            if run is not None:
                self._later.append(End(time + run, nodes[pod.uid], pod.shape))

    def _place(self, ask: Ask, time: float) -> Mapping[str, str]:
        room = self._behind if self._behind is not None else self._standing.room
        with self._lent(room, ask):
            nodes = self._future(room, ask).place(
                ask.core, time, required_level=ask.gang.required_level, among=among(self._standing, ask)
            )
        assert nodes is not None
        return nodes

    def _earliest(self, room: Room, ask: Ask, after: float | None) -> float | None:
        with self._lent(room, ask):
            return self._future(room, ask).earliest(
                ask.core, required_level=ask.gang.required_level, among=among(self._standing, ask), after=after
            )

    def _future(self, room: Room, ask: Ask) -> Future:
        standing, also = self._standing, self._later if room is self._behind else ()
        leaves = reserve_for(standing, ask.core)
        if leaves and standing.allows_beside(ask.gang, ask.core):
            leaves = 0
        return Future(room, standing.ends, self._ledger.now, also, leaves=leaves)

    @contextmanager
    def _lent(self, room: Room, ask: Ask) -> Iterator[None]:
        """As if those were gone that were started in its kept place and go for it."""
        mark = room.mark()
        for pod in self._lent_pods(ask):
            room.give(pod.node, pod.shape)
        yield
        room.undo(mark)

    def _lent_pods(self, ask: Ask) -> list[Pod]:
        """Those pods, but for those that will have gone by themselves."""
        standing = self._standing
        if ask.gang.whole not in standing.behind:
            return []
        called = standing.callable_for(ask.gang.whole).pods()
        return [pod for pod in called if pod.node in standing.room and standing.ends.of(pod.uid) is None]
