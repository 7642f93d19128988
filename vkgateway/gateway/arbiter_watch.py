"""Hears of each cycle of the arbiter: figures, logs, and the state that is shown over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import PodState, PoolKey, Snapshot
from vkgateway.arbiter.report import report, summary
from vkgateway.gateway import metrics
from vkgateway.gateway.config import Arbiter
from vkgateway.gateway.decisionlog import DecisionLog
from vkgateway.gateway.guarantees import Guarantees
from vkgateway.gateway.usagelog import Usage, UsageLog
from vkgateway.model.errors import InputError, UnavailableError, VkgatewayError
from vkgateway.sync.admission.verdicts import PREEMPTED, Ran
from vkgateway.sync.compute.ownership import Key
from vkgateway.translate.governed import is_extended

_SHORTEST: Final = 60.0
_LONGEST: Final = 3600.0
"""Seconds between two times at which it is told what running pods have used so far."""
_PACE: Final = 0.36
"""Seconds a record: 60 MB a day at most."""
_pause = asyncio.sleep


class Refusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a question is not answered, and how the command line exits then."""

    message: str
    hint: str = ""
    exit_code: int = 1

    @classmethod
    def of(cls, error: VkgatewayError) -> Refusal:
        """As an error says it."""
        return cls(message=str(error), hint=error.hint, exit_code=error.exit_code)


class ArbiterWatch:
    """What is kept of the arbiter's work; logs are written where the settings name files.

    `clock` is the arbiter's own, seconds since the epoch: what pods have used so far ends by the one by which they end.
    """

    def __init__(self, settings: Arbiter, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.names: Callable[[], Mapping[str, Key]] = dict
        """Namespaces and names of governed pods by uid; asked when the state is shown."""
        self.divided: Callable[[], Mapping[PoolKey, frozenset[str]]] = dict
        """Of pools that are divided into several virtual nodes, the labels that choose nodes; asked per question."""
        self._decisions = DecisionLog(Path(settings.decision_log)) if settings.decision_log else None
        self._usage = UsageLog(Path(settings.usage_log)) if settings.usage_log else None
        self.guarantees = Guarantees()
        self._last: tuple[Snapshot, Decisions, float] | None = None

    def log(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> None:
        """Write a cycle down; called in a thread of its own."""
        if self._decisions is not None:
            self._decisions.write(snapshot, decisions, now)

    def decided(self, snapshot: Snapshot, decisions: Decisions, *, now: float, seconds: float) -> None:
        """Count a cycle, and keep it to be shown."""
        self._last = snapshot, decisions, now
        self.guarantees.decided(snapshot, decisions)
        if self._usage is not None and decisions.promotes:
            promoted = {uid for promote in decisions.promotes for uid in promote.pods}
            names = {uid: key for uid, key in self.names().items() if uid in promoted}
            self._usage.record(*running(snapshot, Decisions(), names, now))  # so far they borrowed
        metrics.observe_cycle(seconds)
        metrics.count_decisions(decisions)

    def ended(self, tenant: str, ran: Ran) -> None:
        """Write down what a pod used."""
        if self._usage is None:
            return
        lost = ran.end - max(ran.start, ran.saved) if ran.why == PREEMPTED else 0.0
        cluster, pool = ran.verdict.pool
        for resource, amount in ran.shape.requests:
            if is_extended(resource):
                self._usage.record(
                    Usage(
                        tenant=tenant,
                        namespace=ran.namespace,
                        pod=ran.name,
                        gang=ran.gang,
                        band=ran.band,
                        borrowed=ran.verdict.borrowed,
                        pool=pool,
                        compute_cluster=cluster,
                        resource=resource,
                        units=amount / 1000,
                        start=ran.start,
                        end=ran.end,
                        lost=max(0.0, lost),
                        why=ran.why,
                    )
                )

    async def run(self) -> None:
        """Write down now and then what running pods have used so far, until cancelled."""
        while self._usage is not None:
            written = await asyncio.to_thread(self.record_running, self._clock())
            await _pause(min(_LONGEST, max(_SHORTEST, written * _PACE)))

    def record_running(self, now: float) -> int:
        """Write down what pods have used that run now; returns how many records that took."""
        if self._usage is None or self._last is None:
            return 0
        snapshot, decisions, _ = self._last
        used = list(running(snapshot, decisions, self.names(), now))
        self._usage.record(*used)
        return len(used)

    def measure(self) -> None:
        """Set the figures of pools, as they are after the last cycle."""
        if self._last is not None:
            metrics.observe_state(summary(*self._last))

    def state(self) -> bytes:
        """How pools, tenants and gangs stand after the last cycle, as JSON."""
        empty = Snapshot(pools=(), quotas=(), gangs=()), Decisions(), 0.0
        return msgspec.json.encode(report(*(self._last or empty), names=self.names()))

    def what_if(self, question: bytes) -> tuple[int, bytes]:
        """Answer a question of `vkgateway whatif` in JSON, with an HTTP status; nothing is changed.

        Called in a thread of its own. 422: the question cannot be answered, and the body says why.
        """
        from vkgateway.arbiter.whatif.asking import ask
        from vkgateway.arbiter.whatif.questions import Question
        from vkgateway.arbiter.whatif.trial import Seen

        try:
            asked = msgspec.json.decode(question, type=Question)
            if self._last is None:
                raise UnavailableError("the arbiter has decided nothing yet", hint="Ask again in a few seconds.")
            snapshot, decisions, decided = self._last
            seen = Seen(
                snapshot=snapshot, decisions=decisions, time=decided, names=self.names(), divided=self.divided()
            )
            return 200, msgspec.json.encode(ask(asked, seen, max(decided, self._clock())))
        except msgspec.DecodeError as error:
            return 422, msgspec.json.encode(Refusal.of(InputError(f"the question cannot be read: {error}")))
        except VkgatewayError as error:
            return 422, msgspec.json.encode(Refusal.of(error))


def running(snapshot: Snapshot, decisions: Decisions, names: Mapping[str, Key], now: float) -> Iterator[Usage]:
    """What those of the named pods have used until now that hold something and are not on their way out."""
    inside = {uid for promote in decisions.promotes for uid in promote.pods}
    for gang in snapshot.gangs:
        for pod in gang.pods:
            key = names.get(pod.uid)
            if pod.pool is None or key is None or pod.state in (PodState.WAITING, PodState.ENDING):
                continue
            for resource, amount in pod.shape.requests:
                if is_extended(resource):
                    yield Usage(
                        tenant=gang.tenant,
                        namespace=key[0],
                        pod=key[1],
                        gang=gang.id,
                        band=gang.band.value,
                        borrowed=pod.borrowed and pod.uid not in inside,
                        pool=pod.pool[1],
                        compute_cluster=pod.pool[0],
                        resource=resource,
                        units=amount / 1000,
                        start=pod.since,
                        end=now,
                    )
