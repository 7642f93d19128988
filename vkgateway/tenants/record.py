"""In-memory record of one tenant, and the writer of its status and events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import structlog

from vkgateway.api.errors import ConflictError, InputError, VkgatewayError
from vkgateway.api.objects import Condition
from vkgateway.api.types import (
    DATASTORE_WRITABLE,
    GUARANTEE_KEPT,
    PUBLISHED,
    SPEC_EFFECTIVE,
    WITHIN_BUDGET,
    ApiServerStatus,
    Tenant,
    TenantPolicy,
    TenantSpec,
    TenantStatus,
)
from vkgateway.clusters.status import (
    IMPOSSIBLE_REASON,
    QUIET_REASONS,
    TAKEN_REASON,
    TenantFacts,
    Verdict,
    changed_conditions,
    false_verdict,
    status_patch,
    tenant_status,
    true_verdict,
    unknown_verdict,
    verdict_from_condition,
)
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.kube.resources import TENANTS
from vkgateway.runtime.events import EventRecorder
from vkgateway.tenants.interfaces import ApiServerAccess
from vkgateway.tenants.metrics import ONBOARDING

log = structlog.get_logger(__name__)

Stage = Literal["accepted", "control_plane", "virtual_nodes", "deleting"]

STARTUP_GRACE_SECONDS = 10.0
"""Time after the gateway's start during which a Ready tenant keeps its status unless there is a failure."""


@dataclass(slots=True, kw_only=True)
class TenantRecord:
    """State of one tenant for the lifetime of its object; `stage` selects the condition that reports a failure."""

    uid: str
    status: TenantStatus
    facts: TenantFacts
    seen_at: float
    was_ready: bool
    generation: int
    """Generation of the last reconciled spec, to which the status refers even if a newer one exists."""
    stage: Stage = "accepted"
    access: ApiServerAccess | None = None
    provisioned_spec: TenantSpec | None = None
    probe_due: float = 0.0
    failed_probes: int = 0
    """Consecutive failed probes of the API server."""
    renewal_due: float = 0.0
    """When the control plane's certificates are checked next (monotonic seconds)."""
    renewal_failing_since: float | None = None
    """Since when certificate checks fail (monotonic seconds); None if the last one succeeded."""
    renewal_error: str = ""
    is_repair_due: bool = False
    """Whether another client changed the control plane since it was last provisioned."""
    publication_due: float = 0.0
    """When the exposure outside the management cluster is checked next (monotonic seconds)."""
    restore_due: float = 0.0
    """When the kept objects are restored next (monotonic seconds)."""
    restored_policy: TenantPolicy | None = None
    """Policy of the last restore."""
    recorded_spec: TenantSpec | None = None
    """The accepted spec that the object carries together with the finalizer."""
    recorded_version: str = ""
    """The resource version of the write of `recorded_spec`; empty before it."""
    is_kept: bool = False
    """Only the tenant's data is left, until it is deleted or restored."""
    finalizer_removed: bool = False
    """The finalizer is removed; the object is about to disappear."""
    _timeout: asyncio.Timeout | None = None
    _interrupted: bool = False

    @classmethod
    def from_tenant(cls, tenant: Tenant, *, now: float) -> TenantRecord:
        """Return the initial record from the object's status."""
        return cls(
            uid=tenant.metadata.uid,
            status=tenant.status,
            facts=TenantFacts(
                guarantee=verdict_from_condition(tenant.status.conditions, GUARANTEE_KEPT),
                budget=verdict_from_condition(tenant.status.conditions, WITHIN_BUDGET),
                datastore=verdict_from_condition(tenant.status.conditions, DATASTORE_WRITABLE),
                published=verdict_from_condition(tenant.status.conditions, PUBLISHED),
                effect=verdict_from_condition(tenant.status.conditions, SPEC_EFFECTIVE),
                api_server=tenant.status.api_server,
                pools=tenant.status.pools,
            ),
            seen_at=now,
            was_ready=tenant.status.phase == "Ready",
            generation=tenant.metadata.generation,
        )

    @contextlib.asynccontextmanager
    async def interrupt_on_deletion(self) -> AsyncIterator[None]:
        """Run long work that is useless once the tenant is deleted. Raises Interrupted on deletion.

        Raises Restarted if another client changes the control plane meanwhile.
        """
        try:
            async with asyncio.timeout(0 if self._interrupted else None) as self._timeout:
                yield
        except TimeoutError as error:
            if not self._interrupted:
                raise Restarted from error
            raise Interrupted("the tenant is being deleted") from error
        finally:
            self._timeout = None

    @property
    def is_interrupted(self) -> bool:
        """Whether work on this tenant was useless once: a tenant that is restored needs another record."""
        return self._interrupted

    def request_interrupt(self) -> None:
        """Interrupt the current `interrupt_on_deletion` block and all later ones."""
        self._interrupted = True
        self._end_block()

    def request_repair(self) -> None:
        """Request a repair of the control plane; work on it starts again, because it may wait for the changed part."""
        self.is_repair_due = True
        self._end_block()

    def _end_block(self) -> None:
        timeout, self._timeout = self._timeout, None
        if timeout is not None:
            timeout.reschedule(asyncio.get_running_loop().time())

    def update_facts(self, **facts: Any) -> None:
        """Replace facts, given by their names in `TenantFacts`."""
        self.facts = replace(self.facts, **facts)

    def record_error(self, error: Exception) -> None:
        """Record a failure in the condition of the current stage."""
        if self.stage == "deleting":
            self.update_facts(deleting=Verdict("False", "DeletionStuck", _message_text(error), is_failure=True))
        elif self.stage == "accepted":
            # Unknown, because False means that the spec was refused.
            self.update_facts(accepted=unknown_verdict(_error_reason(error), _message_text(error)))
        else:
            self.update_facts(**{self.stage: false_verdict(_error_reason(error), _message_text(error))})


