"""Session of benchmarks that share a platform and the figures of bursts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, NamedTuple

from bench import flows
from bench.courier import run_courier
from bench.floor import run_floor
from bench.flows import BurstFigures
from bench.outcome import Cell
from bench.platform import Platform
from bench.settings import Settings
from vkgateway_platform.embedded.steps import Report

System = Literal["gateway", "courier", "direct", "floor"]

_RUNS: dict[System, Callable[..., Awaitable[BurstFigures]]] = {
    "gateway": flows.run_gateway,
    "courier": run_courier,
    "direct": flows.run_direct,
    "floor": run_floor,
}


class Case(NamedTuple):
    """Number of pods in a burst, and whether each has a service account token."""

    pods: int
    token: bool

    @property
    def title(self) -> str:
        return f"{self.pods} pods {'with' if self.token else 'without'} token"

    @property
    def row_cells(self) -> list[Cell]:
        """Cells of the case in a table's row."""
        return [self.pods, "yes" if self.token else "no"]


class Session:
    """Platform, settings and burst figures for benchmarks."""

    def __init__(self, platform: Platform, settings: Settings, *, report: Report) -> None:
        self.platform = platform
        self.settings = settings
        self.report = report
        self._flows: dict[tuple[System, Case], list[BurstFigures]] = {}
        self._warm = False

    async def run_turn(self, system: System, case: Case) -> BurstFigures:
        """Run one more burst through one of the systems."""
        words = f"{case.title}, {system}"
        self.report(words)
        flow = await _RUNS[system](self.platform, pods=case.pods, tenants=self.settings.tenants, token=case.token)
        self._flows.setdefault((system, case), []).append(flow)
        self.report.done(f"{words}: {flow.throughput:.0f} pods/s, p99 {flow.ready_p99:.2f} s")
        return flow

    def get_turns(self, system: System, case: Case) -> list[BurstFigures]:
        """Return the figures of these bursts in this session, in the order of the runs."""
        return self._flows.get((system, case), [])

    def median_turn(self, system: System, case: Case) -> BurstFigures | None:
        """Return the burst with the median throughput, or None if there was none."""
        by_throughput = sorted(self.get_turns(system, case), key=lambda flow: flow.throughput)
        return by_throughput[len(by_throughput) // 2] if by_throughput else None

    async def warm_up(self, pods: int) -> None:
        """Run a burst through the gateway that is not reported, once in a session."""
        if not self._warm:
            self._warm = True
            self.report(f"warm-up with {pods} pods")
            await flows.run_gateway(self.platform, pods=pods, tenants=self.settings.tenants, token=False)

    async def ensure_tenants(self, count: int | None = None) -> list[str]:
        """Create tenants until `count` (by default all) are ready for pods. Return the names of the new ones."""
        count = self.settings.tenants if count is None else count
        new_tenants = await self.platform.ensure_tenants(count)
        await self.platform.wait_schedulable(count)
        return new_tenants

    @contextlib.asynccontextmanager
    async def without_gateway(self) -> AsyncIterator[None]:
        """Stop the gateway until the block ends. Afterwards, wait until all virtual nodes are ready again."""
        await self.platform.stop_gateway()
        try:
            yield
        finally:
            await self.platform.start_gateway()
        await self.platform.wait_schedulable(self.settings.tenants)
