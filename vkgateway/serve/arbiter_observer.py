"""Observer of the arbiter's cycles: metrics, logs, and the state that is served over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from vkgateway.api.errors import InputError, UnavailableError, VkgatewayError
from vkgateway.api.requests import is_extended
from vkgateway.kinds.pods.translation.conditions import EVICTION_REASONS
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.write_gate import Permit
from vkgateway.page.timeline import PodName, Timeline, end_of_pod
from vkgateway.runtime.signals import Signal
from vkgateway.scheduler.backends.split import native_decisions, split_snapshot
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.reasons.gang_names import Names
from vkgateway.scheduler.core.reasons.pool_sums import in_units, share_reports
from vkgateway.scheduler.core.reasons.report import build_report, build_summary
from vkgateway.scheduler.core.reasons.report_types import ShareReport
from vkgateway.scheduler.core.snapshot import PodState, PoolKey, Snapshot
from vkgateway.scheduler.service.accounting import PodRun
from vkgateway.scheduler.service.decisionlog import DecisionLog
from vkgateway.settings.config import Arbiter
from vkgateway.tenants import metrics
from vkgateway.tenants.guarantees import GuaranteeMonitor
from vkgateway.tenants.usage.log import UsageLog
from vkgateway.tenants.usage.records import UsageRecord

_MIN_INTERVAL: Final = 60.0
_MAX_INTERVAL: Final = 3600.0
"""Seconds between two records of the usage of running pods."""
_SECONDS_PER_RECORD: Final = 0.36
"""Seconds per record, which limits the log to 60 MB a day."""
_sleep = asyncio.sleep


class Refusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Reason why a question is not answered, and the exit code of the command line."""

    message: str
    hint: str = ""
    exit_code: int = 1

    @classmethod
    def from_error(cls, error: VkgatewayError) -> Refusal:
        """Return the refusal that carries an error's message, hint and exit code."""
        return cls(message=str(error), hint=error.hint, exit_code=error.exit_code)


