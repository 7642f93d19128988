"""Failing of tenant pods, with a backoff: a controller that replaces failed pods must not flood the cluster."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from vkgateway.kinds.pods.pod_context import PodContext, decode, tenant_pod_of
from vkgateway.kinds.pods.policy.rules import Refusal
from vkgateway.kinds.pods.reporter import PodReporter
from vkgateway.kinds.pods.translation.conditions import last_condition_change
from vkgateway.kinds.pods.translation.to_tenant import Disruption, failed_status, final_status
from vkgateway.kinds.tenant_scope import TenantCache, TenantScope
from vkgateway.runtime.views.pods import Owner, TenantPodView

_FREE_FAILURES: Final = 3
"""Consecutive failures of an owner without a delay: users see their mistakes, and Jobs count their retries."""
_FIRST_DELAY: Final = 10.0
_MAX_DELAY: Final = 300.0
_REMEMBERED_SECONDS: Final = 600.0
_OWNERS_MAX: Final = 1024
_FAILURES_MAX: Final = 16
"""Failures retained per owner; with this number of failures, the delay is at its maximum."""
LOST: Final = Disruption(
    reason="Lost",
    message="the pod has run, but its compute pod no longer exists; it is not started a second time",
)


class FailureDelayedError(Exception):
    """The pod fails later, because too many pods of its controller have just failed. It is reconciled again then."""


class FailureBackoff:
    """Failure times by owner, in seconds of the caller's clock.

    `earlier_failures` are owners and times of failures before a restart; they are read once, on first use. At most 10
    pods of an owner fail in any 5 minutes.
    """

    def __init__(self, earlier_failures: Iterable[tuple[Owner, float]] = ()) -> None:
        self._earlier_failures: Iterable[tuple[Owner, float]] | None = earlier_failures
        self._failures: OrderedDict[Owner, deque[float]] = OrderedDict()

    def remaining_delay(self, owner: Owner, *, now: float) -> float:
        """Return the seconds until a pod of the owner may fail; 0 means now."""
        self._load_earlier(now)
        recent = [time for time in self._failures.get(owner, ()) if now - time < _REMEMBERED_SECONDS]
        if len(recent) < _FREE_FAILURES:
            return 0.0
        delay = min(_FIRST_DELAY * 2.0 ** (len(recent) - _FREE_FAILURES), _MAX_DELAY)
        return max(0.0, max(recent) + delay - now)

    def record_failure(self, owner: Owner, *, now: float) -> None:
        """Record the failure of a pod of the owner."""
        self._load_earlier(now)
        self._add_failure(owner, now)
        while len(self._failures) > _OWNERS_MAX or self._has_expired(now):
            self._failures.popitem(last=False)

    def _load_earlier(self, now: float) -> None:
        if self._earlier_failures is None:
            return
        before, self._earlier_failures = self._earlier_failures, None
        for owner, time in sorted(before, key=lambda failure: failure[1]):
            self._add_failure(owner, min(time, now))

    def _add_failure(self, owner: Owner, time: float) -> None:
        self._failures.setdefault(owner, deque(maxlen=_FAILURES_MAX)).append(time)
        self._failures.move_to_end(owner)

    def _has_expired(self, now: float) -> bool:
        oldest = next(iter(self._failures.values()), None)
        return oldest is not None and now - oldest[-1] >= _REMEMBERED_SECONDS


class PodFailures:
    """Failing of one tenant's pods. Consecutive failures of one owner's pods are delayed, see `FailureBackoff`."""

    def __init__(self, scope: TenantScope, reporter: PodReporter) -> None:
        self._scope = scope
        self._reporter = reporter
        self._backoff = FailureBackoff(_earlier_failures(scope.cache))

    async def refuse_pod(self, tenant_pod: TenantPodView, refusals: Sequence[Refusal]) -> None:
        """Fail a pod with the first of the rules that it violates. Raises FailureDelayedError."""
        first, *more = refusals
        suffix = f" (and {len(more)} more)" if more else ""
        await self._fail_pod(tenant_pod, "PolicyRefused", f"{first.message}{suffix}")

    async def fail_lost(self, context: PodContext) -> None:
        """Fail a pod that has run and whose compute pod no longer exists. Raises FailureDelayedError."""
        tenant_pod = tenant_pod_of(context)
        await self.check_backoff(tenant_pod, LOST.reason, LOST.message)
        status = msgspec.json.decode(tenant_pod.status)
        patch = final_status({"status": status}, status, disruption=LOST, now=self._scope.clock.now())
        if patch is not None:
            await self._reporter.patch_status(tenant_pod.metadata, patch, status)
            self._scope.meter.count_failed(LOST.reason)
            await self._scope.events.emit_event(tenant_pod.metadata, reason=LOST.reason, message=LOST.message)

    async def fail_pod(self, context: PodContext, reason: str, message: str) -> None:
        """Fail a pod that never ran in the compute cluster. Raises FailureDelayedError."""
        await self._fail_pod(tenant_pod_of(context), reason, message)

    async def check_backoff(self, tenant_pod: TenantPodView, reason: str, message: str) -> None:
        """Record a failure if the pod may fail now; otherwise report why it waits.

        Raises:
            FailureDelayedError: the pod is reconciled again when it may fail.
        """
        if tenant_pod.is_terminal or tenant_pod.metadata.deletion_timestamp is not None:
            return
        now = self._scope.clock.time()
        wait = self._backoff.remaining_delay(tenant_pod.owner, now=now)
        if wait <= 0:
            self._backoff.record_failure(tenant_pod.owner, now=now)
            return
        self._scope.enqueue_pod(tenant_pod.metadata.key, wait)
        delay_reason = f"the pod fails later, because other pods of {tenant_pod.owner[1]} have just failed"
        await self._reporter.report_pod_waiting(tenant_pod, reason, f"{message}; {delay_reason}", kind="Warning")
        raise FailureDelayedError

    async def _fail_pod(self, tenant_pod: TenantPodView, reason: str, message: str) -> None:
        await self.check_backoff(tenant_pod, reason, message)
        current_status = msgspec.json.decode(tenant_pod.status)
        patch = failed_status(
            reason,
            message,
            tenant_status=current_status,
            observed=tenant_pod.metadata.generation,
            now=self._scope.clock.now(),
        )
        if patch is not None:
            await self._reporter.patch_status(tenant_pod.metadata, patch, current_status)
            self._scope.meter.count_failed(reason)
            await self._scope.events.emit_event(tenant_pod.metadata, reason=reason, message=message)


def _earlier_failures(cache: TenantCache) -> Iterator[tuple[Owner, float]]:
    """Yield the failures that the tenant's pods still show: of each that never ran, the time of its last condition."""
    for view in cache.pods.store.values():
        if view.phase == "Failed" and not view.has_run:
            yield view.owner, last_condition_change(decode(view.status), since=view.metadata.creation_timestamp)
