"""Keeps each tenant's control plane up: remembered after a restart, made, probed, and renewed before it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import msgspec
import structlog

from vkgateway.gateway.planes import Access, ControlPlanes, OnStep, Runtimes
from vkgateway.gateway.status import Verdict, failing, passed, waiting
from vkgateway.gateway.tenant_record import Interrupted, Teller, TenantRecord, api_server
from vkgateway.kube import errors
from vkgateway.kube.backoff import spread
from vkgateway.model.api import Tenant, TenantPolicy, TenantSpec
from vkgateway.model.errors import UnavailableError, VkgatewayError

log = structlog.get_logger(__name__)

PROBE_SECONDS = 10.0
PROBE_TIMEOUT = 5.0
PROBES_IN_VAIN = 3
"""So many in a row, and the control plane is gone through. One that is busy misses a probe now and then: etcd must
answer within two seconds for an API server to be ready."""
PROBE_AGAIN_SECONDS = 3.0
RETELL_SECONDS = 3.0
RENEW_SECONDS = 24 * 3600.0
"""How often certificates that near their end are looked for; they have months left then."""
RENEW_AGAIN_SECONDS = 600.0
KEEP_SECONDS = 600.0
"""How often the objects that are kept are looked at: so long a tenant may be without them."""
UNRENEWED_SECONDS = 24 * 3600.0
"""For so long it is no trouble of the tenant's that they cannot be looked at; from then on it is told."""
RECALLED_SECONDS = 300.0
"""How soon after a restart of the gateway the steps of making a control plane are gone through: so long, or up to twice
so long, that not all tenants' come at once."""
PROVISION_TIMEOUT = 180.0
"""One attempt at a control plane; the steps it has done stay done."""


