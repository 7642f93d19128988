"""What had to be evicted at least, beside what was evicted: whole gangs, for so many whole nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Final

_MOST_GANGS: Final = 14
"""All subsets of the gangs are gone through, so more than this would take too long."""


@dataclass(slots=True)
class Victim:
    """A gang that may be evicted: its GPUs on each node, and how many GPU-seconds of its work would be lost."""

    gpus: dict[str, int] = field(default_factory=dict)
    lost: float = 0.0

    @property
    def total(self) -> int:
        """All its GPUs."""
        return sum(self.gpus.values())


@dataclass(frozen=True, slots=True)
class Loss:
    """GPUs taken away, and GPU-seconds of work lost with them."""

    gpus: int
    lost: float


def least(gangs: Mapping[str, Victim], *, nodes: int) -> Loss:
    """The fewest GPUs, and apart from that the least work, whose loss frees `nodes` whole nodes.

    Nodes without a gang are not known here, so the pool has to be full. Raises ValueError where there are too many
    gangs, or not so many nodes.
    """
    if len(gangs) > _MOST_GANGS:
        raise ValueError(f"{len(gangs)} gangs are more than {_MOST_GANGS}")
    losses = [loss(gangs, chosen) for chosen in _subsets(gangs) if _freed(gangs, chosen) >= nodes]
    if not losses:
        raise ValueError(f"all gangs together do not free {nodes} nodes")
    return Loss(min(each.gpus for each in losses), min(each.lost for each in losses))


def loss(gangs: Mapping[str, Victim], chosen: Iterable[str]) -> Loss:
    """What is lost with the chosen gangs."""
    victims = [gangs[name] for name in chosen]
    return Loss(sum(victim.total for victim in victims), sum(victim.lost for victim in victims))


def _freed(gangs: Mapping[str, Victim], chosen: Collection[str]) -> int:
    """Nodes of the chosen gangs on which no other runs."""
    taken = {node for name in chosen for node in gangs[name].gpus}
    return len(taken - {node for name, gang in gangs.items() if name not in chosen for node in gang.gpus})


def _subsets(names: Iterable[str]) -> Iterable[tuple[str, ...]]:
    every = tuple(names)
    return chain.from_iterable(combinations(every, size) for size in range(len(every) + 1))
