"""Which node each pod of a gang gets: all of them or none, near each other as asked, whole nodes kept whole.

What counts, most telling first: the required level of the network, the preferred one (one domain before two), no whole
node broken into without need, the least left over of a domain, then the order of nodes of `views.View`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vkgateway.arbiter.domains import Demand, Domains
from vkgateway.arbiter.facts import Pod, Shape
from vkgateway.arbiter.fitting import BoolArray, IntArray
from vkgateway.arbiter.room import Among, Room
from vkgateway.arbiter.views import NEVER, View

_STEPS = 4
"""So many more domains are tried one at a time before the number is doubled."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Pods of one shape, in the order of their ranks."""

    shape: Shape
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """Where the pods of one group go: so many on each position."""

    group: _Group
    positions: list[int]
    counts: list[int]


def place(
    room: Room,
    pods: Sequence[Pod],
    *,
    required_level: str = "",
    preferred_level: str = "",
    among: Among = None,
    liked: BoolArray | None = None,
) -> dict[str, str] | None:
    """Find a node for every pod and take the room there; None: they do not all fit, and the room is as it was.

    Pods' uids to nodes' names, in the order of the pods. All stand within one value of the node label
    `required_level`, and of `preferred_level` if that can be; neighbours in rank stand near each other. To try
    only, mark the room before and undo afterwards. `liked`: nodes, by position, that pods take before others that are
    equal to them in all else.
    """
    if not pods:
        return {}
    allowed = _allowed(room, among)
    if len(pods) == 1 and not required_level:
        return _place_one(room, pods[0], allowed, liked)
    groups = _groups(room, pods)
    what = None
    if allowed is None and (required_level or len(groups) > 1):
        what = required_level, tuple((group.shape, len(group.pods)) for group in groups)
    if what is not None and room.missed(what):
        return None
    search = _Search(room, groups, allowed, liked)
    found = search.within(required_level, preferred_level)
    if found is not None:
        return _assigned(room, pods, found, preferred_level)
    if what is not None:
        room.miss(what)
    return None


def largest(room: Room, pods: Sequence[Pod], *, required_level: str = "", among: Among = None) -> int:
    """How many of the pods would fit at most, the small ones first; the room stays as it is."""
    groups = _groups(room, pods)[::-1]
    allowed = _allowed(room, among)
    search = _Search(room, groups, allowed)
    if not required_level:
        return search.most(allowed)
    domains = search.domains(required_level, allowed)
    most = 0
    for bound, domain in domains.by_promise():
        if bound <= most:
            break
        most = max(most, search.most(domains.positions(domain)))
    return most


def _place_one(room: Room, pod: Pod, allowed: IntArray | None, liked: BoolArray | None) -> dict[str, str] | None:
    """What the search comes to for a lone pod: most pods are, so it is worth its own short way."""
    view = room.view(pod.shape)
    keys = view.key
    position = _first(keys) if allowed is None else _first(keys[allowed])
    if position is None:
        return None
    if allowed is not None:
        position = allowed.item(position)
    if liked is not None and not liked.item(position):
        equals = view.equals(position)
        equals = equals[liked[equals]]
        if allowed is not None:
            equals = equals[np.isin(equals, allowed)]
        position = equals.item(0) if len(equals) else position
    room.take_at([position], pod.shape, [1])
    return {pod.uid: room.names[position]}


def _allowed(room: Room, among: Among) -> IntArray | None:
    """The positions of the nodes that are allowed; None: all, for which more is known beforehand."""
    if among is None:
        return None
    mask = room.mask(among)
    return None if mask.all() else np.flatnonzero(mask)


def _groups(room: Room, pods: Sequence[Pod]) -> list[_Group]:
    """The pods by shape: those that ask for most units first, of equals those of which fewer fit."""
    by_shape: dict[Shape, list[Pod]] = {}
    for pod in pods:
        by_shape.setdefault(pod.shape, []).append(pod)
    groups = [_Group(shape, tuple(sorted(same, key=_rank))) for shape, same in by_shape.items()]
    if len(groups) > 1:
        unit = room.pool.unit
        groups.sort(key=lambda group: (-group.shape.amount(unit), room.total(group.shape), _rank(group.pods[0])))
    return groups