class ArbiterObserver:
    """Last cycle of the arbiter, its metrics, and its logs if the settings name files for them.

    `clock` is the arbiter's clock, so that interim usage and final usage agree. `permit` permits to write the logs.
    `pod_names` returns namespaces and names of governed pods by UID, `uid_of` the UID of the Tenant of a name (empty:
    there is none), and `past_shares` the tenants' past shares since the last cycle. About `foreign_pools`, those of
    other schedulers than the arbiter, it cannot answer questions. `divided_pools` returns the labels that select nodes
    in pools with several virtual nodes.
    """

    def __init__(
        self,
        settings: Arbiter,
        *,
        guarantees: GuaranteeMonitor | None = None,
        pod_names: Callable[[], Names] = dict,
        pod_name: PodName = lambda _tenant, _uid: "",
        uid_of: Callable[[str], str] = lambda _tenant: "",
        past_shares: Callable[[], tuple[PastShare, ...]] = tuple,
        foreign_pools: Callable[[], Collection[PoolKey]] = frozenset,
        divided_pools: Callable[[], Mapping[PoolKey, frozenset[str]]] = dict,
        clock: Clock = SYSTEM_CLOCK,
        permit: Permit | None = None,
    ) -> None:
        self._clock = clock
        self._pod_names = pod_names
        self._pod_name = pod_name
        self._uid_of = uid_of
        self._past_shares = past_shares
        self._foreign_pools = foreign_pools
        self._divided_pools = divided_pools
        self._decision_log = DecisionLog(settings.decision_log, permit=permit) if settings.decision_log else None
        self._usage_log = UsageLog(settings.usage_log, permit=permit) if settings.usage_log else None
        self._guarantees = guarantees or GuaranteeMonitor()
        self.last_cycle: tuple[Snapshot, Decisions, float] | None = None
        """Input and output of the last cycle, and its time in seconds since the epoch."""
        self.timeline = Timeline()
        self.usage_recorded = Signal[[Sequence[UsageRecord]]]()
        """Usage of pods until they ended, or until they no longer borrow, whether or not a log is written."""

    def log_cycle(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> None:
        """Write a cycle to the decision log; called in a separate thread."""
        if self._decision_log is not None:
            self._decision_log.write_cycle(snapshot, decisions, now)

    def cycle_decided(self, snapshot: Snapshot, decisions: Decisions, *, now: float, seconds: float) -> None:
        """Update the metrics and store the cycle as the last one."""
        self.last_cycle = snapshot, decisions, now
        self.timeline.add_cycle(snapshot, decisions, now, pod_name=self._pod_name, uid_of=self._uid_of)
        self._guarantees.cycle_decided(snapshot, decisions)
        if decisions.promotes:
            promoted = {uid for promote in decisions.promotes for uid in promote.pods}
            names = {uid: key for uid, key in self._pod_names().items() if uid in promoted}
            borrowed = running_usage(snapshot, Decisions(), names, now, uid_of=self._uid_of)
            self._record(list(borrowed))
        metrics.observe_cycle(seconds)
        metrics.count_decisions(decisions)

    def pod_ended(self, tenant: str, ran: PodRun) -> None:
        """Record what a pod used."""
        is_evicted = ran.end_reason in EVICTION_REASONS
        lost = max(0.0, ran.end - max(ran.start, ran.checkpoint)) if is_evicted else 0.0
        cluster, pool = ran.verdict.pool
        if not is_evicted:
            pools = self.last_cycle[0].pools if self.last_cycle is not None else ()
            unit = next((each.unit_resource for each in pools if each.key == ran.verdict.pool), "")
            end = end_of_pod(
                gang=ran.gang,
                pod=ran.name,
                pool=ran.verdict.pool,
                units=in_units(ran.shape.amount_of(unit)),
                borrowed=bool(ran.verdict.borrowed),
                since=ran.start,
                now=ran.end,
            )
            self.timeline.add_end(end, uid_of=self._uid_of)
        self._record(
            [
                UsageRecord(
                    tenant=tenant,
                    tenant_uid=self._uid_of(tenant),
                    namespace=ran.namespace,
                    pod=ran.name,
                    gang=ran.gang,
                    band=ran.band,
                    borrowed=bool(ran.verdict.borrowed),
                    pool=pool,
                    compute_cluster=cluster,
                    resource=resource,
                    units=amount / 1000,
                    start=ran.start,
                    end=ran.end,
                    lost=max(0.0, lost),
                    why=ran.end_reason,
                )
                for resource, amount in ran.shape.requests
                if is_extended(resource)
            ]
        )

    def _record(self, records: Sequence[UsageRecord]) -> None:
        self.usage_recorded.emit(records)
        if self._usage_log is not None:
            self._usage_log.write_records(*records)

    async def run(self) -> None:
        """Write interim usage of running pods periodically until cancelled, and lines that were held back."""
        while self._usage_log is not None or self._decision_log is not None:
            written = await asyncio.to_thread(self.record_running, self._clock.time())
            if self._decision_log is not None:
                self._decision_log.lines.flush()
            await _sleep(min(_MAX_INTERVAL, max(_MIN_INTERVAL, written * _SECONDS_PER_RECORD)))

    def record_running(self, now: float) -> int:
        """Write interim usage of the running pods and return the number of records."""
        if self._usage_log is None or self.last_cycle is None:
            return 0
        snapshot, decisions, _ = self.last_cycle
        used = list(running_usage(snapshot, decisions, self._pod_names(), now, uid_of=self._uid_of))
        self._usage_log.write_records(*used)
        return len(used)

    def usage_until(self, now: float) -> Iterator[UsageRecord]:
        """Yield the usage of all pods that hold resources, terminating ones included."""
        if self.last_cycle is not None:
            snapshot, decisions, _ = self.last_cycle
            yield from running_usage(snapshot, decisions, self._pod_names(), now, uid_of=self._uid_of, with_ending=True)

    def update_metrics(self) -> None:
        """Set the pool metrics to the state after the last cycle."""
        if self.last_cycle is not None:
            metrics.observe_state(build_summary(*self.last_cycle, shares=self._shares_now(self.last_cycle[0])))

    def encode_state(self) -> bytes:
        """Return the state of pools, tenants and gangs after the last cycle as JSON."""
        empty = Snapshot(pools=(), quotas=(), gangs=()), Decisions(), 0.0
        snapshot, decisions, time = self.last_cycle or empty
        shares = self._shares_now(snapshot)
        return msgspec.json.encode(build_report(snapshot, decisions, time, names=self._pod_names(), shares=shares))

    def _shares_now(self, snapshot: Snapshot) -> tuple[ShareReport, ...]:
        """Return the tenants' shares now: past ones change with time, without a cycle."""
        return share_reports(snapshot, self._clock.time(), self._past_shares())

    def answer_what_if(self, question: bytes) -> tuple[int, bytes]:
        """Return the HTTP status and the JSON answer to a question of `vkgateway whatif`; nothing is changed.

        Called in a separate thread. Status 422 means that there is no answer; the body says why.
        """
        from vkgateway.scheduler.core.whatif.answering import answer_question
        from vkgateway.scheduler.core.whatif.questions import Question
        from vkgateway.scheduler.core.whatif.simulation import ObservedCycle

        try:
            decoded = msgspec.json.decode(question, type=Question)
            if self.last_cycle is None:
                raise UnavailableError("the arbiter has not completed a cycle yet", hint="Retry in a few seconds.")
            snapshot, decisions, decided_at = self.last_cycle
            if snapshot.policy.half_life:  # what has started in the last cycle counts since then
                snapshot = replace(snapshot, past_shares=self._past_shares())
            foreign = self._foreign_pools()
            cycle = ObservedCycle(
                snapshot=split_snapshot(snapshot, foreign).native if foreign else snapshot,
                decisions=native_decisions(decisions, snapshot, foreign) if foreign else decisions,
                time=decided_at,
                names=self._pod_names(),
                part_labels=self._divided_pools(),
            )
            return 200, msgspec.json.encode(answer_question(decoded, cycle, max(decided_at, self._clock.time())))
        except msgspec.DecodeError as error:
            return 422, msgspec.json.encode(Refusal.from_error(InputError(f"the question is not valid: {error}")))
        except VkgatewayError as error:
            return 422, msgspec.json.encode(Refusal.from_error(error))


def running_usage(
    snapshot: Snapshot,
    decisions: Decisions,
    names: Names,
    now: float,
    *,
    uid_of: Callable[[str], str],
    with_ending: bool = False,
) -> Iterator[UsageRecord]:
    """Yield the usage until now of the named pods that hold resources; `with_ending`: terminating pods included.

    `uid_of` returns the UID of the Tenant of a name.
    """
    idle = (PodState.WAITING,) if with_ending else (PodState.WAITING, PodState.ENDING)
    promoted = {uid for promote in decisions.promotes for uid in promote.pods}
    for gang in snapshot.gangs:
        for pod in gang.pods:
            key = names.get(pod.uid)
            if pod.pool is None or key is None or pod.state in idle:
                continue
            for resource, amount in pod.shape.requests:
                if is_extended(resource):
                    yield UsageRecord(
                        tenant=gang.tenant,
                        tenant_uid=uid_of(gang.tenant),
                        namespace=key[0],
                        pod=key[1],
                        gang=gang.id,
                        band=gang.band.value,
                        borrowed=pod.borrowed and pod.uid not in promoted,
                        pool=pod.pool[1],
                        compute_cluster=pod.pool[0],
                        resource=resource,
                        units=amount / 1000,
                        start=pod.since,
                        end=now,
                    )
