"""What the gateway knows of one tenant while it runs, and how it tells that in the object's status and events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import structlog

from vkgateway.gateway.events import EventRecorder
from vkgateway.gateway.interfaces import ApiServerAccess
from vkgateway.gateway.metrics import ONBOARDING
from vkgateway.gateway.status import (
    IMPOSSIBLE_REASON,
    QUIET_REASONS,
    TAKEN_REASON,
    TenantFacts,
    Verdict,
    changed_conditions,
    false_verdict,
    status_patch,
    tenant_status,
    unknown_verdict,
    verdict_from_condition,
)
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import TENANTS
from vkgateway.model.api import (
    DATASTORE_WRITABLE,
    GUARANTEE_KEPT,
    ApiServerStatus,
    Tenant,
    TenantPolicy,
    TenantSpec,
    TenantStatus,
)
from vkgateway.model.errors import ConflictError, InputError, VkgatewayError
from vkgateway.model.objects import Condition

log = structlog.get_logger(__name__)

Stage = Literal["accepted", "control_plane", "virtual_nodes", "deleting"]

STARTUP_GRACE_SECONDS = 10.0
"""A tenant that was Ready when the gateway began is not called anything less for so long without a failure."""


@dataclass(slots=True, kw_only=True)
class TenantRecord:
    """Lives as long as the object; `stage` says which condition a failure belongs to."""

    uid: str
    status: TenantStatus
    facts: TenantFacts
    seen_at: float
    was_ready: bool
    generation: int
    """Of the spec that was looked at last: what is told speaks of it, also where a newer one is there by then."""
    stage: Stage = "accepted"
    access: ApiServerAccess | None = None
    provisioned_spec: TenantSpec | None = None
    probe_due: float = 0.0
    failed_probes: int = 0
    """Probes of its API server in a row that were not answered well."""
    renewal_due: float = 0.0
    """When the control plane's certificates are looked at again (monotonic seconds)."""
    renewal_failing_since: float | None = None
    """Since when they could not be looked at (monotonic seconds); None: they could the last time."""
    renewal_error: str = ""
    restore_due: float = 0.0
    """When the objects that are kept are looked at again (monotonic seconds)."""
    restored_policy: TenantPolicy | None = None
    """The policy that these objects were last checked against."""
    recorded_spec: TenantSpec | None = None
    """The accepted spec that the object is known to carry, beside our finalizer."""
    recorded_version: str = ""
    """The version of the object in which we wrote that; empty until we did."""
    finalizer_removed: bool = False
    """Our finalizer is off; only the object's end is waited for."""
    _timeout: asyncio.Timeout | None = None
    _interrupted: bool = False

    @classmethod
    def from_tenant(cls, tenant: Tenant, *, now: float) -> TenantRecord:
        """Begin with what the object says of itself."""
        return cls(
            uid=tenant.metadata.uid,
            status=tenant.status,
            facts=TenantFacts(
                guarantee=verdict_from_condition(tenant.status.conditions, GUARANTEE_KEPT),
                datastore=verdict_from_condition(tenant.status.conditions, DATASTORE_WRITABLE),
                api_server=tenant.status.api_server,
                pools=tenant.status.pools,
            ),
            seen_at=now,
            was_ready=tenant.status.phase == "Ready",
            generation=tenant.metadata.generation,
        )

    @contextlib.asynccontextmanager
    async def interrupt_on_deletion(self) -> AsyncIterator[None]:
        """Do what may take minutes and is in vain for a tenant that is deleted; raises Interrupted then."""
        try:
            async with asyncio.timeout(0 if self._interrupted else None) as self._timeout:
                yield
        except TimeoutError as error:
            raise Interrupted("the tenant is being deleted") from error
        finally:
            self._timeout = None

    def request_interrupt(self) -> None:
        """End what goes on in an `interrupt_on_deletion` block, and let none begin any more."""
        self._interrupted = True
        making, self._timeout = self._timeout, None
        if making is not None:
            making.reschedule(asyncio.get_running_loop().time())

    def update_facts(self, **facts: Any) -> None:
        """Take over new facts by their names in `TenantFacts`."""
        self.facts = replace(self.facts, **facts)

    def record_error(self, error: Exception) -> None:
        """Note a failure where it belongs."""
        if self.stage == "deleting":
            self.update_facts(deleting=Verdict("False", "DeletionStuck", str(error), is_failure=True))
        elif self.stage == "accepted":
            # Nothing was decided against it: False would say so.
            self.update_facts(accepted=unknown_verdict(_error_reason(error), str(error)))
        else:
            self.update_facts(**{self.stage: false_verdict(_error_reason(error), str(error))})


