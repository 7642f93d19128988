"""One run of benchmarks: the platform they share, and the bursts that more than one of them tells of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from bench import flows
from bench.courier import by_courier
from bench.floor import floor
from bench.flows import Flow
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


class Session:
    """What benchmarks get."""

    def __init__(self, platform: Platform, settings: Settings, *, report: Report) -> None:
        self.platform = platform
        self.settings = settings
        self.report = report
        self._flows: dict[tuple[System, int, bool], Flow] = {}
        self._warm = False

    async def flow(self, system: System, *, pods: int, token: bool) -> Flow:
        """A burst through one of the systems; the same one is run only once a session."""
        key = system, pods, token
        if key not in self._flows:
            words = f"{pods} pods {'with' if token else 'without'} token, {system}"
            self.report(words)
            flow = await _RUNS[system](self.platform, pods=pods, tenants=self.settings.tenants, token=token)
            self._flows[key] = flow
            self.report.done(f"{words}: {flow.throughput:.0f} pods/s, p99 {flow.ready_p99:.2f} s")
        return self._flows[key]

    async def warm_up(self, pods: int) -> None:
        """A burst through the gateway that nobody tells of, once a session."""
        if not self._warm:
            self._warm = True
            self.report(f"{pods} pods to warm up")
            await flows.through_gateway(self.platform, pods=pods, tenants=self.settings.tenants, token=False)

    def taken(self, system: System, *, pods: int, token: bool) -> Flow | None:
        """That burst, if this session has run it."""
        return self._flows.get((system, pods, token))

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