def _in_falling_order(groups: Sequence[_Group]) -> bool:
    """Whether none asks for more of anything than the one before it."""
    return all(
        amount <= larger.shape.amount(name)
        for larger, smaller in pairwise(groups)
        for name, amount in smaller.shape.requests
    )


def _rank(pod: Pod) -> tuple[int, str]:
    return pod.rank, pod.uid


def _assigned(room: Room, pods: Sequence[Pod], parts: Sequence[_Part], preferred_level: str) -> dict[str, str]:
    """Pods in the order of their ranks along the nodes in the order of the network."""
    codes = room.fitting.column(preferred_level).codes if preferred_level not in ("", *room.pool.levels) else None
    nodes: dict[str, str] = {}
    for part in parts:
        along = sorted(
            zip(part.positions, part.counts, strict=True),
            key=lambda pair: (0 if codes is None else codes.item(pair[0]), pair[0]),
        )
        names = (room.names[position] for position, count in along for _ in range(count))
        nodes.update(zip((pod.uid for pod in part.group.pods), names, strict=True))
    return {pod.uid: nodes[pod.uid] for pod in pods}


class _Search:
    """The search for one gang. What it finds is taken in the room; where it finds nothing the room is as it was."""

    def __init__(
        self, room: Room, groups: Sequence[_Group], allowed: IntArray | None, liked: BoolArray | None = None
    ) -> None:
        self._room = room
        self._groups = groups
        self._allowed = allowed
        self._liked = liked

    def within(self, required_level: str, preferred_level: str) -> list[_Part] | None:
        """All of them within one domain of the required level, if one is given."""
        if not self._promising(self._allowed):
            return None
        if not required_level:
            return self._near(self._allowed, "", preferred_level)
        domains = self.domains(required_level, self._allowed)
        for domain in domains.by_fit():
            found = self._near(domains.positions(domain), required_level, preferred_level)
            if found is not None:
                return found
        return None

    def most(self, positions: IntArray | None) -> int:
        """How many fit there, the groups in their order; the room is left as it was."""
        mark = self._room.mark()
        count = 0
        for group in self._groups:
            chosen, counts = _fill(self._room.view(group.shape), len(group.pods), positions)
            self._room.take_at(chosen, group.shape, counts)
            count += sum(counts)
        self._room.undo(mark)
        return count

    def domains(self, level: str, positions: IntArray | None) -> Domains:
        """The domains of a level among the positions."""
        demands = [Demand(group.shape, len(group.pods)) for group in self._groups]
        return Domains(self._room, demands, level, positions)

    def _promising(self, positions: IntArray | None) -> bool:
        """Whether there is room enough for each group by itself."""
        for group in self._groups:
            view = self._room.view(group.shape)
            total = view.total if positions is None else int(view.capacity[positions].sum())
            if total < len(group.pods):
                return False
        return True

    def _near(self, positions: IntArray | None, required_level: str, preferred_level: str) -> list[_Part] | None:
        """Within one domain of the preferred level, or else of the next wider, or else in as few as can be."""
        if not preferred_level or sum(len(group.pods) for group in self._groups) == 1:
            return self._fill(positions)
        domains = self.domains(preferred_level, positions)
        for domain in domains.by_fit():
            found = self._fill(domains.positions(domain))
            if found is not None:
                return found
        for level in self._outward(preferred_level, required_level):
            domains = self.domains(level, positions)
            wider = [domains.positions(domain) for domain in domains.by_fit()]
            for inside in sorted(wider, key=lambda inside: self.domains(preferred_level, inside).needed()):
                found = self._fewest(preferred_level, inside)
                if found is not None:
                    return found
        return self._fewest(preferred_level, positions)

    def _outward(self, level: str, end: str) -> list[str]:
        """The levels of the network wider than this one, up to the one that is required anyhow."""
        levels = self._room.pool.levels
        if level not in levels:
            return []
        start = levels.index(end) + 1 if end in levels else 0
        return list(reversed(levels[start : levels.index(level)]))

    def _fewest(self, level: str, positions: IntArray | None) -> list[_Part] | None:
        """In as few domains as can be."""
        domains = self.domains(level, positions)
        for few in domains.unions(_STEPS):
            found = self._fill(few)
            if found is not None:
                return found
        return self._fill(positions)

    def _fill(self, positions: IntArray | None) -> list[_Part] | None:
        """On these nodes; in the first order of the groups in which all fit."""
        found = (self._fill_in_order(order, positions) for order in self._orders(positions))
        return next((parts for parts in found if parts is not None), None)

    def _orders(self, positions: IntArray | None) -> Iterator[Sequence[_Group]]:
        """The largest first; those first that have the least choice; where none is the largest in all, each first."""
        groups = self._groups
        yield groups
        if len(groups) == 1:
            return
        choosy = sorted(groups, key=lambda group: self._room.view(group.shape).choice(positions))
        orders = [choosy]
        if not _in_falling_order(groups):
            orders += ([first, *(group for group in choosy if group is not first)] for first in choosy[1:])
        yield from (order for order in orders if order != groups)

    def _fill_in_order(self, groups: Sequence[_Group], positions: IntArray | None) -> list[_Part] | None:
        mark = self._room.mark()
        parts = []
        for group in groups:
            chosen, counts = _fill(self._room.view(group.shape), len(group.pods), positions, self._liked)
            if sum(counts) < len(group.pods):
                self._room.undo(mark)
                return None
            self._room.take_at(chosen, group.shape, counts)
            parts.append(_Part(group, chosen, counts))
        return parts


