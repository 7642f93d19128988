"""Measurement of one benchmark run: its machine, its duration, and its published result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console

from bench import report
from bench.environment import measure_machine
from bench.outcome import Machine, Outcome, Result
from bench.procfs import stolen_seconds
from bench.timeline import now


@dataclass(slots=True, kw_only=True)
class Measurement:
    """Running measurement. `end_load` may come before the end of the run."""

    machine: Machine
    started: float
    stolen: float

    def end_load(self) -> None:
        """Record the steal time since the start."""
        share = (stolen_seconds() - self.stolen) / (now() - self.started) / self.machine.cores
        self.machine.stolen = round(share, 2)

    def publish_result(
        self, outcome: Outcome, *, name: str, title: str, versions: Mapping[str, str], write: bool
    ) -> None:
        """Print the result of the run, and with `write` save it."""
        result = Result(
            name=name,
            title=title,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=self.machine,
            versions=dict(versions),
            outcome=outcome,
            seconds=round(now() - self.started, 1),
        )
        report.print_result(result, console=Console(width=160))
        if write:
            report.save_result(result)


async def start_measurement() -> Measurement:
    """Observe the machine, and start to measure."""
    machine = await measure_machine()
    return Measurement(machine=machine, started=now(), stolen=stolen_seconds())
