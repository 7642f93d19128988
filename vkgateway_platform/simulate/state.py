"""State of a simulation at one moment: enough to continue it later."""

from __future__ import annotations

from enum import IntEnum
from heapq import heappush

import msgspec

from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import Gang
from vkgateway.tenants.usage.ledger import MonthUsage


class EventKind(IntEnum):
    """Events, in the order in which those of one moment happen."""

    END = 0
    DEADLINE = 1
    TERMINATED = 2
    CHECKPOINT = 3
    RECREATED = 4


class Event(msgspec.Struct, array_like=True, order=True):
    """Something that happens to a job at a time. `epoch` is that of the run it belongs to."""

    time: float
    what: int
    number: int
    job: str
    epoch: int = 0


class Run(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Progress of a job. Times are seconds since the trace began, `lost` is in GPU-seconds."""

    number: int
    """Index in the scenario."""
    started: float | None = None
    """When it ran first. None: it never ran."""
    ended: float | None = None
    since: float | None = None
    """When its current run began. None: it does not run."""
    epoch: int = 0
    """Number of its runs, by which events of an earlier run are recognized."""
    saved: float = 0.0
    """Seconds of work that were checkpointed before the current run."""
    queued: float = 0.0
    """Seconds in which it was pending, first and after evictions."""
    queued_since: float | None = None
    """When it became pending. None: it is not pending."""
    longest_queued: float = 0.0
    evictions: int = 0
    lost: float = 0.0
    borrowed: bool = False
    """Its first run was outside its tenant's guarantee."""
    entitled: bool = False
    """It fitted its tenant's unused guarantee when it was submitted."""
    reason: str = ""
    """The code of its first pending reason, other than that its victims terminate."""
    behind: str = ""
    """Gang that this reason names, if any."""
    renewed: int = 0
    """Number of its re-created pods."""


class UsageSums(msgspec.Struct, kw_only=True):
    """Integrals over time, in GPU-seconds."""

    allocated: float = 0.0
    terminating: float = 0.0
    borrowed: float = 0.0
    fragmented: float = 0.0
    """Idle GPUs of partly used nodes."""
    pending: float = 0.0
    """Requests of pending gangs."""
    tenants: dict[str, float] = {}


class Sample(msgspec.Struct, array_like=True):
    """Averages over one part of the time, in GPUs."""

    time: float
    allocated: float
    borrowed: float
    fragmented: float
    pending: float
    evictions: int
    tenants: dict[str, float]


class SimulationState(msgspec.Struct, kw_only=True):
    """Complete changing state of a simulation."""

    now: float = 0.0
    arrived: int = 0
    """Number of submitted jobs."""
    counted: int = 0
    """Number of created events, for their order."""
    cycle_due: float | None = None
    last_cycle: float | None = None
    quiet: int = 0
    """Consecutive cycles without decisions, between which nothing changed."""
    cycles: int = 0
    seconds: list[float] = []
    """Duration of each cycle, if there is a clock."""
    events: list[Event] = []
    gangs: dict[str, Gang] = {}
    """Gangs that were submitted and have not ended."""
    away: dict[str, Gang] = {}
    """Evicted gangs whose pods are not re-created yet."""
    runs: dict[str, Run] = {}
    learned: dict[str, list[float]] = {}
    """Run times of ended jobs, by kind."""
    sums: UsageSums = msgspec.field(default_factory=UsageSums)
    samples: list[Sample] = []
    sampled: float = 0.0
    """The end of the last sample. After the horizon, a sample may take longer."""
    sample: UsageSums = msgspec.field(default_factory=UsageSums)
    """Sums of the incomplete sample."""
    sample_evictions: int = 0
    usage: list[MonthUsage] = []
    """Hours of tenants with a budget, complete after `Simulation.saved_state`."""
    past_shares: tuple[PastShare, ...] = ()
    """Past shares since the last cycle, complete after `Simulation.saved_state`."""
    used_up: dict[str, float] = {}
    """When a budget was used up, by month, tenant, pool and resource."""

    def push_event(self, time: float, what: EventKind, job: str, epoch: int = 0) -> None:
        """Schedule an event."""
        self.counted += 1
        heappush(self.events, Event(time, what, self.counted, job, epoch))
