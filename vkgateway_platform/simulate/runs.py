"""Runs of the gangs of a simulation: starts, ends, evictions, and the re-creation of evicted pods."""

from __future__ import annotations

import statistics
from dataclasses import replace

from vkgateway.scheduler.core.snapshot import ENDING, NOTIFIED, PLACED, WAITING, Gang, Pod
from vkgateway_platform.simulate.gangs import SubmittedGangs
from vkgateway_platform.simulate.scenario import Job, Scenario
from vkgateway_platform.simulate.state import Event, EventKind, Run, SimulationState
from vkgateway_platform.simulate.usage import MILLI_PER_UNIT

_RUNS_NEEDED, _RUNS_KEPT = 3, 20
"""The run time of a kind is known after 3 pods ran; of more than 20 the last count, as in the gateway."""
_MAX_BACKOFF = 600.0
"""Seconds after which an evicted gang's pods are re-created at the latest, as by the Job controller."""


class GangRuns:
    """What happens to admitted gangs, and the run times that are learned from them."""

    def __init__(self, scenario: Scenario, state: SimulationState, gangs: SubmittedGangs) -> None:
        self._scenario = scenario
        self._state = state
        self._gangs = gangs
        self._jobs = {job.id: job for job in scenario.jobs}

    def expected_run(self, job: Job) -> float | None:
        """Return the median run time of earlier jobs of a kind, None if too few ran or the job has a limit."""
        runs = self._state.learned.get(job.kind, ())
        return statistics.median(runs) if job.kind and job.run_limit is None and len(runs) >= _RUNS_NEEDED else None

    def start_run(self, gang: Gang, run: Run) -> None:
        """Start the run of a gang whose pods were admitted."""
        state, job = self._state, self._jobs[gang.id]
        run.since = state.now
        run.epoch += 1
        if run.queued_since is not None:
            run.queued += state.now - run.queued_since
            run.longest_queued = max(run.longest_queued, state.now - run.queued_since)
            run.queued_since = None
        if run.started is None:
            run.started, run.borrowed = state.now, any(pod.borrowed for pod in gang.pods)
        state.push_event(state.now + max(0.0, job.run - run.saved), EventKind.END, gang.id, run.epoch)
        if job.checkpoint:
            state.push_event(state.now + job.checkpoint, EventKind.CHECKPOINT, gang.id, run.epoch)

    def handle_event(self, event: Event) -> bool:
        """Return whether anything changed that a scheduler must know."""
        what = EventKind(event.what)
        if what is EventKind.RECREATED:
            return self._recreate_gang(event.job)
        gang, run = self._state.gangs.get(event.job), self._state.runs[event.job]
        if gang is None:
            return False
        match what:
            case EventKind.END:
                return run.epoch == event.epoch and self._end_run(gang, run)
            case EventKind.CHECKPOINT:
                if run.epoch == event.epoch and run.since is not None:
                    self._gangs.replace_gang(replace(gang, checkpoint=self._state.now))
                    self._state.push_event(
                        self._state.now + self._jobs[gang.id].checkpoint, EventKind.CHECKPOINT, gang.id, run.epoch
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
            learned = self._state.learned.setdefault(kind, [])
            learned += [self._state.now - run.since] * min(len(gang.pods), _RUNS_KEPT)
            del learned[:-_RUNS_KEPT]
        run.ended, run.since = self._state.now, None
        self._gangs.remove_gang(gang)
        return True

    def _terminate_pods(self, gang: Gang, run: Run) -> bool:
        now = self._state.now
        due = {pod.uid for pod in gang.pods if pod.state is NOTIFIED and pod.deadline <= now}
        if not due:
            return False  # they were reprieved, or the gang is another one by now
        if self._is_starting(gang, run, now):
            self._requeue_starting(gang, run)
            return True
        gone = now + gang.grace
        pods = (replace(pod, state=ENDING, deadline=gone) if pod.uid in due else pod for pod in gang.pods)
        after = replace(gang, pods=tuple(pods))
        if run.since is not None and count_running(after) < count_required(gang):
            self._stop_run(gang, run)
        self._gangs.replace_gang(after)
        self._state.push_event(gone, EventKind.TERMINATED, gang.id)
        return True

    def _is_starting(self, gang: Gang, run: Run, deadline: float) -> bool:
        """Return whether the gang's pods did not exist yet when its eviction was decided."""
        if any(pod.limit_reached for pod in gang.pods):
            return False  # such a notice may be longer than the run
        return run.since is not None and deadline - gang.notice - run.since < self._scenario.settings.startup

    def _requeue_starting(self, gang: Gang, run: Run) -> None:
        """Requeue a gang that did not run yet."""
        pods = tuple(Pod(uid=pod.uid, shape=pod.shape, rank=pod.rank, role=pod.role) for pod in gang.pods)
        self._gangs.replace_gang(replace(gang, pods=pods))
        run.since, run.queued_since = None, self._state.now
        run.epoch += 1

    def _stop_run(self, gang: Gang, run: Run) -> None:
        """Stop the gang's current run. Its work since the last checkpoint is lost."""
        assert run.since is not None
        interval, done = self._jobs[gang.id].checkpoint, self._state.now - run.since
        kept = done // interval * interval if interval else 0.0
        unit = self._scenario.pool_units[gang.pools[0]]
        amount = sum(pod.shape.amount_of(unit) for pod in gang.pods if pod.state in (PLACED, NOTIFIED))
        run.lost += (done - kept) * amount / MILLI_PER_UNIT
        run.saved += kept
        run.since, run.evictions, run.queued_since = None, run.evictions + 1, self._state.now
        run.epoch += 1
        self._state.sample_evictions += 1

    def _release_pods(self, gang: Gang, run: Run) -> bool:
        now = self._state.now
        pods = tuple(
            _recreate_pod(pod, run) if pod.state is ENDING and pod.deadline <= now else pod for pod in gang.pods
        )
        if pods == gang.pods:
            return False
        whole = all(pod.state is WAITING for pod in pods)
        after = replace(gang, pods=pods, created=now if whole else gang.created)
        if whole and self._scenario.settings.recreate:
            self._await_recreation(gang, after, run)
        else:
            self._gangs.replace_gang(after)
        return True

    def _await_recreation(self, gang: Gang, after: Gang, run: Run) -> None:
        """Take an evicted gang out of the queue until its controller re-creates its pods."""
        self._gangs.remove_gang(gang)
        self._state.away[gang.id] = after
        delay = min(self._scenario.settings.recreate * 2.0 ** (run.evictions - 1), _MAX_BACKOFF)
        self._state.push_event(self._state.now + delay, EventKind.RECREATED, gang.id)

    def _recreate_gang(self, name: str) -> bool:
        self._gangs.add_gang(replace(self._state.away.pop(name), created=self._state.now))
        return True


def count_required(gang: Gang) -> int:
    """Return the number of pods without which the gang does not run."""
    return min(gang.minimum, len(gang.pods))


def count_running(gang: Gang) -> int:
    """Return the number of pods that run, under notice or not."""
    return sum(pod.state in (PLACED, NOTIFIED) for pod in gang.pods)


def _recreate_pod(pod: Pod, run: Run) -> Pod:
    run.renewed += 1
    return Pod(uid=f"{pod.uid.partition('+')[0]}+{run.renewed}", shape=pod.shape, rank=pod.rank, role=pod.role)
