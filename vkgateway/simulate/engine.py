"""Event loop of a simulation: submissions, cycles, ends and evictions on a simulated clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heappop, heappush

from vkgateway.arbiter.decisions import Decisions, PendingReason
from vkgateway.arbiter.outcome import changed_gangs
from vkgateway.arbiter.snapshot import ENDING, NOTIFIED, PLACED, WAITING, Gang, Pod, Snapshot
from vkgateway.simulate.entitlement import Entitlement
from vkgateway.simulate.integrals import UsageIntegrals
from vkgateway.simulate.policies.scheduler import Scheduler
from vkgateway.simulate.scenario import Job, Scenario
from vkgateway.simulate.state import Event, EventKind, Run, SimulationState
from vkgateway.simulate.usage import MILLI_PER_UNIT, Usage

_RUNS_NEEDED, _RUNS_KEPT = 3, 20
"""The run time of a kind is known after 3 pods ran; of more than 20 the last count, as in the gateway."""
_DOUBLINGS = 4
"""How often the time between cycles without a decision doubles."""
_STOP_LONGEST_RUNS, _STOP_WORK_FACTOR = 10, 4
"""A simulation stops 10 longest runs after the last submission, plus 4 times what all work takes at full use."""
_MAX_BACKOFF = 600.0
"""Seconds after which an evicted gang's pods are re-created at the latest, as by the Job controller."""
_IDLE_CYCLES = 3
"""Cycles without a decision after which pending gangs of an idle cluster never start."""