def _error_reason(error: Exception) -> str:
    """Return one CamelCase word for a failure; the first two mean that waiting will not help."""
    if isinstance(error, InputError):
        return IMPOSSIBLE_REASON
    if isinstance(error, ConflictError):
        return TAKEN_REASON
    if isinstance(error, VkgatewayError):
        return type(error).__name__.removesuffix("Error") or "Failed"
    return "InternalError"


class StatusNotWritten(VkgatewayError):  # noqa: N818 - named by the reason
    """A status could not be written: trouble of the management cluster, not of the tenant."""


class Interrupted(VkgatewayError):  # noqa: N818 - named by what happened
    """The tenant was deleted while its control plane was being made; its removal comes next."""


class StatusWriter:
    """Writes statuses where they changed, and an event for each condition that turned."""

    def __init__(
        self,
        management: Client,
        recorder: EventRecorder,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._management = management
        self._recorder = recorder
        self._clock = clock
        self._monotonic = monotonic

    async def write_status(self, tenant: Tenant, record: TenantRecord) -> None:
        """Bring the object's status up to what is known. A tenant that is gone meanwhile is no error."""
        old = record.status
        new = tenant_status(record.facts, old=old, generation=record.generation, now=self._clock())
        if self._suppress_at_startup(record, new):
            return
        change = status_patch(old, new)
        if not change:
            return
        body = {"metadata": {"uid": record.uid}, "status": change}
        try:
            await self._management.patch(TENANTS, tenant.metadata.name, body, subresource="status")
        except (errors.NotFound, errors.Conflict):  # it is gone, and there may be another of its name
            return
        except errors.ApiError as error:
            raise StatusNotWritten(f"the status of tenant {tenant.metadata.name!r} was not written: {error}") from error
        record.status = new
        self._observe_onboarding(record, old=old)
        for one in changed_conditions(old.conditions, new.conditions, quiet=QUIET_REASONS):
            await self._emit_event(tenant, one, record=record)

    async def try_write_status(self, tenant: Tenant, record: TenantRecord) -> None:
        """Tell what goes on; work that is under way does not stop where that cannot be written."""
        try:
            await self.write_status(tenant, record)
        except StatusNotWritten as error:
            log.warning("going on untold", tenant=tenant.metadata.name, error=str(error))

    def _suppress_at_startup(self, record: TenantRecord, new: TenantStatus) -> bool:
        """Whether to keep quiet: after a start of the gateway all is as it was until something shows otherwise."""
        if not record.was_ready:
            return False
        facts = record.facts
        told = (facts.accepted, facts.control_plane, facts.virtual_nodes)
        if (
            new.phase in {"Ready", "Deleting"}
            or any(one.is_failure for one in told)
            or self._monotonic() - record.seen_at > STARTUP_GRACE_SECONDS
        ):
            record.was_ready = False
            return False
        return True

    def _observe_onboarding(self, record: TenantRecord, *, old: TenantStatus) -> None:
        if record.status.phase == "Ready" and old.phase in {"Pending", "Provisioning"}:
            ONBOARDING.observe(self._monotonic() - record.seen_at)

    async def _emit_event(self, tenant: Tenant, one: Condition, *, record: TenantRecord) -> None:
        verdict = record.facts.condition_verdicts().get(one.type)
        await self._recorder.emit(
            TENANTS,
            tenant.metadata,
            reason=one.reason,
            message=f"{one.type}: {one.message or one.reason}",
            kind="Warning" if verdict is not None and verdict.is_failure else "Normal",
        )


def api_server_status(access: ApiServerAccess, *, version: str) -> ApiServerStatus:
    """Say where the tenant's API server is, and of which release."""
    return ApiServerStatus(url=access.url, port=access.port, version=version)