def _message_text(error: Exception) -> str:
    return error.advice if isinstance(error, VkgatewayError) else str(error)


def _error_reason(error: Exception) -> str:
    """Return the CamelCase reason of a failure; IMPOSSIBLE_REASON and TAKEN_REASON mean that waiting does not help."""
    if isinstance(error, InputError):
        return IMPOSSIBLE_REASON
    if isinstance(error, ConflictError):
        return TAKEN_REASON
    if isinstance(error, VkgatewayError):
        return type(error).__name__.removesuffix("Error") or "Failed"
    return "InternalError"


class StatusNotWritten(VkgatewayError):  # noqa: N818 - named by the reason
    """Failed write of a status, which is a problem of the management cluster, not of the tenant."""


class Restarted(Exception):  # noqa: N818 - named by the reason
    """Work on a control plane that another client changed meanwhile, so that it must start again."""


class Interrupted(VkgatewayError):  # noqa: N818 - named by what happened
    """The tenant was deleted while its control plane was being provisioned."""


class StatusWriter:
    """Writer of changed statuses, and of an event for each changed condition."""

    def __init__(
        self,
        management: Client,
        recorder: EventRecorder,
        *,
        clock: Clock,
    ) -> None:
        self._management = management
        self._recorder = recorder
        self._clock = clock

    async def write_status(self, tenant: Tenant, record: TenantRecord) -> None:
        """Write the status if it changed; a tenant that was deleted meanwhile is no error."""
        old = record.status
        new = tenant_status(record.facts, old=old, generation=record.generation, now=self._clock.now())
        if self._suppress_at_startup(record, new):
            return
        change = status_patch(old, new)
        if not change:
            return
        try:
            await self._management.patch_status(TENANTS, tenant.metadata, change)
        except (errors.NotFound, errors.Conflict):  # the object was deleted or replaced
            return
        except errors.ApiError as error:
            raise StatusNotWritten(f"the status of tenant {tenant.metadata.name!r} was not written: {error}") from error
        record.status = new
        self._observe_onboarding(record, old=old)
        for condition in changed_conditions(old.conditions, new.conditions, quiet=QUIET_REASONS):
            await self._emit_event(tenant, condition, record=record)

    async def try_write_status(self, tenant: Tenant, record: TenantRecord) -> None:
        """Write the status during long work, which continues if the write fails."""
        try:
            await self.write_status(tenant, record)
        except StatusNotWritten as error:
            log.warning("status not written; continuing", tenant=tenant.metadata.name, error=str(error))

    def _suppress_at_startup(self, record: TenantRecord, new: TenantStatus) -> bool:
        """Return whether to keep the status as it is: after a restart, the state may not be known yet."""
        if not record.was_ready:
            return False
        facts = record.facts
        verdicts = (facts.accepted, facts.control_plane, facts.virtual_nodes)
        if (
            new.phase in {"Ready", "Deleting"}
            or any(verdict.is_failure for verdict in verdicts)
            or self._clock.monotonic() - record.seen_at > STARTUP_GRACE_SECONDS
        ):
            record.was_ready = False
            return False
        return True

    def _observe_onboarding(self, record: TenantRecord, *, old: TenantStatus) -> None:
        if record.status.phase == "Ready" and old.phase in {"Pending", "Provisioning"}:
            ONBOARDING.observe(self._clock.monotonic() - record.seen_at)

    async def _emit_event(self, tenant: Tenant, condition: Condition, *, record: TenantRecord) -> None:
        verdict = record.facts.condition_verdicts().get(condition.type)
        await self._recorder.emit_event(
            tenant.metadata,
            about=TENANTS,
            reason=condition.reason,
            message=f"{condition.type}: {condition.message or condition.reason}",
            kind="Warning" if verdict is not None and verdict.is_failure else "Normal",
        )


def api_server_status(access: ApiServerAccess, *, version: str) -> ApiServerStatus:
    """Return the status of the tenant's API server."""
    port = urlsplit(access.shown_url).port or access.port
    return ApiServerStatus(url=access.shown_url, port=port, version=version)


def published_verdict(access: ApiServerAccess, *, previous: Verdict | None) -> Verdict | None:
    """Return whether clients outside the management cluster reach the API server; None if they need not.

    An address takes time, so a missing one is no failure.
    """
    publication = access.publication
    if publication.type == "ClusterIP":
        return None
    if not publication.is_known:
        return previous
    if publication.url:
        return true_verdict("Published", f"clients connect to {publication.url}")
    is_failure = publication.reason != "AddressPending"
    return Verdict("False", publication.reason, publication.message, is_failure=is_failure)