class Simulation:
    """One scheduler over one scenario. Call `step` until it returns False. `state` may be saved between two steps."""

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
        self._jobs = {job.id: job for job in self.scenario.jobs}
        self._settings = self.scenario.settings
        self._usage = Usage(self.scenario, self.state.gangs.values())
        self._entitlement = Entitlement(self.scenario)
        self._integrals = UsageIntegrals(
            self.state, self._usage, warm_up=self._settings.warm_up, horizon=self.scenario.horizon
        )
        self._stop = _stop_time(self.scenario)
        self._gangs_by_tenant: dict[str, dict[str, None]] = {}
        for gang in self.state.gangs.values():
            self._gangs_by_tenant.setdefault(gang.tenant, {})[gang.id] = None

    def step(self) -> bool:
        """Process the next event or cycle. Return False if there is none."""
        state = self.state
        time = self._next_time()
        if time is None or time > self._stop:
            self._integrals.add_last_sample()
            return False
        self._integrals.advance_to(time)
        state.now = time
        news = self._submit_jobs()
        while state.events and state.events[0].time <= time:
            news |= self._handle_event(heappop(state.events))
        if news:
            state.quiet = 0
            earliest = time if state.last_cycle is None else state.last_cycle + self._settings.interval
            self._request_cycle(max(time, earliest))
        if state.cycle_due is not None and state.cycle_due <= time:
            self._run_cycle()
        return True

    def _next_time(self) -> float | None:
        state, jobs = self.state, self.scenario.jobs
        submitted = jobs[state.arrived].submitted if state.arrived < len(jobs) else None
        event = state.events[0].time if state.events else None
        if submitted is None and event is None and (not state.gangs or state.quiet >= _IDLE_CYCLES):
            return None
        times = [time for time in (submitted, event, state.cycle_due) if time is not None]
        return max(min(times), state.now) if times else None

    def _request_cycle(self, time: float) -> None:
        due = self.state.cycle_due
        self.state.cycle_due = time if due is None else min(due, time)

    # Events

    def _submit_jobs(self) -> bool:
        state, jobs, before = self.state, self.scenario.jobs, self.state.arrived
        while state.arrived < len(jobs) and jobs[state.arrived].submitted <= state.now:
            job = jobs[state.arrived]
            gang = replace(job.pending_gang(self._settings), expected_run=self._expected_run(job))
            run = Run(number=state.arrived, queued_since=state.now, entitled=self._is_entitled(gang))
            state.arrived += 1
            state.gangs[job.id], state.runs[job.id] = gang, run
            self._gangs_by_tenant.setdefault(job.tenant, {})[job.id] = None
            self._usage.replace_gang(None, gang)
        return state.arrived > before

    def _is_entitled(self, gang: Gang) -> bool:
        state = self.state
        others = [state.gangs[name] for name in self._gangs_by_tenant.get(gang.tenant, ())]
        pending = [one for one in others if one.id != gang.id and state.runs[one.id].since is None]
        return self._entitlement.fits_guarantee(gang, others, pending)

    def _expected_run(self, job: Job) -> float | None:
        runs = self.state.learned.get(job.kind, ())
        return statistics.median(runs) if job.kind and job.run_limit is None and len(runs) >= _RUNS_NEEDED else None

    def _push_event(self, time: float, what: EventKind, job: str, epoch: int = 0) -> None:
        self.state.counted += 1
        heappush(self.state.events, Event(time, what, self.state.counted, job, epoch))

    def _handle_event(self, event: Event) -> bool:
        """Return whether anything changed that a scheduler must know."""
        what = EventKind(event.what)
        if what is EventKind.RECREATED:
            return self._recreate_gang(event.job)
        gang, run = self.state.gangs.get(event.job), self.state.runs[event.job]
        if gang is None:
            return False
        match what:
            case EventKind.END:
                return run.epoch == event.epoch and self._end_run(gang, run)
            case EventKind.CHECKPOINT:
                if run.epoch == event.epoch and run.since is not None:
                    self._replace_gang(gang, replace(gang, checkpoint=self.state.now))
                    self._push_event(
                        self.state.now + self._jobs[gang.id].checkpoint, EventKind.CHECKPOINT, gang.id, run.epoch
                    )
                return False
            case EventKind.DEADLINE:
                return self._terminate_pods(gang, run)
            case EventKind.TERMINATED:
                return self._release_pods(gang, run)

    def _end_run(self, gang: Gang, run: Run) -> bool:
        if run.since is None:
            return False
        kind = self._jobs[gang.id].kind
        if kind:
            learned = self.state.learned.setdefault(kind, [])
            learned += [self.state.now - run.since] * min(len(gang.pods), _RUNS_KEPT)
            del learned[:-_RUNS_KEPT]
        run.ended, run.since = self.state.now, None
        del self.state.gangs[gang.id], self._gangs_by_tenant[gang.tenant][gang.id]
        self._usage.replace_gang(gang, None)
        return True

    def _terminate_pods(self, gang: Gang, run: Run) -> bool:
        now = self.state.now
        due = {pod.uid for pod in gang.pods if pod.state is NOTIFIED and pod.deadline <= now}
        if not due:
            return False  # they were reprieved, or the gang is another one by now
        if self._is_starting(gang, run, now):
            self._requeue_starting(gang, run)
            return True
        gone = now + gang.grace
        pods = (replace(pod, state=ENDING, deadline=gone) if pod.uid in due else pod for pod in gang.pods)
        after = replace(gang, pods=tuple(pods))
        if run.since is not None and _running_pods(after) < _required_pods(gang):
            self._stop_run(gang, run)
        self._replace_gang(gang, after)
        self._push_event(gone, EventKind.TERMINATED, gang.id)
        return True

    def _is_starting(self, gang: Gang, run: Run, deadline: float) -> bool:
        """Return whether the gang's pods did not exist yet when its eviction was decided."""
        return run.since is not None and deadline - gang.notice - run.since < self._settings.startup

    def _requeue_starting(self, gang: Gang, run: Run) -> None:
        """Requeue a gang that did not run yet."""
        pods = tuple(Pod(uid=pod.uid, shape=pod.shape, rank=pod.rank, role=pod.role) for pod in gang.pods)
        self._replace_gang(gang, replace(gang, pods=pods))
        run.since, run.queued_since = None, self.state.now
        run.epoch += 1

    def _stop_run(self, gang: Gang, run: Run) -> None:
        """Stop the gang's current run. Its work since the last checkpoint is lost."""
        assert run.since is not None
        interval, done = self._jobs[gang.id].checkpoint, self.state.now - run.since
        kept = done // interval * interval if interval else 0.0
        unit = self.scenario.pool_units[gang.pools[0]]
        amount = sum(pod.shape.amount_of(unit) for pod in gang.pods if pod.state in (PLACED, NOTIFIED))
        run.lost += (done - kept) * amount / MILLI_PER_UNIT
        run.saved += kept
        run.since, run.evictions, run.queued_since = None, run.evictions + 1, self.state.now
        run.epoch += 1
        self._integrals.count_eviction()

    def _release_pods(self, gang: Gang, run: Run) -> bool:
        now = self.state.now
        pods = tuple(
            self._recreate_pod(pod, run) if pod.state is ENDING and pod.deadline <= now else pod for pod in gang.pods
        )
        if pods == gang.pods:
            return False
        whole = all(pod.state is WAITING for pod in pods)
        after = replace(gang, pods=pods, created=now if whole else gang.created)
        if whole and self._settings.recreate:
            self._await_recreation(gang, after, run)
        else:
            self._replace_gang(gang, after)
        return True

    def _await_recreation(self, gang: Gang, after: Gang, run: Run) -> None:
        """Take an evicted gang out of the queue until its controller re-creates its pods."""
        del self.state.gangs[gang.id], self._gangs_by_tenant[gang.tenant][gang.id]
        self._usage.replace_gang(gang, None)
        self.state.away[gang.id] = after
        delay = min(self._settings.recreate * 2.0 ** (run.evictions - 1), _MAX_BACKOFF)
        self._push_event(self.state.now + delay, EventKind.RECREATED, gang.id)

    def _recreate_gang(self, name: str) -> bool:
        gang = replace(self.state.away.pop(name), created=self.state.now)
        self.state.gangs[name] = gang
        self._gangs_by_tenant.setdefault(gang.tenant, {})[name] = None
        self._usage.replace_gang(None, gang)
        return True

    def _recreate_pod(self, pod: Pod, run: Run) -> Pod:
        run.renewed += 1
        return Pod(uid=f"{pod.uid.partition('+')[0]}+{run.renewed}", shape=pod.shape, rank=pod.rank, role=pod.role)

    def _replace_gang(self, old: Gang, new: Gang) -> None:
        self.state.gangs[old.id] = new
        self._usage.replace_gang(old, new)

    # Cycles

    def _run_cycle(self) -> None:
        state = self.state
        state.cycle_due, state.last_cycle = None, state.now
        snapshot = Snapshot(
            pools=self.scenario.pools,
            quotas=self.scenario.quotas,
            gangs=tuple(state.gangs.values()),
            policy=self._settings.policy,
        )
        begun = self._clock() if self._clock is not None else 0.0
        decisions = self._scheduler.decide(snapshot, state.now)
        state.cycles += 1
        if self._clock is not None:
            state.seconds.append(self._clock() - begun)
        acts = decisions.admits or decisions.evicts or decisions.reprieves
        state.quiet = 0 if acts else state.quiet + 1
        self._apply_decisions(decisions)
        if decisions.holds or (state.gangs and not state.events):
            self._request_cycle(state.now + self._settings.refresh * 2 ** min(state.quiet, _DOUBLINGS))

    def _apply_decisions(self, decisions: Decisions) -> None:
        state = self.state
        planned = [gang.id for gang in state.gangs.values() if gang.plan is not None]
        changed = changed_gangs(decisions, state.gangs, planned, state.now)
        # What starts may need what is given up in the same cycle, so amounts are checked when all is known.
        for name, gang in changed.items():
            self._usage.replace_gang(state.gangs[name], None)
            state.gangs[name] = gang
        for gang in changed.values():
            self._usage.replace_gang(None, gang)
        for name in {admit.gang: None for admit in decisions.admits}:
            self._start_gang(state.gangs[name], state.runs[name])
        for evict in decisions.evicts:
            self._push_event(evict.deadline, EventKind.DEADLINE, evict.gang)
        for hold in decisions.holds:
            run = state.runs[hold.gang]
            if run.entitled and run.started is None and not run.reason and hold.code is not PendingReason.EVICTION:
                run.reason, run.behind = hold.code.value, hold.behind

    def _start_gang(self, gang: Gang, run: Run) -> None:
        state, job = self.state, self._jobs[gang.id]
        if run.since is not None:
            return  # more of its surplus started
        if _running_pods(gang) < _required_pods(gang):
            raise PartialGangError(
                f"{self._scheduler.name} starts {_running_pods(gang)} of {_required_pods(gang)} pods of {gang.id}"
            )
        run.since = state.now
        run.epoch += 1
        if run.queued_since is not None:
            run.queued += state.now - run.queued_since
            run.longest_queued = max(run.longest_queued, state.now - run.queued_since)
            run.queued_since = None
        if run.started is None:
            run.started, run.borrowed = state.now, _is_borrowing(gang.pods)
        self._push_event(state.now + max(0.0, job.run - run.saved), EventKind.END, gang.id, run.epoch)
        if job.checkpoint:
            self._push_event(state.now + job.checkpoint, EventKind.CHECKPOINT, gang.id, run.epoch)


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
    )


class PartialGangError(Exception):
    """A scheduler started less than a gang's minimum."""


def _required_pods(gang: Gang) -> int:
    return min(gang.minimum, len(gang.pods))


def _running_pods(gang: Gang) -> int:
    return sum(pod.state in (PLACED, NOTIFIED) for pod in gang.pods)


def _is_borrowing(pods: Iterable[Pod]) -> bool:
    return any(pod.borrowed for pod in pods)
