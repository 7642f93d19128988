"""What a benchmark came to: a table, and targets that were met or missed."""

from __future__ import annotations

import msgspec

Cell = str | float | None


class Target(msgspec.Struct, kw_only=True):
    """Something to reach; `limit` is the most that `seen` may be, or the least where `at_least`."""

    what: str
    seen: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.seen >= self.limit if self.at_least else self.seen <= self.limit


class Outcome(msgspec.Struct, kw_only=True):
    """Columns and rows of a table, targets, and what a reader must know to read them."""

    columns: list[str]
    rows: list[list[Cell]]
    targets: list[Target] = []
    notes: list[str] = []


class Machine(msgspec.Struct, kw_only=True):
    """Where it was measured. `busy` is the share of all cores that others used just before, 0 to 1; `stolen` the share
    that the machine, if it is a virtual one, did not get from its host meanwhile, None where nobody looked."""

    cores: int
    memory_gib: float
    kernel: str
    busy: float
    stolen: float | None = None


class Result(msgspec.Struct, kw_only=True):
    """An outcome with when, where and of what it is."""

    name: str
    title: str
    date: str
    machine: Machine
    versions: dict[str, str]
    outcome: Outcome
    seconds: float
