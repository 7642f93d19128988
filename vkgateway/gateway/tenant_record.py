"""What the gateway knows of one tenant while it runs, and how it tells that in the object's status and events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import structlog

from vkgateway.gateway.events import Recorder
from vkgateway.gateway.metrics import ONBOARDING
from vkgateway.gateway.planes import Access
from vkgateway.gateway.status import (
    IMPOSSIBLE,
    QUIET,
    TAKEN,
    TenantFacts,
    Verdict,
    changed,
    difference,
    failing,
    tenant_status,
    told_before,
    waiting,
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

SETTLING_SECONDS = 10.0
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
    access: Access | None = None
    built_from: TenantSpec | None = None
    probe_due: float = 0.0
    unanswered: int = 0
    """Probes of its API server in a row that were not answered well."""
    renewal_due: float = 0.0
    """When the control plane's certificates are looked at again (monotonic seconds)."""
    unrenewed_since: float | None = None
    """Since when they could not be looked at (monotonic seconds); None: they could the last time."""
    unrenewed_why: str = ""
    keeping_due: float = 0.0
    """When the objects that are kept are looked at again (monotonic seconds)."""
    kept_for: TenantPolicy | None = None
    """The policy that these objects were last checked against."""
    recorded: TenantSpec | None = None
    """The accepted spec that the object is known to carry, beside our finalizer."""
    recorded_in: str = ""
    """The version of the object in which we wrote that; empty until we did."""
    released: bool = False
    """Our finalizer is off; only the object's end is waited for."""
    _making: asyncio.Timeout | None = None
    _in_vain: bool = False

    @classmethod
    def of(cls, tenant: Tenant, *, now: float) -> TenantRecord:
        """Begin with what the object says of itself."""
        return cls(
            uid=tenant.metadata.uid,
            status=tenant.status,
            facts=TenantFacts(
                guarantee=told_before(tenant.status.conditions, GUARANTEE_KEPT),
                datastore=told_before(tenant.status.conditions, DATASTORE_WRITABLE),
                api_server=tenant.status.api_server,
                pools=tenant.status.pools,
            ),
            seen_at=now,
            was_ready=tenant.status.phase == "Ready",
            generation=tenant.metadata.generation,
        )

    @contextlib.asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """Do what may take minutes and is in vain for a tenant that is deleted; raises Interrupted then."""
        try:
            async with asyncio.timeout(0 if self._in_vain else None) as self._making:
                yield
        except TimeoutError as error:
            raise Interrupted("the tenant is being deleted") from error
        finally:
            self._making = None

    def interrupt(self) -> None:
        """End what goes on in an `interruptible` block, and let none begin any more."""
        self._in_vain = True
        making, self._making = self._making, None
        if making is not None:
            making.reschedule(asyncio.get_running_loop().time())

    def learn(self, **facts: Any) -> None:
        """Take over new facts by their names in `TenantFacts`."""
        self.facts = replace(self.facts, **facts)

    def trouble(self, error: Exception) -> None:
        """Note a failure where it belongs."""
        if self.stage == "deleting":
            self.learn(deleting=Verdict("False", "DeletionStuck", str(error), trouble=True))
        elif self.stage == "accepted":
            # Nothing was decided against it: False would say so.
            self.learn(accepted=waiting(_reason(error), str(error)))
        else:
            self.learn(**{self.stage: failing(_reason(error), str(error))})


def _reason(error: Exception) -> str:
    """Return one CamelCase word for a failure; the first two mean that waiting will not help."""
    if isinstance(error, InputError):
        return IMPOSSIBLE
    if isinstance(error, ConflictError):
        return TAKEN
    if isinstance(error, VkgatewayError):
        return type(error).__name__.removesuffix("Error") or "Failed"
    return "InternalError"


class NotTold(VkgatewayError):  # noqa: N818 - named by the reason
    """A status could not be written: trouble of the management cluster, not of the tenant."""


class Interrupted(VkgatewayError):  # noqa: N818 - named by what happened
    """The tenant was deleted while its control plane was being made; its removal comes next."""


class Teller:
    """Writes statuses where they changed, and an event for each condition that turned."""

    def __init__(
        self,
        management: Client,
        recorder: Recorder,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._management = management
        self._recorder = recorder
        self._clock = clock
        self._monotonic = monotonic

    async def tell(self, tenant: Tenant, record: TenantRecord) -> None:
        """Bring the object's status up to what is known. A tenant that is gone meanwhile is no error."""
        old = record.status
        new = tenant_status(record.facts, old=old, generation=record.generation, now=self._clock())
        if self._settling(record, new):
            return
        change = difference(old, new)
        if not change:
            return
        body = {"metadata": {"uid": record.uid}, "status": change}
        try:
            await self._management.patch(TENANTS, tenant.metadata.name, body, subresource="status")
        except (errors.NotFound, errors.Conflict):  # it is gone, and there may be another of its name
            return
        except errors.ApiError as error:
            raise NotTold(f"the status of tenant {tenant.metadata.name!r} was not written: {error}") from error
        record.status = new
        self._measure(record, old=old)
        for one in changed(old.conditions, new.conditions, quiet=QUIET):
            await self._event(tenant, one, record=record)

    async def try_to_tell(self, tenant: Tenant, record: TenantRecord) -> None:
        """Tell what goes on; work that is under way does not stop where that cannot be written."""
        try:
            await self.tell(tenant, record)
        except NotTold as error:
            log.warning("going on untold", tenant=tenant.metadata.name, error=str(error))

    def _settling(self, record: TenantRecord, new: TenantStatus) -> bool:
        """Whether to keep quiet: after a start of the gateway all is as it was until something shows otherwise."""
        if not record.was_ready:
            return False
        facts = record.facts
        told = (facts.accepted, facts.control_plane, facts.virtual_nodes)
        if (
            new.phase in {"Ready", "Deleting"}
            or any(one.trouble for one in told)
            or self._monotonic() - record.seen_at > SETTLING_SECONDS
        ):
            record.was_ready = False
            return False
        return True

    def _measure(self, record: TenantRecord, *, old: TenantStatus) -> None:
        if record.status.phase == "Ready" and old.phase in {"Pending", "Provisioning"}:
            ONBOARDING.observe(self._monotonic() - record.seen_at)

    async def _event(self, tenant: Tenant, one: Condition, *, record: TenantRecord) -> None:
        verdict = record.facts.verdicts().get(one.type)
        await self._recorder.emit(
            TENANTS,
            tenant.metadata,
            reason=one.reason,
            message=f"{one.type}: {one.message or one.reason}",
            kind="Warning" if verdict is not None and verdict.trouble else "Normal",
        )


def api_server(access: Access, *, version: str) -> ApiServerStatus:
    """Say where the tenant's API server is, and of which release."""
    return ApiServerStatus(url=access.url, port=access.port, version=version)
