"""Deletion of tenants: pods, control plane, namespaces, and the finalizer at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Collection
from typing import Final

import structlog

from vkgateway.api import times
from vkgateway.api.names import TENANT_FINALIZER
from vkgateway.api.types import DATA_KEPT, Tenant
from vkgateway.clusters.controller import ComputeController
from vkgateway.clusters.status import Verdict
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.kube.resources import TENANTS
from vkgateway.runtime import finalizers
from vkgateway.runtime.metrics import forget_tenant as forget_metrics
from vkgateway.tenants.accepted_specs import ACCEPTED_FOR_ANNOTATION, ACCEPTED_SPEC_ANNOTATION, AcceptedSpecs
from vkgateway.tenants.compute_cleanup import clean_compute_clusters, clusters_of, forget_tenant
from vkgateway.tenants.control_plane_reconciler import ignore_step
from vkgateway.tenants.interfaces import ControlPlanes, TenantRunner
from vkgateway.tenants.record import StatusWriter, TenantRecord
from vkgateway.tenants.teardown import remove_pods

_LONGEST_WAIT: Final = 3600.0
"""Seconds between two looks at the time of a deletion: clocks may be set."""

log = structlog.get_logger(__name__)


class TenantFinalizer:
    """Removal of everything that a deleted tenant had; each step is idempotent and repeated after failures."""

    def __init__(
        self,
        management: Client,
        *,
        computes: ComputeController,
        planes: ControlPlanes,
        runtimes: TenantRunner,
        accepted_specs: AcceptedSpecs,
        status_writer: StatusWriter,
        clock: Clock,
    ) -> None:
        self._management = management
        self._computes = computes
        self._control_planes = planes
        self._runner = runtimes
        self._accepted_specs = accepted_specs
        self._status_writer = status_writer
        self._clock = clock

    async def finalize_tenant(self, tenant: Tenant, record: TenantRecord) -> None:
        """Remove everything of a tenant that is being deleted, then its finalizer."""
        record.stage = "deleting"
        name = tenant.metadata.name
        has_finalizer = TENANT_FINALIZER in tenant.metadata.finalizers or record.recorded_spec is not None
        if record.finalizer_removed or not has_finalizer:
            return
        await self._report_deletion(tenant, record, "deleting its pods")
        await self.stop_runtime(name, record)
        needed = clusters_of(tenant, self._accepted_specs.spec_of(name))
        await clean_compute_clusters(self._computes.clusters, name, needed=needed, remove=remove_pods)
        # In parallel: Kubernetes takes at least 5 s to delete a namespace, and no pods are left.
        await _gather_all(
            clean_compute_clusters(self._computes.clusters, name, needed=needed),
            self._remove_control_plane(tenant, record),
        )
        # A request that was in flight when the runtime stopped may have created an object since.
        await clean_compute_clusters(self._computes.clusters, name, needed=needed, remove=forget_tenant)
        await finalizers.remove_finalizer(self._management, TENANTS, tenant.metadata, TENANT_FINALIZER)
        log.info("tenant deleted", tenant=name)
        record.finalizer_removed = True
        self._forget_tenant(name)

    async def keep_data(self, tenant: Tenant, record: TenantRecord) -> float | None:
        """Remove everything of a tenant but its data until `deleteAfter`, and then delete the Tenant.

        Its namespaces in compute clusters stay, too, with the volumes, and its name stays taken. Only its guarantees
        are free for other tenants. Return the seconds until the next step.
        """
        record.stage = "deleting"
        name = tenant.metadata.name
        end = times.parse_time(tenant.spec.delete_after)
        remaining = end.timestamp() - self._clock.time()
        if remaining <= 0:
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._management.delete(TENANTS, name, uid=tenant.metadata.uid)
            return None
        if not record.is_kept:
            await self._report_deletion(tenant, record, "deleting its pods")
            needed = clusters_of(tenant, self._accepted_specs.spec_of(name))
            await self._forget_acceptance(tenant, record)
            await self.stop_runtime(name, record)
            await clean_compute_clusters(self._computes.clusters, name, needed=needed, remove=remove_pods)
            await self._report_deletion(tenant, record, "stopping its control plane")
            await self._control_planes.stop(name)
            log.info("tenant stopped; its data is kept", tenant=name, until=tenant.spec.delete_after)
            record.is_kept = True
            self._forget_tenant(name)
        message = f"its data is kept until {end:%Y-%m-%d %H:%M} UTC; `vkgateway tenant restore {name}` brings it back"
        stopped = Verdict("False", DATA_KEPT, "stopped; only the data is left")
        record.update_facts(control_plane=stopped, virtual_nodes=stopped, deleting=Verdict("False", DATA_KEPT, message))
        record.update_facts(guarantee=None)
        await self._status_writer.write_status(tenant, record)
        return min(remaining, _LONGEST_WAIT)

    async def clean_up(self, name: str, record: TenantRecord | None) -> None:
        """Clean up after a deleted object, including its resources if the finalizer was removed by force."""
        await self.stop_runtime(name, record)
        is_kept = record is not None and record.is_kept and not record.finalizer_removed
        if self._accepted_specs.spec_of(name) is not None or is_kept:
            log.warning("tenant was deleted without its finalizer; cleaning up", tenant=name)
            clusters = self._computes.clusters
            await clean_compute_clusters(clusters, name, needed=clusters.links, remove=forget_tenant)
            await self._control_planes.remove(name, on_step=ignore_step)
            self._forget_tenant(name)

    async def remove_predecessor(self, tenant: Tenant, record: TenantRecord, *, other_uids: Collection[str]) -> None:
        """Delete credentials, keys and data of an earlier tenant with the same name.

        They exist if the finalizer was removed by force while no gateway ran, or if the datastore was restored from a
        backup. Annotations that were copied from another Tenant (`other_uids`) do not prove that this tenant had any
        data. A Tenant that was itself restored from a backup keeps its data.
        """
        annotations = tenant.metadata.annotations
        is_known = TENANT_FINALIZER in tenant.metadata.finalizers or ACCEPTED_SPEC_ANNOTATION in annotations
        copied = annotations.get(ACCEPTED_FOR_ANNOTATION) in other_uids
        if (is_known and not copied) or record.recorded_spec is not None or record.facts.api_server is not None:
            return
        record.stage = "control_plane"
        await self._control_planes.remove(tenant.metadata.name, on_step=ignore_step)
        record.stage = "accepted"

    async def stop_runtime(self, name: str, record: TenantRecord | None) -> None:
        """Stop a tenant's runtime and close its client."""
        await self._runner.stop(name)
        if record is not None and record.access is not None:
            access, record.access = record.access, None
            await access.client.close()

    async def _forget_acceptance(self, tenant: Tenant, record: TenantRecord) -> None:
        """Remove the accepted spec from the object, before its guarantees are free.

        A gateway that starts after the tenant is restored would otherwise put them in force, whoever has them then.
        """
        if ACCEPTED_SPEC_ANNOTATION in tenant.metadata.annotations:
            change = {"uid": tenant.metadata.uid, "annotations": {ACCEPTED_SPEC_ANNOTATION: None}}
            await self._management.patch(TENANTS, tenant.metadata.name, {"metadata": change})
        record.recorded_spec = None

    async def _remove_control_plane(self, tenant: Tenant, record: TenantRecord) -> None:
        await self._report_deletion(tenant, record, "deleting its control plane and data")
        await self._control_planes.remove(
            tenant.metadata.name, on_step=lambda _reason, message: self._report_deletion(tenant, record, message)
        )
        await self._report_deletion(tenant, record, "deleting its namespaces in compute clusters")

    async def _report_deletion(self, tenant: Tenant, record: TenantRecord, message: str) -> None:
        record.update_facts(deleting=Verdict("False", "Deleting", message))
        await self._status_writer.try_write_status(tenant, record)

    def _forget_tenant(self, name: str) -> None:
        self._accepted_specs.remove(name)
        forget_metrics(name)
        self._computes.tenants_changed()


async def _gather_all(*parts: Awaitable[None]) -> None:
    """Await all parts concurrently to their end, then raise the error of the first failed part."""
    for result in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
