"""Keeps each tenant's control plane up: remembered after a restart, made, probed, and renewed before it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import msgspec
import structlog

from vkgateway.gateway.interfaces import ApiServerAccess, ControlPlanes, OnStep, TenantRunner
from vkgateway.gateway.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.gateway.tenant_record import Interrupted, StatusWriter, TenantRecord, api_server_status
from vkgateway.kube import errors
from vkgateway.kube.backoff import add_jitter
from vkgateway.model.api import Tenant, TenantPolicy, TenantSpec
from vkgateway.model.errors import UnavailableError, VkgatewayError

log = structlog.get_logger(__name__)

PROBE_SECONDS = 10.0
PROBE_TIMEOUT = 5.0
MAX_FAILED_PROBES = 3
"""So many in a row, and the control plane is gone through. One that is busy misses a probe now and then: etcd must
answer within two seconds for an API server to be ready."""
PROBE_RETRY_SECONDS = 3.0
FAILURE_SHOWN_SECONDS = 3.0
RENEW_SECONDS = 24 * 3600.0
"""How often certificates that near their end are looked for; they have months left then."""
RENEW_RETRY_SECONDS = 600.0
RESTORE_SECONDS = 600.0
"""How often the objects that are kept are looked at: so long a tenant may be without them."""
RENEWAL_GRACE_SECONDS = 24 * 3600.0
"""For so long it is no trouble of the tenant's that they cannot be looked at; from then on it is told."""
FIRST_RENEWAL_SECONDS = 300.0
"""How soon after a restart of the gateway the steps of making a control plane are gone through: so long, or up to twice
so long, that not all tenants' come at once."""
PROVISION_TIMEOUT = 180.0
"""One attempt at a control plane; the steps it has done stay done."""


