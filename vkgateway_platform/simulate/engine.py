"""Event loop of a simulation: submissions, cycles, ends and evictions on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop

from vkgateway.scheduler.core.decisions import Decisions, PendingReason
from vkgateway.scheduler.core.outcome import changed_gangs
from vkgateway.scheduler.core.share_history import ShareHistory
from vkgateway.scheduler.core.snapshot import Gang, Quota, Snapshot
from vkgateway_platform.simulate.budgets import Budgets
from vkgateway_platform.simulate.entitlement import Entitlement
from vkgateway_platform.simulate.gangs import SubmittedGangs
from vkgateway_platform.simulate.integrals import UsageIntegrals
from vkgateway_platform.simulate.policies.scheduler import Scheduler
from vkgateway_platform.simulate.runs import GangRuns, count_required, count_running
from vkgateway_platform.simulate.scenario import Scenario
from vkgateway_platform.simulate.state import EventKind, Run, SimulationState
from vkgateway_platform.simulate.usage import Usage

_DOUBLINGS = 4
"""How often the time between cycles without a decision doubles."""
_STOP_LONGEST_RUNS, _STOP_WORK_FACTOR = 10, 4
"""A simulation stops 10 longest runs after the last submission, plus 4 times what all work takes at full use."""
_STOP_WITH_BUDGETS = 366 * 86_400.0
"""A simulation with budgets may last a year longer: gangs may wait for the next month."""
_AFTER_START = 0.01
"""Seconds after which a gang is notified at the earliest whose run limit is shorter than the notice."""
_IDLE_CYCLES = 3
"""Cycles without a decision after which pending gangs of an idle cluster never start."""


class Simulation:
    """One scheduler over one scenario. Call `step` until it returns False, and `saved_state` between two steps."""

    def __init__(
        self,
        scenario: Scenario,
        scheduler: Scheduler,
        *,
        state: SimulationState | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock` measures what cycles take, in seconds."""
        self.scenario = scheduler.arrange(scenario)
        self.state = state if state is not None else SimulationState()
        self._scheduler = scheduler
        self._clock = clock
        self._settings = self.scenario.settings
        usage = Usage(self.scenario, self.state.gangs.values())
        self._gangs = SubmittedGangs(self.state.gangs, usage)
        self._budgets = Budgets(self.scenario, self.state, self._gangs)
        self._share_history = ShareHistory(self._settings.policy.half_life)
        self._share_history.load(self.state.past_shares or self.scenario.past_shares)
        self._runs = GangRuns(self.scenario, self.state, self._gangs)
        self._entitlement = Entitlement(self.scenario)
        self._integrals = UsageIntegrals(
            self.state, usage, warm_up=self._settings.warm_up, horizon=self.scenario.horizon
        )
        self._stop = _stop_time(self.scenario)
        self._observe_shares(self.scenario.quotas)

    def step(self) -> bool:
        """Process the next event or cycle. Return False if there is none."""
        state = self.state
        time = self._next_time()
        if time is None or time > self._stop:
            self._integrals.add_last_sample()
            self._budgets.store()
            return False
        self._integrals.advance_to(time)
        state.now = time
        news = self._begin_month()
        news |= self._submit_jobs()
        while state.events and state.events[0].time <= time:
            news |= self._runs.handle_event(heappop(state.events))
        if news:
            state.quiet = 0
            earliest = time if state.last_cycle is None else state.last_cycle + self._settings.interval
            self._request_cycle(max(time, earliest))
        if state.cycle_due is not None and state.cycle_due <= time:
            self._run_cycle()
        elif news:
            self._observe_shares(self._budgets.stop_quotas())
        return True

    def _next_time(self) -> float | None:
        state, jobs = self.state, self.scenario.jobs
        submitted = jobs[state.arrived].submitted if state.arrived < len(jobs) else None
        event = state.events[0].time if state.events else None
        month = self._budgets.next_month() if state.gangs else None
        due = state.cycle_due
        if submitted is None and event is None and (not state.gangs or state.quiet >= _IDLE_CYCLES):
            due = None  # further cycles decide nothing
            if month is None:
                return None
        times = [time for time in (submitted, event, due, month) if time is not None]
        return max(min(times), state.now) if times else None

    def _request_cycle(self, time: float) -> None:
        due = self.state.cycle_due
        self.state.cycle_due = time if due is None else min(due, time)

    def saved_state(self) -> SimulationState:
        """Return the state, complete so that another simulation can continue from it."""
        self._budgets.store()
        self.state.past_shares = self._share_history.shares
        return self.state

    # Events

    def _begin_month(self) -> bool:
        """Return whether a month begins, in which pods may borrow again."""
        month = self._budgets.next_month()
        if month is None or month > self.state.now:
            return False
        self._budgets.stop_quotas()
        return True

    def _submit_jobs(self) -> bool:
        state, jobs, before = self.state, self.scenario.jobs, self.state.arrived
        while state.arrived < len(jobs) and jobs[state.arrived].submitted <= state.now:
            job = jobs[state.arrived]
            gang = replace(job.pending_gang(self._settings), expected_run=self._runs.expected_run(job))
            entitled = self._is_entitled(gang)
            state.runs[job.id] = Run(number=state.arrived, queued_since=state.now, entitled=entitled)
            state.arrived += 1
            self._gangs.add_gang(gang)
        return state.arrived > before

    def _is_entitled(self, gang: Gang) -> bool:
        state = self.state
        others = self._gangs.of_tenant(gang.tenant)
        ahead = [one for one in others if one.id != gang.id]
        pending = [one for one in ahead if state.runs[one.id].since is None or all(pod.borrowed for pod in one.pods)]
        return self._entitlement.fits_guarantee(gang, others, pending)

    # Cycles

    def _run_cycle(self) -> None:
        state = self.state
        state.cycle_due, state.last_cycle = None, state.now
        snapshot = self._observe_shares(self._budgets.stop_quotas())
        begun = self._clock() if self._clock is not None else 0.0
        decisions = self._scheduler.decide(snapshot, state.now)
        state.cycles += 1
        if self._clock is not None:
            state.seconds.append(self._clock() - begun)
        acts = decisions.admits or decisions.evicts or decisions.reprieves
        state.quiet = 0 if acts else state.quiet + 1
        self._apply_decisions(decisions)
        if decisions.next_notice is not None:
            self._request_cycle(max(decisions.next_notice, state.now + _AFTER_START))
        self._observe_shares(snapshot.quotas)
        if decisions.holds or (state.gangs and not state.events):
            self._request_cycle(state.now + self._settings.refresh * 2 ** min(state.quiet, _DOUBLINGS))

    def _observe_shares(self, quotas: tuple[Quota, ...]) -> Snapshot:
        """Return the present snapshot. Its usage counts from now on for past shares, if there is a half-life."""
        snapshot = Snapshot(
            pools=self.scenario.pools,
            quotas=quotas,
            gangs=tuple(self.state.gangs.values()),
            policy=self._settings.policy,
        )
        return replace(snapshot, past_shares=self._share_history.observe(snapshot, self.state.now))

    def _apply_decisions(self, decisions: Decisions) -> None:
        state = self.state
        planned = [gang.id for gang in state.gangs.values() if gang.plan is not None]
        changed = changed_gangs(decisions, state.gangs, planned, state.now)
        self._gangs.replace_gangs(changed)
        for name in {admit.gang: None for admit in decisions.admits}:
            self._start_gang(state.gangs[name], state.runs[name])
        for evict in decisions.evicts:
            state.push_event(evict.deadline, EventKind.DEADLINE, evict.gang)
        for hold in decisions.holds:
            run = state.runs[hold.gang]
            if run.entitled and run.started is None and not run.reason and hold.code is not PendingReason.EVICTION:
                run.reason, run.behind = hold.code.value, hold.behind

    def _start_gang(self, gang: Gang, run: Run) -> None:
        if run.since is not None:
            return  # more of its surplus started
        running, required = count_running(gang), count_required(gang)
        if running < required:
            raise PartialGangError(f"{self._scheduler.name} starts {running} of {required} pods of {gang.id}")
        self._runs.start_run(gang, run)


def _stop_time(scenario: Scenario) -> float:
    """Return a time by which any scheduler that makes progress has finished, as a limit for those that do not."""
    jobs, units = scenario.jobs, scenario.pool_units
    held = sum(node.allocatable.get(pool.loss_resource, 0) for pool in scenario.pools for node in pool.nodes)
    work = sum(job.run * sum(shape.amount_of(units[job.pools[0]]) for shape in job.shapes) for job in jobs)
    last = max((job.submitted for job in jobs), default=0.0)
    return (
        last
        + _STOP_LONGEST_RUNS * max((job.run for job in jobs), default=0.0)
        + _STOP_WORK_FACTOR * work / max(1, held)
        + (_STOP_WITH_BUDGETS if scenario.budgets else 0.0)
    )


class PartialGangError(Exception):
    """A scheduler started less than a gang's minimum."""
