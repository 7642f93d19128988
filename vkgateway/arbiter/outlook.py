"""When those who wait for one pool may start, as far as that can be foreseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.ends import End
from vkgateway.arbiter.facts import Pod
from vkgateway.arbiter.forecast import earliest
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import among
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
        self._last: tuple[Ask, float, Mapping[str, str]] | None = None
        """The last of them, which is not there yet."""
        self._alone: dict[int, tuple[float | None, Mapping[str, str]]] = {}

    def next(self, ask: Ask) -> tuple[float | None, float | None]:
        """Earliest (as if it were alone in line) and likely (behind all those that were asked for before)."""
        alone = self._alone.get(ask.kind) if ask.gang.whole not in self._standing.behind else None
        if alone is None:
            alone = self._alone[ask.kind] = self._earliest(self._standing.room, ask, (), None)
        if alone[0] is None:
            return None, None
        if self._last is not None:
            self._start(*self._last)
        time, nodes = alone if self._behind is None else self._earliest(self._behind, ask, self._later, alone[0])
        self._last = (ask, time, nodes) if time is not None else None
        return alone[0], time

    def _start(self, ask: Ask, time: float, nodes: Mapping[str, str]) -> None:
        if self._behind is None:
            self._behind = self._standing.room.copy()
        run = self._standing.ends.run(ask.gang)
        for pod in ask.core:
            self._behind.take(nodes[pod.uid], pod.shape)
            if run is not None:
                self._later.append(End(time + run, nodes[pod.uid], pod.shape))

    def _earliest(
        self, room: Room, ask: Ask, also: Sequence[End], after: float | None
    ) -> tuple[float | None, Mapping[str, str]]:
        mark = room.mark()
        for pod in self._lent(ask):
            room.give(pod.node, pod.shape)
        found = earliest(
            room,
            self._standing.ends,
            ask.core,
            now=self._ledger.now,
            required_level=ask.gang.required_level,
            among=among(self._standing, ask),
            also=also,
            after=after,
        )
        room.undo(mark)
        return found if found is not None else (None, {})

    def _lent(self, ask: Ask) -> list[Pod]:
        """Those that were started in its kept place and go for it, unless they will have gone by themselves."""
        standing = self._standing
        if ask.gang.whole not in standing.behind:
            return []
        called = standing.callable_for(ask.gang.whole).pods()
        return [pod for pod in called if pod.node in standing.room and standing.ends.of(pod.uid) is None]
