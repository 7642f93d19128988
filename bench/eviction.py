"""Minimal loss of an eviction of whole gangs that frees whole nodes, for comparison with the actual loss."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Final

_MOST_GANGS: Final = 14
"""Limit of gangs, because all subsets are searched."""


@dataclass(slots=True)
class Victim:
    """Gang that may be evicted: its GPUs by node, and the GPU-seconds of work that it would lose."""

    gpus: dict[str, int] = field(default_factory=dict)
    lost: float = 0.0

    @property
    def total(self) -> int:
        """GPUs of the gang."""
        return sum(self.gpus.values())


@dataclass(frozen=True, slots=True)
class Loss:
    """GPUs of evicted gangs, and GPU-seconds of work lost with them."""

    gpus: int
    lost: float


def find_minimal_loss(gangs: Mapping[str, Victim], *, nodes: int) -> Loss:
    """Return the loss with the fewest GPUs, then the least work, that frees `nodes` whole nodes.

    Only nodes of the gangs are known, so the pool must be full.

    Raises:
        ValueError: there are too many gangs, or too few nodes.
    """
    if len(gangs) > _MOST_GANGS:
        raise ValueError(f"{len(gangs)} gangs are too many: at most {_MOST_GANGS}")
    losses = [total_loss(gangs, chosen) for chosen in _all_subsets(gangs) if _freed_nodes(gangs, chosen) >= nodes]
    if not losses:
        raise ValueError(f"the eviction of all gangs does not free {nodes} nodes")
    return Loss(min(each.gpus for each in losses), min(each.lost for each in losses))


def total_loss(gangs: Mapping[str, Victim], chosen: Iterable[str]) -> Loss:
    """Return the loss of the chosen gangs."""
    victims = [gangs[name] for name in chosen]
    return Loss(sum(victim.total for victim in victims), sum(victim.lost for victim in victims))


def _freed_nodes(gangs: Mapping[str, Victim], chosen: Collection[str]) -> int:
    """Return the number of nodes on which only chosen gangs run."""
    taken = {node for name in chosen for node in gangs[name].gpus}
    return len(taken - {node for name, gang in gangs.items() if name not in chosen for node in gang.gpus})


def _all_subsets(names: Iterable[str]) -> Iterable[tuple[str, ...]]:
    every = tuple(names)
    return chain.from_iterable(combinations(every, size) for size in range(len(every) + 1))
