"""Settings of a benchmark run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

IN_FLIGHT: Final = 32
"""Concurrent requests of the load, and workers of the floor: the number of the gateway's workers."""

PODS_PER_NODE: Final = 110

LARGEST: Final = 10_000
"""Maximum of concurrent pods, because one machine runs everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one run. `pods` of None: each benchmark's own sizes.

    `sizes` are the numbers of tenants of growth and idle, and `reserve_gib` the memory that it leaves free. `workloads`
    and `cohorts` are the size of queue.
    """

    pods: int | None = None
    tenants: int = 25
    data_dir: Path | None = None
    program_dirs: tuple[Path, ...] = ()
    keep: bool = False
    write: bool = True
    seconds: float = 60.0
    rounds: int = 20
    turns: int = 3
    sizes: tuple[int, ...] = ()
    reserve_gib: float = 2.5
    workloads: int = 15_000
    cohorts: int = 5

    def pod_counts(self, *usual: int) -> tuple[int, ...]:
        """Return the numbers of pods: the requested one, or the usual ones."""
        return usual if self.pods is None else (self.pods,)


def hollow_nodes(pods: int) -> int:
    """Return the number of nodes for `pods` with a fifth to spare, so that schedulers need not search."""
    return max(4, -(-pods * 6 // (5 * PODS_PER_NODE)))
