"""Hears of each cycle of the arbiter: figures, logs, and the state that is shown over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.reasons.report import build_report, build_summary
from vkgateway.arbiter.snapshot import PodState, PoolKey, Snapshot
from vkgateway.gateway import metrics
from vkgateway.gateway.config import Arbiter
from vkgateway.gateway.decisionlog import DecisionLog
from vkgateway.gateway.guarantees import GuaranteeMonitor
from vkgateway.gateway.usagelog import UsageLog, UsageRecord
from vkgateway.model.errors import InputError, UnavailableError, VkgatewayError
from vkgateway.sync.admission.verdict_store import PREEMPTED, PodRun
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.governed import is_extended

_MIN_INTERVAL: Final = 60.0
_MAX_INTERVAL: Final = 3600.0
"""Seconds between two times at which it is told what running pods have used so far."""
_SECONDS_PER_RECORD: Final = 0.36
"""Seconds a record: 60 MB a day at most."""
_sleep = asyncio.sleep


class Refusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a question is not answered, and how the command line exits then."""

    message: str
    hint: str = ""
    exit_code: int = 1

    @classmethod
    def from_error(cls, error: VkgatewayError) -> Refusal:
        """As an error says it."""
        return cls(message=str(error), hint=error.hint, exit_code=error.exit_code)


class ArbiterObserver:
    """What is kept of the arbiter's work; logs are written where the settings name files.

    `clock` is the arbiter's own, seconds since the epoch: what pods have used so far ends by the one by which they end.
    """

    def __init__(self, settings: Arbiter, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.pod_names: Callable[[], Mapping[str, Key]] = dict
        """Namespaces and names of governed pods by uid; asked when the state is shown."""
        self.divided_pools: Callable[[], Mapping[PoolKey, frozenset[str]]] = dict
        """Of pools that are divided into several virtual nodes, the labels that choose nodes; asked per question."""
        self._decision_log = DecisionLog(Path(settings.decision_log)) if settings.decision_log else None
        self._usage_log = UsageLog(Path(settings.usage_log)) if settings.usage_log else None
        self.guarantees = GuaranteeMonitor()
        self._last_cycle: tuple[Snapshot, Decisions, float] | None = None

    def log_cycle(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> None:
        """Write a cycle down; called in a thread of its own."""
        if self._decision_log is not None:
            self._decision_log.write_cycle(snapshot, decisions, now)

    def cycle_decided(self, snapshot: Snapshot, decisions: Decisions, *, now: float, seconds: float) -> None:
        """Count a cycle, and keep it to be shown."""
        self._last_cycle = snapshot, decisions, now
        self.guarantees.cycle_decided(snapshot, decisions)
        if self._usage_log is not None and decisions.promotes:
            promoted = {uid for promote in decisions.promotes for uid in promote.pods}
            names = {uid: key for uid, key in self.pod_names().items() if uid in promoted}
            self._usage_log.write_records(*running_usage(snapshot, Decisions(), names, now))  # so far they borrowed
        metrics.observe_cycle(seconds)
        metrics.count_decisions(decisions)

    def pod_ended(self, tenant: str, ran: PodRun) -> None:
        """Write down what a pod used."""
        if self._usage_log is None:
            return
        lost = ran.end - max(ran.start, ran.checkpoint) if ran.end_reason == PREEMPTED else 0.0
        cluster, pool = ran.verdict.pool
        for resource, amount in ran.shape.requests:
            if is_extended(resource):
                self._usage_log.write_records(
                    UsageRecord(
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
                        why=ran.end_reason,
                    )
                )

    async def run(self) -> None:
        """Write down now and then what running pods have used so far, until cancelled."""
        while self._usage_log is not None:
            written = await asyncio.to_thread(self.record_running, self._clock())
            await _sleep(min(_MAX_INTERVAL, max(_MIN_INTERVAL, written * _SECONDS_PER_RECORD)))

    def record_running(self, now: float) -> int:
        """Write down what pods have used that run now; returns how many records that took."""
        if self._usage_log is None or self._last_cycle is None:
            return 0
        snapshot, decisions, _ = self._last_cycle
        used = list(running_usage(snapshot, decisions, self.pod_names(), now))
        self._usage_log.write_records(*used)
        return len(used)

    def update_metrics(self) -> None:
        """Set the figures of pools, as they are after the last cycle."""
        if self._last_cycle is not None:
            metrics.observe_state(build_summary(*self._last_cycle))

    def encode_state(self) -> bytes:
        """How pools, tenants and gangs stand after the last cycle, as JSON."""
        empty = Snapshot(pools=(), quotas=(), gangs=()), Decisions(), 0.0
        return msgspec.json.encode(build_report(*(self._last_cycle or empty), names=self.pod_names()))

    def answer_what_if(self, question: bytes) -> tuple[int, bytes]:
        """Answer a question of `vkgateway whatif` in JSON, with an HTTP status; nothing is changed.

        Called in a thread of its own. 422: the question cannot be answered, and the body says why.
        """
        from vkgateway.arbiter.whatif.answering import answer_question
        from vkgateway.arbiter.whatif.questions import Question
        from vkgateway.arbiter.whatif.simulation import ObservedCycle

        try:
            asked = msgspec.json.decode(question, type=Question)
            if self._last_cycle is None:
                raise UnavailableError("the arbiter has decided nothing yet", hint="Ask again in a few seconds.")
            snapshot, decisions, decided = self._last_cycle
            seen = ObservedCycle(
                snapshot=snapshot,
                decisions=decisions,
                time=decided,
                names=self.pod_names(),
                part_labels=self.divided_pools(),
            )
            return 200, msgspec.json.encode(answer_question(asked, seen, max(decided, self._clock())))
        except msgspec.DecodeError as error:
            return 422, msgspec.json.encode(Refusal.from_error(InputError(f"the question cannot be read: {error}")))
        except VkgatewayError as error:
            return 422, msgspec.json.encode(Refusal.from_error(error))


def running_usage(
    snapshot: Snapshot, decisions: Decisions, names: Mapping[str, Key], now: float
) -> Iterator[UsageRecord]:
    """What those of the named pods have used until now that hold something and are not on their way out."""
    inside = {uid for promote in decisions.promotes for uid in promote.pods}
    for gang in snapshot.gangs:
        for pod in gang.pods:
            key = names.get(pod.uid)
            if pod.pool is None or key is None or pod.state in (PodState.WAITING, PodState.ENDING):
                continue
            for resource, amount in pod.shape.requests:
                if is_extended(resource):
                    yield UsageRecord(
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
