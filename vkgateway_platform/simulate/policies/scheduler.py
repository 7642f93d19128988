"""Interface of a scheduler in a simulation."""

from __future__ import annotations

from typing import Protocol

from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Snapshot
from vkgateway_platform.simulate.scenario import Scenario


class Scheduler(Protocol):
    """Decides in each scheduling cycle.

    All state between cycles is in the snapshot: states of pods, and the plans that the scheduler returned. So a
    simulation can continue from a file. The simulation carries the decisions out in the same way for all schedulers.
    """

    name: str

    def arrange(self, scenario: Scenario) -> Scenario:
        """Return the scenario as this scheduler finds it; most return it unchanged."""
        ...

    def decide(self, snapshot: Snapshot, now: float) -> Decisions:
        """Return which gangs start and which are evicted, with the deadline of each eviction.

        Gangs that did not change are the same objects as in the cycle before. `Decisions.holds` need not be complete:
        if there is any, the scheduler is asked again after the refresh interval even if nothing has changed.
        """
        ...
