"""Integrals of a simulation's usage over time, and averages over parts of it for plots."""

from __future__ import annotations

from vkgateway.simulate.state import Sample, State, Sums
from vkgateway.simulate.usage import WHOLE, Usage

_PARTS = 400
"""Samples up to the horizon."""


class Integrals:
    """Adds up usage in `state.sums` and `state.samples`."""

    def __init__(self, state: State, usage: Usage, *, warm_up: float, horizon: float) -> None:
        self._state = state
        self._usage = usage
        self._warm_up = warm_up
        self._horizon = horizon
        self._part = max(horizon, 1.0) / _PARTS

    def advance(self, time: float) -> None:
        """Let the current usage last until this time."""
        state = self._state
        now = state.now
        self._add(state.sums, min(time, self._horizon) - max(now, self._warm_up))
        while (border := (len(state.samples) + 1) * self._part) <= time:
            self._add(state.sample, border - now)
            now = max(now, border)
            self._sample(self._part)
        self._add(state.sample, time - now)

    def finish(self) -> None:
        """Make a sample of what is left."""
        left = self._state.now - len(self._state.samples) * self._part
        if left > 0:
            self._sample(left)

    def evicted(self) -> None:
        """Count an eviction."""
        self._state.sample_evictions += 1

    def _add(self, sums: Sums, seconds: float) -> None:
        if seconds <= 0:
            return
        usage, share = self._usage, seconds / WHOLE
        sums.allocated += usage.allocated * share
        sums.terminating += usage.terminating * share
        sums.borrowed += usage.borrowed * share
        sums.fragmented += usage.fragmented * share
        sums.pending += usage.pending * share
        for tenant, amount in usage.tenants.items():
            sums.tenants[tenant] = sums.tenants.get(tenant, 0.0) + amount * share

    def _sample(self, seconds: float) -> None:
        state = self._state
        sums = state.sample
        state.samples.append(
            Sample(
                len(state.samples) * self._part,
                sums.allocated / seconds,
                sums.borrowed / seconds,
                sums.fragmented / seconds,
                sums.pending / seconds,
                state.sample_evictions,
                {tenant: amount / seconds for tenant, amount in sums.tenants.items()},
            )
        )
        state.sample, state.sample_evictions = Sums(), 0
