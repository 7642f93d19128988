"""What a run of the benchmarks is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

IN_FLIGHT: Final = 32
"""Requests of the load that are under way at once, and workers of the floor: as many as the gateway has workers."""

PODS_PER_NODE: Final = 110

LARGEST: Final = 10_000
"""More pods than this at once are refused: one machine runs everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One request; `pods` of None means: each benchmark's own sizes."""

    pods: int | None = None
    tenants: int = 25
    data_dir: Path | None = None
    program_dirs: tuple[Path, ...] = ()
    keep: bool = False
    write: bool = True
    seconds: float = 60.0
    rounds: int = 20
    turns: int = 3

    def sizes(self, *usual: int) -> tuple[int, ...]:
        """How many pods: what was asked for, or what is usual."""
        return usual if self.pods is None else (self.pods,)


def hollow_nodes(pods: int) -> int:
    """Nodes that carry `pods` with a fifth to spare, so that schedulers need not search."""
    return max(4, -(-pods * 6 // (5 * PODS_PER_NODE)))
