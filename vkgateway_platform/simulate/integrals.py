"""Integrals of a simulation's usage over time, and averages over parts of it for plots."""

from __future__ import annotations

from vkgateway_platform.simulate.state import Sample, SimulationState, UsageSums
from vkgateway_platform.simulate.usage import MILLI_PER_UNIT, Usage

_SAMPLE_COUNT = 400
"""Samples up to the horizon."""


class UsageIntegrals:
    """Adds up usage in `SimulationState.sums` and `SimulationState.samples`."""

    def __init__(self, state: SimulationState, usage: Usage, *, warm_up: float, horizon: float) -> None:
        self._state = state
        self._usage = usage
        self._warm_up = warm_up
        self._horizon = horizon
        self._sample_seconds = max(horizon, 1.0) / _SAMPLE_COUNT

    def advance_to(self, time: float) -> None:
        """Integrate the current usage up to this time."""
        state = self._state
        now = state.now
        self._add_usage(state.sums, min(time, self._horizon) - max(now, self._warm_up))
        while state.sampled + self._sample_seconds <= time:
            length = self._sample_seconds
            if now == state.sampled >= self._horizon:
                # Usage is constant until then. A wait for the next month may be long, and the horizon short.
                length = max(length, (time - now) // length * length)
            self._add_usage(state.sample, state.sampled + length - now)
            now = state.sampled + length
            self._append_sample(length)
        self._add_usage(state.sample, time - now)

    def add_last_sample(self) -> None:
        """Add a sample for the rest of the time."""
        left = self._state.now - self._state.sampled
        if left > 0:
            self._append_sample(left)

    def _add_usage(self, sums: UsageSums, seconds: float) -> None:
        if seconds <= 0:
            return
        usage, share = self._usage, seconds / MILLI_PER_UNIT
        sums.allocated += usage.allocated * share
        sums.terminating += usage.terminating * share
        sums.borrowed += usage.borrowed * share
        sums.fragmented += usage.fragmented * share
        sums.pending += usage.pending * share
        for tenant, amount in usage.tenants.items():
            sums.tenants[tenant] = sums.tenants.get(tenant, 0.0) + amount * share

    def _append_sample(self, seconds: float) -> None:
        state = self._state
        sums = state.sample
        state.samples.append(
            Sample(
                state.sampled,
                sums.allocated / seconds,
                sums.borrowed / seconds,
                sums.fragmented / seconds,
                sums.pending / seconds,
                state.sample_evictions,
                {tenant: amount / seconds for tenant, amount in sums.tenants.items()},
            )
        )
        state.sample, state.sample_evictions = UsageSums(), 0
        state.sampled += seconds
