"""One run of benchmarks: the platform they share, and the bursts that more than one of them tells of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, NamedTuple

from bench import flows
from bench.courier import by_courier
from bench.floor import floor
from bench.flows import Flow
from bench.outcome import Cell
from bench.platform import Platform
from bench.settings import Settings
from vkgateway.local.steps import Report

System = Literal["gateway", "courier", "direct", "floor"]

_RUNS: dict[System, Callable[..., Awaitable[Flow]]] = {
    "gateway": flows.through_gateway,
    "courier": by_courier,
    "direct": flows.direct,
    "floor": floor,
}


class Case(NamedTuple):
    """How many pods at once, and whether each has a service account token."""

    pods: int
    token: bool

    @property
    def words(self) -> str:
        """What it is called."""
        return f"{self.pods} pods {'with' if self.token else 'without'} token"

    @property
    def cells(self) -> list[Cell]:
        """Its part of a table's row."""
        return [self.pods, "yes" if self.token else "no"]


class Session:
    """What benchmarks get."""

    def __init__(self, platform: Platform, settings: Settings, *, report: Report) -> None:
        self.platform = platform
        self.settings = settings
        self.report = report
        self._flows: dict[tuple[System, Case], list[Flow]] = {}
        self._warm = False

    async def turn(self, system: System, case: Case) -> Flow:
        """One more burst through one of the systems."""
        words = f"{case.words}, {system}"
        self.report(words)
        flow = await _RUNS[system](self.platform, pods=case.pods, tenants=self.settings.tenants, token=case.token)
        self._flows.setdefault((system, case), []).append(flow)
        self.report.done(f"{words}: {flow.throughput:.0f} pods/s, p99 {flow.ready_p99:.2f} s")
        return flow

    def turns(self, system: System, case: Case) -> list[Flow]:
        """Those bursts of this session so far, in the order in which they were run."""
        return self._flows.get((system, case), [])

    def taken(self, system: System, case: Case) -> Flow | None:
        """Of those bursts the middle one by its throughput; None where there was none."""
        by_throughput = sorted(self.turns(system, case), key=lambda flow: flow.throughput)
        return by_throughput[len(by_throughput) // 2] if by_throughput else None

    async def warm_up(self, pods: int) -> None:
        """A burst through the gateway that nobody tells of, once a session."""
        if not self._warm:
            self._warm = True
            self.report(f"{pods} pods to warm up")
            await flows.through_gateway(self.platform, pods=pods, tenants=self.settings.tenants, token=False)

    async def tenants(self, count: int | None = None) -> list[str]:
        """Have so many tenants (all, unless told) ready for pods; returns the names of those that were made for it."""
        count = self.settings.tenants if count is None else count
        made = await self.platform.onboard(count)
        await self.platform.until_schedulable(count)
        return made

    @contextlib.asynccontextmanager
    async def without_gateway(self) -> AsyncIterator[None]:
        """The gateway is stopped for as long as the block lasts; afterwards all virtual nodes are ready again."""
        await self.platform.stop_gateway()
        try:
            yield
        finally:
            await self.platform.start_gateway()
        await self.platform.until_schedulable(self.settings.tenants)
