"""Sequential runs of simulations with a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from vkgateway.cli.progress import Progress
from vkgateway_platform.cli.simulate_saved_states import SavedStates
from vkgateway_platform.simulate.engine import Simulation
from vkgateway_platform.simulate.metrics import make_result, private_waits
from vkgateway_platform.simulate.policies.private import PrivateClusters
from vkgateway_platform.simulate.policies.scheduler import Scheduler
from vkgateway_platform.simulate.result import SimulationResult
from vkgateway_platform.simulate.scenario import Scenario
from vkgateway_platform.simulate.state import SimulationState

_BAR_SECONDS = 0.2
"""Seconds between updates of the bar."""
_SAVE_SECONDS = 30.0
"""Seconds between saves."""
_LINE_SECONDS = 10.0
"""Seconds between lines without a terminal."""


class ProgressReport(Protocol):
    """Callback with the name of a simulation and its progress from 0 to 1."""

    def __call__(self, name: str, share: float, /) -> None:
        """Show the progress."""
        ...


def run_simulations(
    scenario: Scenario, schedulers: Sequence[Scheduler], saved_states: SavedStates | None = None
) -> list[SimulationResult]:
    """Simulate each scheduler and return the results in the same order; continue saved states."""
    states: dict[str, SimulationState] = {}
    with _progress_bar() as report:
        for scheduler in schedulers:
            saved = saved_states.state_of(scheduler.name) if saved_states is not None else None
            simulation = Simulation(scenario, scheduler, state=saved, clock=time.perf_counter)
            _run_simulation(simulation, scheduler.name, report, saved_states)
            states[scheduler.name] = simulation.state
    alone = private_waits(scenario, states[PrivateClusters.name]) if PrivateClusters.name in states else None
    return [
        make_result(name, scenario, state, private=None if name == PrivateClusters.name else alone)
        for name, state in states.items()
    ]


def _run_simulation(
    simulation: Simulation, name: str, report: ProgressReport, saved_states: SavedStates | None
) -> None:
    last_shown, last_saved, jobs = 0.0, time.monotonic(), len(simulation.scenario.jobs) or 1
    while simulation.step():
        now = time.monotonic()
        if now - last_shown >= _BAR_SECONDS:
            last_shown = now
            report(name, (simulation.state.arrived - len(simulation.state.gangs)) / jobs)
        if saved_states is not None and now - last_saved >= _SAVE_SECONDS:
            last_saved = now
            saved_states.save(name, simulation.saved_state())
    if saved_states is not None:
        saved_states.save(name, simulation.saved_state())
    report(name, 1.0)


@contextmanager
def _progress_bar() -> Iterator[ProgressReport]:
    """Yield a reporter that shows a bar for each simulation on a terminal, otherwise lines, on standard error."""
    if not sys.stderr.isatty():
        with Progress() as progress:
            yield _line_reporter(progress)
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


def _line_reporter(progress: Progress) -> ProgressReport:
    last = [float("-inf")]

    def report(name: str, share: float) -> None:
        if share >= 1.0:
            progress.done(f"{name}: done")
        elif progress.elapsed_seconds - last[0] >= _LINE_SECONDS:
            last[0] = progress.elapsed_seconds
            progress(f"{name}: {share:.0%} of the gangs ended")

    return report