class Upkeep:
    """What is done for all tenants' control planes; `concurrency` is how many are made at the same time."""

    def __init__(
        self,
        planes: ControlPlanes,
        *,
        teller: Teller,
        runtimes: Runtimes,
        concurrency: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._planes = planes
        self._teller = teller
        self._runtimes = runtimes
        self._slots = asyncio.Semaphore(concurrency)
        self._monotonic = monotonic

    async def ensure(self, tenant: Tenant, record: TenantRecord) -> Access:
        """Return the way to a control plane as the spec says; `record` learns what becomes of it.

        Where it cannot be made so the failure is raised, and `record` has the way to the one there is, if it answers.
        """
        record.stage = "control_plane"
        access = await self._healthy(tenant, record)
        if access is None and record.access is None and record.was_ready:
            access = await self._recall(tenant, record)
        if access is None:
            try:
                access = await self._provision(tenant, record)
            except Interrupted:
                raise
            except VkgatewayError:
                with contextlib.suppress(VkgatewayError):
                    record.access = record.access or await self._answering(tenant)
                raise
        elif self._monotonic() >= record.renewal_due:
            access = await self._renew(tenant, record, access)
        elif self._monotonic() >= record.keeping_due or record.kept_for != tenant.spec.policy:
            await self._keep(tenant, record, access)
        served = api_server(access, version=tenant.spec.kubernetes_version)
        record.learn(control_plane=self._standing(record, access), api_server=served)
        return access

    def _standing(self, record: TenantRecord, access: Access) -> Verdict:
        """Say how a control plane stands that answers."""
        if record.unrenewed_since is None or self._monotonic() - record.unrenewed_since < UNRENEWED_SECONDS:
            return passed("Serving", f"serves at {access.url}")
        return failing("NotRenewed", f"serves at {access.url}, until its certificates end: {record.unrenewed_why}")

    async def _healthy(self, tenant: Tenant, record: TenantRecord) -> Access | None:
        """Return the access if the control plane is as wanted and answers; asked once every PROBE_SECONDS."""
        access = record.access
        if access is None or record.built_from != _shape(tenant.spec):
            return None
        if self._monotonic() < record.probe_due:
            return access
        try:
            await access.client.request("GET", "/readyz", timeout=PROBE_TIMEOUT)
        except errors.ApiError as error:
            why = _unready(error)
            record.unanswered += 1
            log.warning("tenant's API server is not ready", tenant=tenant.metadata.name, why=why)
            if record.unanswered < PROBES_IN_VAIN:
                record.probe_due = self._monotonic() + PROBE_AGAIN_SECONDS
                return access
            record.learn(control_plane=failing("Unreachable", f"{access.url}: {why}"))
            await self._teller.tell(tenant, record)
            return None
        record.unanswered = 0
        record.probe_due = self._monotonic() + PROBE_SECONDS * 0.9
        return access

    async def _recall(self, tenant: Tenant, record: TenantRecord) -> Access | None:
        """Go on with a control plane that was Ready before this gateway began, if it still answers.

        A gateway that comes back must find every difference within seconds, for all tenants at once; so the steps of
        making a control plane are gone through a while later, in silence.
        """
        if tenant.status.observed_generation != tenant.metadata.generation:
            return None
        access = await self._answering(tenant)
        if access is None:
            return None
        record.access, record.built_from, record.kept_for = access, _shape(tenant.spec), tenant.spec.policy
        record.probe_due = self._monotonic() + PROBE_SECONDS * 0.9
        record.renewal_due = self._monotonic() + spread(RECALLED_SECONDS)
        record.keeping_due = record.renewal_due
        return access

    async def _answering(self, tenant: Tenant) -> Access | None:
        """Return the way to the control plane as it was made last, if it answers."""
        access = await self._planes.recall(tenant)
        if access is None:
            return None
        try:
            await access.client.request("GET", "/readyz", timeout=PROBE_TIMEOUT)
        except errors.ApiError:
            await access.client.close()
            return None
        return access

    async def _provision(self, tenant: Tenant, record: TenantRecord) -> Access:
        begun = self._monotonic()

        async def on_step(reason: str, message: str) -> None:
            # A failure stays told while its next attempt goes through the steps before it.
            if not record.facts.control_plane.trouble or self._monotonic() - begun > RETELL_SECONDS:
                record.learn(control_plane=waiting(reason, message))
                await self._teller.try_to_tell(tenant, record)

        return await self._build(tenant, record, on_step=on_step)

    async def _renew(self, tenant: Tenant, record: TenantRecord, access: Access) -> Access:
        """Go through the steps for what only time changes: certificates that near their end.

        Nobody hears of it, and a failure is no trouble of the tenant's until it has lasted: there is time to try
        again.
        """
        try:
            return await self._build(tenant, record, on_step=nobody)
        except VkgatewayError as error:
            log.warning("certificates were not looked at", tenant=tenant.metadata.name, error=str(error))
            record.renewal_due = self._monotonic() + RENEW_AGAIN_SECONDS
            if record.unrenewed_since is None:
                record.unrenewed_since = self._monotonic()
            record.unrenewed_why = str(error)
            return access

    async def _keep(self, tenant: Tenant, record: TenantRecord, access: Access) -> None:
        """Have undone what the tenant's admins did to the objects that are kept; a failure is no trouble of theirs."""
        record.keeping_due = self._monotonic() + KEEP_SECONDS
        record.kept_for = tenant.spec.policy
        try:
            await self._planes.keep(tenant, access)
        except VkgatewayError as error:
            log.warning("kept objects were not looked at", tenant=tenant.metadata.name, error=str(error))

    async def _build(self, tenant: Tenant, record: TenantRecord, *, on_step: OnStep) -> Access:
        async with record.interruptible():
            if self._slots.locked():
                await on_step("Queued", "waits for its turn: other control planes are being made")
            access = await self._make(tenant, record, on_step=on_step)
        record.access = await self._keep_or_replace(tenant.metadata.name, record.access, access)
        record.built_from = _shape(tenant.spec)
        record.unanswered, record.unrenewed_since = 0, None
        record.renewal_due = self._monotonic() + RENEW_SECONDS
        record.keeping_due = self._monotonic() + KEEP_SECONDS
        record.kept_for = tenant.spec.policy
        record.probe_due = self._monotonic() + PROBE_SECONDS * 0.9
        return record.access

    async def _make(self, tenant: Tenant, record: TenantRecord, *, on_step: OnStep) -> Access:
        async with self._slots:
            try:
                async with asyncio.timeout(PROVISION_TIMEOUT):
                    return await self._planes.ensure(tenant, on_step=on_step)
            except TimeoutError as error:
                last = record.facts.control_plane.message
                raise UnavailableError(
                    f"the control plane was not ready after {PROVISION_TIMEOUT:.0f} s; it was at: {last}"
                ) from error

    async def _keep_or_replace(self, name: str, old: Access | None, new: Access) -> Access:
        """Go on with the client there is where it leads to the same server: its watches know what they have seen."""
        if old is None:
            return new
        if old.same_server(new):
            await new.client.close()
            return replace(new, client=old.client)
        await self._runtimes.stop(name)
        await old.client.close()
        return new


async def nobody(_reason: str, _message: str) -> None:
    """Hears steps of which nobody is left to be told."""


def _unready(error: errors.ApiError) -> str:
    """Say in one line what /readyz says in many: the checks that fail; what is no such answer stays as it is."""
    checks = [line.split()[0].removeprefix("[-]") for line in error.message.split("\n") if line.startswith("[-]")]
    return f"not ready: {', '.join(checks)}" if checks else error.message


def _shape(spec: TenantSpec) -> TenantSpec:
    """Return the part of a spec that the control plane is made from."""
    return msgspec.structs.replace(spec, pools=(), policy=TenantPolicy(pod_security=spec.policy.pod_security))
