"""Makes of every Tenant object a tenant: accepted, with a control plane, virtual nodes and its work done; and back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import structlog

from vkgateway.gateway import finalizers
from vkgateway.gateway.accepted_specs import (
    ACCEPTED_FOR_ANNOTATION,
    ACCEPTED_SPEC_ANNOTATION,
    AcceptedSpecs,
    acceptance_annotations,
    read_accepted_spec,
)
from vkgateway.gateway.compute_cleanup import clean_compute_clusters, clusters_of
from vkgateway.gateway.compute_controller import ComputeController
from vkgateway.gateway.control_plane_reconciler import (
    PROBE_RETRY_SECONDS,
    PROBE_SECONDS,
    ControlPlaneReconciler,
    ignore_step,
)
from vkgateway.gateway.events import EventRecorder
from vkgateway.gateway.interfaces import ApiServerAccess, ControlPlanes, TenantRunner
from vkgateway.gateway.status import Verdict, false_verdict
from vkgateway.gateway.tenant_record import Interrupted, StatusNotWritten, StatusWriter, TenantRecord
from vkgateway.gateway.workqueue import DONE, ReconcileResult, WorkQueue
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import TENANTS
from vkgateway.model.api import Tenant, TenantSpec
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import TENANT_FINALIZER
from vkgateway.sync.metrics import forget_tenant as forget_metrics
from vkgateway.sync.teardown import remove_pods

log = structlog.get_logger(__name__)

REQUEUE_SECONDS = 0.25
"""How soon to look again at what is on its way and may not tell when it has come."""
RETRY_SECONDS = 15.0


class TenantController:
    """One worker a tenant; whatever happens to one is no matter to another.

    `guarantee` says of a tenant whether the nodes hold what is guaranteed to it, `datastore` whether its API server may
    write; None: not known now.
    """

    def __init__(
        self,
        management: Client,
        *,
        recorder: EventRecorder,
        computes: ComputeController,
        planes: ControlPlanes,
        runtimes: TenantRunner,
        guarantee: Callable[[str], Verdict | None] = lambda _: None,
        datastore: Callable[[str], Verdict | None] = lambda _: None,
        concurrency: int = 8,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._management = management
        self._computes = computes
        self._control_planes = planes
        self._runner = runtimes
        self._guarantee_verdict = guarantee
        self._datastore_verdict = datastore
        self._monotonic = monotonic
        self._status_writer = StatusWriter(management, recorder, clock=clock, monotonic=monotonic)
        self._reconciler = ControlPlaneReconciler(
            planes, status_writer=self._status_writer, runtimes=runtimes, concurrency=concurrency, monotonic=monotonic
        )
        self._records: dict[str, TenantRecord] = {}
        self.accepted_specs = AcceptedSpecs(computes.pool_facts, computes.guaranteed_pods)
        self._queue = WorkQueue("tenant", self._reconcile, on_error=self._handle_error)
        self.tenants: Reflector[Tenant] = Reflector(
            management, TENANTS, decode=msgspec.json.Decoder(Tenant).decode, on_change=self._tenant_changed
        )

    def enqueue(self, name: str) -> None:
        """Have one tenant looked at."""
        if name in self._records:
            self._queue.enqueue(name)

    def enqueue_all(self) -> None:
        """Have all tenants looked at: a compute cluster changed."""
        self._queue.enqueue_all()

    def tenant_names(self) -> list[str]:
        """Return the names of the tenants that were looked at."""
        return list(self._records)

    def tenant_phases(self) -> list[str]:
        """Return the phase of every tenant that was looked at."""
        return [record.status.phase for record in self._records.values()]

    async def run(self) -> None:
        """Work until cancelled. Nothing is decided before all tenants and compute clusters are known."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tenants.run(), name="tenants/watch")
            await self.tenants.wait_until_complete()
            await self._computes.clusters.wait_until_complete()
            self.accepted_specs.load(self.tenants.store.values())
            self._computes.tenants_changed()
            group.create_task(self._queue.run(), name="tenants/workers")

    async def close(self) -> None:
        """End the work for all tenants; their pods and control planes go on."""
        await asyncio.gather(*(self._stop_work(name) for name in list(self._records)))

    def _tenant_changed(self, old: Tenant | None, new: Tenant | None) -> None:
        found = new or old
        if found is None or (old is not None and new is not None and _is_unchanged(old, new)):
            return
        self._queue.enqueue(found.metadata.name)
        record = self._records.get(found.metadata.name)
        if record is not None and found.metadata.deletion_timestamp is not None:
            record.request_interrupt()

    async def _reconcile(self, name: str) -> ReconcileResult:
        tenant = self.tenants.store.get(("", name))
        record = self._records.get(name)
        if tenant is None or (record is not None and record.uid != tenant.metadata.uid):
            return await self._object_deleted(name, tenant)
        if record is None:
            record = self._records[name] = TenantRecord.from_tenant(tenant, now=self._monotonic())
        record.generation = tenant.metadata.generation
        if tenant.metadata.deletion_timestamp is not None:
            return await self._finalize_tenant(tenant, record)
        self._update_datastore_fact(name, record)
        spec = await self._accept_spec(tenant, record)
        if spec is None:
            await self._status_writer.write_status(tenant, record)
            return RETRY_SECONDS
        inforce = Tenant(metadata=tenant.metadata, spec=spec, status=record.status)
        try:
            access = await self._reconciler.ensure_access(inforce, record)
        except Interrupted:
            raise
        except VkgatewayError:
            await self._run_previous(inforce, record)
            raise
        await self._run_tenant(inforce, record, access)
        record.update_facts(guarantee=self._guarantee_verdict(name) or record.facts.guarantee)
        await self._status_writer.write_status(tenant, record)
        if record.facts.virtual_nodes.status == "Unknown":
            return REQUEUE_SECONDS
        return PROBE_RETRY_SECONDS if record.failed_probes else PROBE_SECONDS

    async def _handle_error(self, name: str, error: Exception) -> None:
        tenant, record = self.tenants.store.get(("", name)), self._records.get(name)
        if isinstance(error, (StatusNotWritten, Interrupted)):
            return
        if tenant is not None and record is not None and record.uid == tenant.metadata.uid:
            self._update_datastore_fact(name, record)
            record.record_error(error)
            await self._status_writer.write_status(tenant, record)

    def _update_datastore_fact(self, name: str, record: TenantRecord) -> bool:
        """Learn whether the tenant's API server may write, if it ever might not; say whether it may not now."""
        writable = self._datastore_verdict(name)
        if writable is not None and (record.facts.datastore is not None or not writable.is_true):
            record.update_facts(datastore=writable)
        return writable is not None and not writable.is_true

    # Accepted

    async def _accept_spec(self, tenant: Tenant, record: TenantRecord) -> TenantSpec | None:
        """Return the spec in force: the one asked for, or the one accepted before; None if there is none."""
        record.stage = "accepted"
        name = tenant.metadata.name
        verdict = self.accepted_specs.decide_acceptance(
            tenant, computes=self._computes.clusters_with_status(), templates=self._control_planes.template_names()
        )
        record.update_facts(accepted=verdict)
        spec = self.accepted_specs.spec_of(name)
        if spec is not None and not _is_recorded(spec, tenant, record):
            await self._remove_predecessor(tenant, record)
            await self._record_acceptance(spec, tenant, record)
            self._computes.tenants_changed()
            if not record.facts.is_ready:  # what is known of a tenant that was Ready is about another spec
                await self._status_writer.write_status(tenant, record)
        return spec

    async def _remove_predecessor(self, tenant: Tenant, record: TenantRecord) -> None:
        """See to it that a new tenant gets no credentials, keys or data of an earlier one of its name.

        They may be there though nobody took them away: its finalizer was taken off by force while no gateway ran, or
        the datastore was put back from a backup. What the copy of another tenant says of that one is no sign that this
        one had anything; but for its own it may be put back from a backup, too, and has all that is there.
        """
        annotations = tenant.metadata.annotations
        held = TENANT_FINALIZER in tenant.metadata.finalizers or ACCEPTED_SPEC_ANNOTATION in annotations
        others = (view.metadata for view in self.tenants.store.values() if view.metadata.name != tenant.metadata.name)
        copied = annotations.get(ACCEPTED_FOR_ANNOTATION) in {other.uid for other in others}
        if (held and not copied) or record.recorded_spec is not None or record.facts.api_server is not None:
            return
        record.stage = "control_plane"
        await self._control_planes.remove(tenant.metadata.name, on_step=ignore_step)
        record.stage = "accepted"

    async def _record_acceptance(self, spec: TenantSpec, tenant: Tenant, record: TenantRecord) -> None:
        """Write down what was accepted, with our finalizer, before anything is made for it."""
        seen = tenant.metadata
        annotations = acceptance_annotations(spec, seen.uid)
        stored = await finalizers.add_finalizer(
            self._management, TENANTS, seen, TENANT_FINALIZER, annotations=annotations
        )
        record.recorded_spec, record.recorded_version = spec, stored.resource_version

    # VirtualNodesReady

    async def _run_tenant(self, tenant: Tenant, record: TenantRecord, access: ApiServerAccess) -> None:
        record.stage = "virtual_nodes"
        seen = await self._runner.ensure_running(tenant, access)
        verdict = seen.verdict
        if verdict.status == "Unknown" and self._update_datastore_fact(tenant.metadata.name, record):
            verdict = false_verdict("DatastoreFull", "they cannot be brought up to date: the API server may not write")
        record.update_facts(virtual_nodes=verdict, pools=seen.pools)

    async def _run_previous(self, tenant: Tenant, record: TenantRecord) -> None:
        """Go on by the control plane there is, if any, while it cannot be made as wanted; that is what is told."""
        if record.access is not None:
            with contextlib.suppress(errors.ApiError):
                seen = await self._runner.ensure_running(tenant, record.access)
                record.update_facts(virtual_nodes=seen.verdict, pools=seen.pools)

    # Deletion

    async def _finalize_tenant(self, tenant: Tenant, record: TenantRecord) -> ReconcileResult:
        record.stage = "deleting"
        name = tenant.metadata.name
        held = TENANT_FINALIZER in tenant.metadata.finalizers or record.recorded_spec is not None
        if record.finalizer_removed or not held:
            return None
        await self._report_deletion(tenant, record, "its pods are being ended")
        await self._stop_work(name, keep=True)
        needed = clusters_of(tenant, self.accepted_specs.spec_of(name))
        await clean_compute_clusters(self._computes, name, needed=needed, remove=remove_pods)
        # Kubernetes takes 5 s at least for a namespace; nothing in it runs any more.
        await _gather_all(
            clean_compute_clusters(self._computes, name, needed=needed), self._remove_control_plane(tenant, record)
        )
        # A request that was under way when the work was ended may have made something since.
        await clean_compute_clusters(self._computes, name, needed=needed)
        await self._remove_finalizer(tenant)
        record.finalizer_removed = True
        self.accepted_specs.remove(name)
        forget_metrics(name)
        self._computes.tenants_changed()
        return None

    async def _remove_control_plane(self, tenant: Tenant, record: TenantRecord) -> None:
        await self._report_deletion(tenant, record, "its control plane and data are being removed")
        name = tenant.metadata.name
        await self._control_planes.remove(
            name, on_step=lambda _reason, message: self._report_deletion(tenant, record, message)
        )
        await self._report_deletion(tenant, record, "its namespaces in compute clusters are being removed")

    async def _report_deletion(self, tenant: Tenant, record: TenantRecord, message: str) -> None:
        record.update_facts(deleting=Verdict("False", "Deleting", message))
        await self._status_writer.try_write_status(tenant, record)

    async def _remove_finalizer(self, tenant: Tenant) -> None:
        await finalizers.remove_finalizer(self._management, TENANTS, tenant.metadata, TENANT_FINALIZER)
        log.info("tenant is gone", tenant=tenant.metadata.name)

    async def _object_deleted(self, name: str, successor: Tenant | None) -> ReconcileResult:
        """The object is gone: what it had goes too, if somebody took our finalizer off by force."""
        await self._stop_work(name, keep=True)
        if self.accepted_specs.spec_of(name) is not None:
            log.warning("tenant vanished without being removed; removing what it had", tenant=name)
            await clean_compute_clusters(self._computes, name, needed=self._computes.links)
            await self._control_planes.remove(name, on_step=ignore_step)
            self.accepted_specs.remove(name)
            forget_metrics(name)
            self._computes.tenants_changed()
        self._records.pop(name, None)
        return DONE if successor is None else 0.0

    async def _stop_work(self, name: str, *, keep: bool = False) -> None:
        """End the work for a tenant and close its client."""
        record = self._records.get(name) if keep else self._records.pop(name, None)
        await self._runner.stop(name)
        if record is not None and record.access is not None:
            access, record.access = record.access, None
            await access.client.close()


async def _gather_all(*parts: Awaitable[None]) -> None:
    """Do two things side by side, both to their end; raises what the first of them failed with."""
    for result in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _is_recorded(spec: TenantSpec, tenant: Tenant, record: TenantRecord) -> bool:
    """Whether the object carries the spec in force as its own, and our finalizer. Others may take them off."""
    if _is_at_least(tenant.metadata.resource_version, record.recorded_version):
        held = TENANT_FINALIZER in tenant.metadata.finalizers and ACCEPTED_FOR_ANNOTATION in tenant.metadata.annotations
        record.recorded_spec = read_accepted_spec(tenant) if held else None
    return record.recorded_spec == spec


def _is_at_least(version: str, ours: str) -> bool:
    """Whether what a watch shows is at least as new as what we wrote, if we did; versions grow (KEP-5504)."""
    return not ours or (version.isdecimal() and ours.isdecimal() and int(version) >= int(ours))


def _is_unchanged(old: Tenant, new: Tenant) -> bool:
    """Whether nothing changed but the status and what we wrote ourselves."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.generation == new.metadata.generation
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )
