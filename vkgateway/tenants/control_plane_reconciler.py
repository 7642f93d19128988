"""Reconciler of control planes: provisions, probes and renews them, and resumes them after a restart."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import structlog

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.api.types import Tenant, TenantPolicy, TenantSpec
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.kube import errors
from vkgateway.kube.backoff import add_jitter
from vkgateway.kube.clock import Clock
from vkgateway.tenants.interfaces import ApiServerAccess, ControlPlanes, OnStep, TenantRunner
from vkgateway.tenants.record import (
    Interrupted,
    Restarted,
    StatusWriter,
    TenantRecord,
    api_server_status,
    published_verdict,
)

log = structlog.get_logger(__name__)

PROBE_SECONDS = 10.0
PROBE_TIMEOUT = 5.0
PUBLISHED_SECONDS = 60.0
"""Interval between checks whether a published API server still has the same address."""
MAX_FAILED_PROBES = 3
"""Consecutive failed probes after which the control plane is provisioned again.

A busy control plane misses a probe occasionally: its API server is ready only if etcd answers within two seconds.
"""
PROBE_RETRY_SECONDS = 3.0
FAILURE_SHOWN_SECONDS = 3.0
RENEW_SECONDS = 24 * 3600.0
"""Interval between checks for expiring certificates, which are renewed months before they expire."""
RENEW_RETRY_SECONDS = 600.0
RESTORE_SECONDS = 600.0
"""Interval between restores of the kept objects: the longest time that a tenant may lack one of them."""
RENEWAL_GRACE_SECONDS = 24 * 3600.0
"""Time for which failed certificate checks are only logged; after it, the condition reports them."""
FIRST_RENEWAL_SECONDS = 300.0
"""Minimum delay of the first certificate check after a restart of the gateway.

Jitter up to twice this value spreads the tenants.
"""
PROVISION_TIMEOUT = 180.0
"""Limit of one attempt to provision a control plane; completed steps persist."""


class ControlPlaneReconciler:
    """Reconciler of all tenants' control planes; `concurrency` limits how many are provisioned at the same time."""

    def __init__(
        self,
        planes: ControlPlanes,
        *,
        status_writer: StatusWriter,
        runtimes: TenantRunner,
        concurrency: int,
        clock: Clock,
    ) -> None:
        self._control_planes = planes
        self._status_writer = status_writer
        self._runner = runtimes
        self._slots = asyncio.Semaphore(concurrency)
        self._clock = clock

    async def ensure_access(self, tenant: Tenant, record: TenantRecord) -> ApiServerAccess:
        """Return access to a control plane that matches the spec, and update `record`.

        If provisioning fails, raise the error; `record` then has access to the existing control plane if it responds.
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
        elif record.is_repair_due or self._clock.monotonic() >= record.renewal_due:
            access = await self._repeat_provisioning(tenant, record, access)
        elif self._clock.monotonic() >= record.restore_due or record.restored_policy != tenant.spec.policy:
            await self._restore_kept_objects(tenant, record, access)
        record.update_facts(
            control_plane=self._serving_verdict(record, access),
            api_server=api_server_status(access, version=tenant.spec.kubernetes_version),
            published=published_verdict(access, previous=record.facts.published),
        )
        return access

    def _serving_verdict(self, record: TenantRecord, access: ApiServerAccess) -> Verdict:
        """Return the verdict on a control plane that responds."""
        if (
            record.renewal_failing_since is None
            or self._clock.monotonic() - record.renewal_failing_since < RENEWAL_GRACE_SECONDS
        ):
            return true_verdict("Serving", f"serves at {access.shown_url}")
        return false_verdict(
            "NotRenewed", f"serves at {access.shown_url} until its certificates expire: {record.renewal_error}"
        )

    async def _probe_access(self, tenant: Tenant, record: TenantRecord) -> ApiServerAccess | None:
        """Return the access if the control plane matches the spec and responds; probes every PROBE_SECONDS."""
        access = record.access
        if access is None or record.provisioned_spec != _control_plane_spec(tenant.spec):
            return None
        if self._clock.monotonic() < record.probe_due or record.is_repair_due:
            return access
        try:
            await access.client.request("GET", "/readyz", timeout=PROBE_TIMEOUT)
        except errors.ApiError as error:
            message = _readiness_message(error)
            record.failed_probes += 1
            log.warning("tenant's API server is not ready", tenant=tenant.metadata.name, why=message)
            if record.failed_probes < MAX_FAILED_PROBES:
                record.probe_due = self._clock.monotonic() + PROBE_RETRY_SECONDS
                return access
            record.update_facts(control_plane=false_verdict("Unreachable", f"{access.url}: {message}"))
            await self._status_writer.write_status(tenant, record)
            return None
        record.failed_probes = 0
        record.probe_due = self._clock.monotonic() + PROBE_SECONDS * 0.9
        return await self._check_publication(tenant, record, access)

    async def _check_publication(
        self, tenant: Tenant, record: TenantRecord, access: ApiServerAccess
    ) -> ApiServerAccess:
        """Request a repair, which renews certificates and kubeconfig, if clients must connect to another address."""
        known = access.publication
        if known.type == "ClusterIP" or self._clock.monotonic() < record.publication_due:
            return access
        record.publication_due = self._clock.monotonic() + (PUBLISHED_SECONDS if known.url else PROBE_SECONDS * 0.9)
        try:
            found = await self._control_planes.check_publication(tenant, access)
        except VkgatewayError as error:
            log.warning("exposure not checked", tenant=tenant.metadata.name, error=str(error))
            return access
        if known.fits(found):
            record.access = access = replace(access, publication=found)
        else:
            record.is_repair_due = True
        return access

    async def _resume_access(self, tenant: Tenant, record: TenantRecord) -> ApiServerAccess | None:
        """Return access to a control plane that was Ready before this gateway started, if it still responds.

        After a restart, the gateway must reconcile all tenants within seconds. The provisioning steps follow later,
        without status updates.
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
        record.probe_due = self._clock.monotonic() + PROBE_SECONDS * 0.9
        record.renewal_due = self._clock.monotonic() + add_jitter(FIRST_RENEWAL_SECONDS)
        record.restore_due = record.renewal_due
        return access

    async def _find_responding(self, tenant: Tenant) -> ApiServerAccess | None:
        """Return access to the control plane as last provisioned, if it responds."""
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
        started_at = self._clock.monotonic()

        async def on_step(reason: str, message: str) -> None:
            # The status keeps a failure while the next attempt repeats the steps before it.
            if (
                not record.facts.control_plane.is_failure
                or self._clock.monotonic() - started_at > FAILURE_SHOWN_SECONDS
            ):
                record.update_facts(control_plane=unknown_verdict(reason, message))
                await self._status_writer.try_write_status(tenant, record)

        return await self._provision_access(tenant, record, on_step=on_step)

    async def _repeat_provisioning(
        self, tenant: Tenant, record: TenantRecord, access: ApiServerAccess
    ) -> ApiServerAccess:
        """Repeat the provisioning steps to renew certificates that expire soon, or to revert changes by other clients.

        The status does not show the steps. It shows failures only after RENEWAL_GRACE_SECONDS: there is time to retry.
        A repair is retried at the next probe.
        """
        is_repair = record.is_repair_due
        try:
            return await self._provision_access(tenant, record, on_step=ignore_step)
        except VkgatewayError as error:
            log.warning("control plane not checked", tenant=tenant.metadata.name, repair=is_repair, error=str(error))
            record.is_repair_due |= is_repair
            record.renewal_due = self._clock.monotonic() + RENEW_RETRY_SECONDS
            if record.renewal_failing_since is None:
                record.renewal_failing_since = self._clock.monotonic()
            record.renewal_error = str(error)
            return access

    async def _restore_kept_objects(self, tenant: Tenant, record: TenantRecord, access: ApiServerAccess) -> None:
        """Revert changes to the kept objects; a failure is only logged."""
        record.restore_due = self._clock.monotonic() + RESTORE_SECONDS
        record.restored_policy = tenant.spec.policy
        try:
            await self._control_planes.restore_kept_objects(tenant, access)
        except VkgatewayError as error:
            log.warning("kept objects not restored", tenant=tenant.metadata.name, error=str(error))

    async def _provision_access(self, tenant: Tenant, record: TenantRecord, *, on_step: OnStep) -> ApiServerAccess:
        access = None
        while access is None:
            record.is_repair_due = False
            with contextlib.suppress(Restarted):
                async with record.interrupt_on_deletion():
                    if self._slots.locked():
                        await on_step("Queued", "waiting while other control planes are provisioned")
                    access = await self._provision_once(tenant, record, on_step=on_step)
        record.access = await self._reuse_client(tenant.metadata.name, record.access, access)
        record.provisioned_spec = _control_plane_spec(tenant.spec)
        record.failed_probes, record.renewal_failing_since = 0, None
        record.renewal_due = self._clock.monotonic() + RENEW_SECONDS
        record.restore_due = self._clock.monotonic() + RESTORE_SECONDS
        record.restored_policy = tenant.spec.policy
        record.probe_due = self._clock.monotonic() + PROBE_SECONDS * 0.9
        return record.access

    async def _provision_once(self, tenant: Tenant, record: TenantRecord, *, on_step: OnStep) -> ApiServerAccess:
        async with self._slots:
            try:
                async with asyncio.timeout(PROVISION_TIMEOUT):
                    return await self._control_planes.ensure(tenant, on_step=on_step)
            except TimeoutError as error:
                last = record.facts.control_plane.message
                raise UnavailableError(
                    f"the control plane was not ready after {PROVISION_TIMEOUT:.0f} s; last step: {last}"
                ) from error

    async def _reuse_client(self, name: str, old: ApiServerAccess | None, new: ApiServerAccess) -> ApiServerAccess:
        """Keep the existing client if it connects to the same server, so that its watches resume."""
        if old is None:
            return new
        if old.is_same_server(new):
            await new.client.close()
            return replace(new, client=old.client)
        await self._runner.stop(name)
        await old.client.close()
        return new


async def ignore_step(_reason: str, _message: str) -> None:
    """Ignore a provisioning step."""


def _readiness_message(error: errors.ApiError) -> str:
    """Return the failed checks of a /readyz answer in one line; any other error message unchanged."""
    checks = [line.split()[0].removeprefix("[-]") for line in error.message.split("\n") if line.startswith("[-]")]
    return f"not ready: {', '.join(checks)}" if checks else error.message


def _control_plane_spec(spec: TenantSpec) -> TenantSpec:
    """Return the part of a spec that affects the control plane."""
    return TenantSpec(
        template=spec.template,
        kubernetes_version=spec.kubernetes_version,
        policy=TenantPolicy(pod_security=spec.policy.pod_security),
        api_server=spec.api_server,
        control_plane=spec.control_plane,
    )
