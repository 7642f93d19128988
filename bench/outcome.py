"""Outcome of a benchmark: a table, and targets that were met or missed."""

from __future__ import annotations

import msgspec

Cell = str | float | None


class Target(msgspec.Struct, kw_only=True):
    """Goal of a benchmark. `seen` is the measured value. `limit` is its maximum, or its minimum with `at_least`."""

    what: str
    seen: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the goal was reached."""
        return self.seen >= self.limit if self.at_least else self.seen <= self.limit


class Outcome(msgspec.Struct, kw_only=True):
    """Columns and rows of a table, targets, and notes for readers."""

    columns: list[str]
    rows: list[list[Cell]]
    targets: list[Target] = []
    notes: list[str] = []


class Machine(msgspec.Struct, kw_only=True):
    """Machine of a measurement.

    `busy` is the share of all cores that other programs used just before, 0 to 1. `stolen` is the share that the
    hypervisor of a virtual machine gave to others during the measurement, None if it was not measured.
    """

    cores: int
    memory_gib: float
    kernel: str
    busy: float
    stolen: float | None = None


class Result(msgspec.Struct, kw_only=True):
    """Outcome with its date, machine and versions."""

    name: str
    title: str
    date: str
    machine: Machine
    versions: dict[str, str]
    outcome: Outcome
    seconds: float
