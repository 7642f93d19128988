"""Runs simulations one after the other, with a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from vkgateway.cli.progress import Progress
from vkgateway.simulate.engine import Simulation
from vkgateway.simulate.metrics import result_of
from vkgateway.simulate.policies.scheduler import Scheduler
from vkgateway.simulate.result import Result
from vkgateway.simulate.scenario import Scenario

_EVERY = 0.2
"""Seconds between two updates of the bar."""
_LINE = 10.0
"""Seconds between two lines where there is no terminal."""


class Report(Protocol):
    """Shows how far a simulation is: its name, and a share from 0 to 1."""

    def __call__(self, name: str, share: float, /) -> None:
        """Show it."""
        ...


def run(scenario: Scenario, schedulers: Sequence[Scheduler]) -> list[Result]:
    """Simulate each scheduler; returns their results in the same order."""
    results = []
    with _bar() as report:
        for scheduler in schedulers:
            simulation = Simulation(scenario, scheduler, clock=time.perf_counter)
            _finish(simulation, scheduler.name, report)
            results.append(result_of(scheduler.name, scenario, simulation.state))
    return results


def _finish(simulation: Simulation, name: str, report: Report) -> None:
    shown, jobs = 0.0, len(simulation.scenario.jobs) or 1
    while simulation.step():
        if time.monotonic() - shown >= _EVERY:
            shown = time.monotonic()
            report(name, (simulation.state.arrived - len(simulation.state.gangs)) / jobs)
    report(name, 1.0)


@contextmanager
def _bar() -> Iterator[Report]:
    """A bar for each simulation on a terminal, lines elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        with Progress() as progress:
            yield _lines(progress)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Bars(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks = {}

        def report(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=1.0)
            bars.update(tasks[name], completed=share)

        yield report


def _lines(progress: Progress) -> Report:
    last = [float("-inf")]

    def report(name: str, share: float) -> None:
        if share >= 1.0:
            progress.done(f"{name}: done")
        elif progress.elapsed - last[0] >= _LINE:
            last[0] = progress.elapsed
            progress(f"{name}: {share:.0%} of the gangs have ended")

    return report