class ControlPlaneReconciler:
    """What is done for all tenants' control planes; `concurrency` is how many are made at the same time."""

    def __init__(
        self,
        planes: ControlPlanes,
        *,
        teller: StatusWriter,
        runtimes: TenantRunner,
        concurrency: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._control_planes = planes
        self._status_writer = teller
        self._runner = runtimes
        self._slots = asyncio.Semaphore(concurrency)
        self._monotonic = monotonic

    async def ensure_access(self, tenant: Tenant, record: TenantRecord) -> ApiServerAccess:
        """Return the way to a control plane as the spec says; `record` learns what becomes of it.

        Where it cannot be made so the failure is raised, and `record` has the way to the one there is, if it answers.
        """
        record.stage = "control_plane"
        access = await self._probe_access(tenant, record)
        if access is None and record.access is None and record.was_ready:
            access = await self._resume_access(tenant, record)
        if access is None:
            try:
                access = await self._provision_with_status(tenant, record)
            except Interrupted:
                raise
            except VkgatewayError:
                with contextlib.suppress(VkgatewayError):
                    record.access = record.access or await self._find_responding(tenant)
                raise
        elif self._monotonic() >= record.renewal_due:
            access = await self._renew_certificates(tenant, record, access)
        elif self._monotonic() >= record.restore_due or record.restored_policy != tenant.spec.policy:
            await self._restore_kept_objects(tenant, record, access)
        served = api_server_status(access, version=tenant.spec.kubernetes_version)
        record.update_facts(control_plane=self._serving_verdict(record, access), api_server=served)
        return access

    def _serving_verdict(self, record: TenantRecord, access: ApiServerAccess) -> Verdict:
        """Say how a control plane stands that answers."""
        if (
            record.renewal_failing_since is None
            or self._monotonic() - record.renewal_failing_since < RENEWAL_GRACE_SECONDS
        ):
            return true_verdict("Serving", f"serves at {access.url}")
        return false_verdict(
            "NotRenewed", f"serves at {access.url}, until its certificates end: {record.renewal_error}"
        )

    async def _probe_access(self, tenant: Tenant, record: TenantRecord) -> ApiServerAccess | None:
        """Return the access if the control plane is as wanted and answers; asked once every PROBE_SECONDS."""
        access = record.access
        if access is None or record.provisioned_spec != _control_plane_spec(tenant.spec):
            return None
        if self._monotonic() < record.probe_due:
            return access
        try:
            await access.client.request("GET", "/readyz", timeout=PROBE_TIMEOUT)
        except errors.ApiError as error:
            why = _readiness_message(error)
            record.failed_probes += 1
            log.warning("tenant's API server is not ready", tenant=tenant.metadata.name, why=why)
            if record.failed_probes < MAX_FAILED_PROBES:
                record.probe_due = self._monotonic() + PROBE_RETRY_SECONDS
                return access
            record.update_facts(control_plane=false_verdict("Unreachable", f"{access.url}: {why}"))
            await self._status_writer.write_status(tenant, record)
            return None
        record.failed_probes = 0
        record.probe_due = self._monotonic() + PROBE_SECONDS * 0.9
        return access

    async def _resume_access(self, tenant: Tenant, record: TenantRecord) -> ApiServerAccess | None:
        """Go on with a control plane that was Ready before this gateway began, if it still answers.

        A gateway that comes back must find every difference within seconds, for all tenants at once; so the steps of
        making a control plane are gone through a while later, in silence.
        """
        if tenant.status.observed_generation != tenant.metadata.generation:
            return None
        access = await self._find_responding(tenant)
        if access is None:
            return None
        record.access, record.provisioned_spec, record.restored_policy = (
            access,
            _control_plane_spec(tenant.spec),
            tenant.spec.policy,
        )
        record.probe_due = self._monotonic() + PROBE_SECONDS * 0.9
        record.renewal_due = self._monotonic() + add_jitter(FIRST_RENEWAL_SECONDS)
        record.restore_due = record.renewal_due
        return access

    async def _find_responding(self, tenant: Tenant) -> ApiServerAccess | None:
        """Return the way to the control plane as it was made last, if it answers."""
        access = await self._control_planes.load_existing(tenant)
        if access is None:
            return None
        try:
            await access.client.request("GET", "/readyz", timeout=PROBE_TIMEOUT)
        except errors.ApiError:
            await access.client.close()
            return None
        return access

    async def _provision_with_status(self, tenant: Tenant, record: TenantRecord) -> ApiServerAccess:
        begun = self._monotonic()

        async def on_step(reason: str, message: str) -> None:
            # A failure stays told while its next attempt goes through the steps before it.
            if not record.facts.control_plane.is_failure or self._monotonic() - begun > FAILURE_SHOWN_SECONDS:
                record.update_facts(control_plane=unknown_verdict(reason, message))
                await self._status_writer.try_write_status(tenant, record)

        return await self._provision_access(tenant, record, on_step=on_step)

    async def _renew_certificates(
        self, tenant: Tenant, record: TenantRecord, access: ApiServerAccess
    ) -> ApiServerAccess:
        """Go through the steps for what only time changes: certificates that near their end.

        Nobody hears of it, and a failure is no trouble of the tenant's until it has lasted: there is time to try
        again.
        """
        try:
            return await self._provision_access(tenant, record, on_step=ignore_step)
        except VkgatewayError as error:
            log.warning("certificates were not looked at", tenant=tenant.metadata.name, error=str(error))
            record.renewal_due = self._monotonic() + RENEW_RETRY_SECONDS
            if record.renewal_failing_since is None:
                record.renewal_failing_since = self._monotonic()
            record.renewal_error = str(error)
            return access

    async def _restore_kept_objects(self, tenant: Tenant, record: TenantRecord, access: ApiServerAccess) -> None:
        """Have undone what the tenant's admins did to the objects that are kept; a failure is no trouble of theirs."""
        record.restore_due = self._monotonic() + RESTORE_SECONDS
        record.restored_policy = tenant.spec.policy
        try:
            await self._control_planes.restore_kept_objects(tenant, access)
        except VkgatewayError as error:
            log.warning("kept objects were not looked at", tenant=tenant.metadata.name, error=str(error))

    async def _provision_access(self, tenant: Tenant, record: TenantRecord, *, on_step: OnStep) -> ApiServerAccess:
        async with record.interrupt_on_deletion():
            if self._slots.locked():
                await on_step("Queued", "waits for its turn: other control planes are being made")
            access = await self._provision_once(tenant, record, on_step=on_step)
        record.access = await self._reuse_client(tenant.metadata.name, record.access, access)
        record.provisioned_spec = _control_plane_spec(tenant.spec)
        record.failed_probes, record.renewal_failing_since = 0, None
        record.renewal_due = self._monotonic() + RENEW_SECONDS
        record.restore_due = self._monotonic() + RESTORE_SECONDS
        record.restored_policy = tenant.spec.policy
        record.probe_due = self._monotonic() + PROBE_SECONDS * 0.9
        return record.access

    async def _provision_once(self, tenant: Tenant, record: TenantRecord, *, on_step: OnStep) -> ApiServerAccess:
        async with self._slots:
            try:
                async with asyncio.timeout(PROVISION_TIMEOUT):
                    return await self._control_planes.ensure(tenant, on_step=on_step)
            except TimeoutError as error:
                last = record.facts.control_plane.message
                raise UnavailableError(
                    f"the control plane was not ready after {PROVISION_TIMEOUT:.0f} s; it was at: {last}"
                ) from error

    async def _reuse_client(self, name: str, old: ApiServerAccess | None, new: ApiServerAccess) -> ApiServerAccess:
        """Go on with the client there is where it leads to the same server: its watches know what they have seen."""
        if old is None:
            return new
        if old.is_same_server(new):
            await new.client.close()
            return replace(new, client=old.client)
        await self._runner.stop(name)
        await old.client.close()
        return new


async def ignore_step(_reason: str, _message: str) -> None:
    """Hears steps of which nobody is left to be told."""


def _readiness_message(error: errors.ApiError) -> str:
    """Say in one line what /readyz says in many: the checks that fail; what is no such answer stays as it is."""
    checks = [line.split()[0].removeprefix("[-]") for line in error.message.split("\n") if line.startswith("[-]")]
    return f"not ready: {', '.join(checks)}" if checks else error.message


def _control_plane_spec(spec: TenantSpec) -> TenantSpec:
    """Return the part of a spec that the control plane is made from."""
    return msgspec.structs.replace(spec, pools=(), policy=TenantPolicy(pod_security=spec.policy.pod_security))