def _fill(
    view: View, count: int, positions: IntArray | None, liked: BoolArray | None = None
) -> tuple[list[int], list[int]]:
    """Choose nodes for as many of `count` equal pods as fit: positions, and how many go to each.

    Once a node has a pod it is the fullest of those that it was chosen from; so each is filled before the next.
    """
    keys = view.key if positions is None else view.key[positions]
    chosen: list[int] = []
    counts: list[int] = []
    order = (index if positions is None else positions.item(index) for index in _smallest(keys, count))
    for position in order if liked is None else _liked_first(view, order, positions, liked):
        here = min(view.capacity.item(position), count)
        chosen.append(position)
        counts.append(here)
        count -= here
        if count == 0:
            break
    return chosen, counts


def _liked_first(view: View, order: Iterable[int], positions: IntArray | None, liked: BoolArray) -> Iterator[int]:
    """As many positions as these: of nodes that are equal but for their position the liked ones first."""
    worth, rest = None, None
    for position in order:
        if (now := view.worth(position)) != worth:
            worth, rest = now, None
        if rest is None and not liked.item(position):
            # All before it are liked: they are in order.
            equals = view.equals(position)
            equals = equals if positions is None else equals[np.isin(equals, positions)]
            left = equals[equals >= position]
            rest = iter([*left[liked[left]].tolist(), *left[~liked[left]].tolist()])
        yield position if rest is None else next(rest)


def _smallest(keys: IntArray, count: int) -> Iterator[int]:
    """The indices of up to `count` keys in rising order; none where all are NEVER."""
    first = _first(keys)
    if first is None:
        return
    yield first
    if count == 1:
        return
    best = np.argpartition(keys, count - 1)[:count] if count < len(keys) else np.arange(len(keys))
    best = best[np.argsort(keys[best])]
    yield from best[1:].tolist()


def _first(keys: IntArray) -> int | None:
    """The index of the smallest key; None where all are NEVER."""
    if len(keys) == 0:
        return None
    first = int(keys.argmin())
    return first if keys.item(first) != NEVER else None
