"""The arbiter of vkgateway as a scheduler of a simulation."""

from __future__ import annotations

from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Snapshot
from vkgateway_platform.simulate.scenario import Scenario


class ArbiterScheduler:
    """Calls `decide`, as the gateway does, but without forecasts: the simulation reads none, no decision needs one."""

    name = "vkgateway"

    def __init__(self) -> None:
        self._cache = Cache()

    def arrange(self, scenario: Scenario) -> Scenario:
        """Return the scenario unchanged."""
        return scenario

    def decide(self, snapshot: Snapshot, now: float) -> Decisions:
        """Return the arbiter's decisions."""
        return decide(snapshot, now, self._cache, foresee=False)
