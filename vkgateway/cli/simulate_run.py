"""Runs simulations one after the other, with a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from vkgateway.cli.progress import Progress
from vkgateway.cli.simulate_saving import Savings
from vkgateway.simulate.engine import Simulation
from vkgateway.simulate.metrics import private_waits, result_of
from vkgateway.simulate.policies.private import PrivateClusters
from vkgateway.simulate.policies.scheduler import Scheduler
from vkgateway.simulate.result import Result
from vkgateway.simulate.scenario import Scenario
from vkgateway.simulate.state import State

_EVERY = 0.2
"""Seconds between two updates of the bar."""
_SAVED = 30.0
"""Seconds between two savings."""
_LINE = 10.0
"""Seconds between two lines where there is no terminal."""


class Report(Protocol):
    """Shows how far a simulation is: its name, and a share from 0 to 1."""

    def __call__(self, name: str, share: float, /) -> None:
        """Show it."""
        ...


def run(scenario: Scenario, schedulers: Sequence[Scheduler], savings: Savings | None = None) -> list[Result]:
    """Simulate each scheduler; returns their results in the same order. Saved states are continued."""
    states: dict[str, State] = {}
    with _bar() as report:
        for scheduler in schedulers:
            saved = savings.state(scheduler.name) if savings is not None else None
            simulation = Simulation(scenario, scheduler, state=saved, clock=time.perf_counter)
            _finish(simulation, scheduler.name, report, savings)
            states[scheduler.name] = simulation.state
    alone = private_waits(scenario, states[PrivateClusters.name]) if PrivateClusters.name in states else None
    return [
        result_of(name, scenario, state, private=None if name == PrivateClusters.name else alone)
        for name, state in states.items()
    ]


def _finish(simulation: Simulation, name: str, report: Report, savings: Savings | None) -> None:
    shown, saved, jobs = 0.0, time.monotonic(), len(simulation.scenario.jobs) or 1
    while simulation.step():
        now = time.monotonic()
        if now - shown >= _EVERY:
            shown = now
            report(name, (simulation.state.arrived - len(simulation.state.gangs)) / jobs)
        if savings is not None and now - saved >= _SAVED:
            saved = now
            savings.save(name, simulation.state)
    if savings is not None:
        savings.save(name, simulation.state)
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
