"""Controller of Tenants: acceptance, control plane, virtual nodes, and deletion."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping

from vkgateway.api.errors import VkgatewayError
from vkgateway.api.names import TENANT_FINALIZER
from vkgateway.api.types import ComputeCluster, Tenant, TenantSpec
from vkgateway.clusters.controller import ComputeController
from vkgateway.clusters.status import Verdict, false_verdict
from vkgateway.kinds.context import ANY
from vkgateway.kube import errors
from vkgateway.kube.backoff import vary_slightly
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import TENANTS
from vkgateway.runtime import finalizers
from vkgateway.runtime.events import EventRecorder
from vkgateway.runtime.workqueue import ObjectQueue
from vkgateway.tenants.accepted_specs import ACCEPTED_FOR_ANNOTATION, acceptance_annotations, read_accepted_spec
from vkgateway.tenants.control_plane_reconciler import (
    PROBE_RETRY_SECONDS,
    PROBE_SECONDS,
    ControlPlaneReconciler,
)
from vkgateway.tenants.finalizer import TenantFinalizer
from vkgateway.tenants.interfaces import ApiServerAccess, ControlPlanes, TenantRunner
from vkgateway.tenants.record import Interrupted, StatusNotWritten, StatusWriter, TenantRecord
from vkgateway.tenants.store import TenantStore

REQUEUE_SECONDS = 0.25
"""Requeue interval for transitions that trigger no event when they finish."""
RETRY_SECONDS = 15.0


class TenantController:
    """Controller with one worker per tenant; failures of one tenant do not affect others.

    `guarantee` returns whether the nodes can hold a tenant's guarantee, `datastore` whether its API server may write;
    None while unknown. `budget` returns how much of its budgets is used, given what it returned before;
    None without a budget.
    """

    def __init__(
        self,
        management: Client,
        *,
        tenants: TenantStore,
        recorder: EventRecorder,
        computes: ComputeController,
        planes: ControlPlanes,
        runtimes: TenantRunner,
        guarantee: Callable[[str], Verdict | None] = lambda _: None,
        datastore: Callable[[str], Verdict | None] = lambda _: None,
        budget: Callable[[str, Verdict | None], Verdict | None] = lambda _, __: None,
        concurrency: int = 8,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._management = management
        self._computes = computes
        self._control_planes = planes
        self._runner = runtimes
        self._guarantee_verdict = guarantee
        self._datastore_verdict = datastore
        self._budget_verdict = budget
        self._clock = clock
        self._status_writer = StatusWriter(management, recorder, clock=clock)
        self._reconciler = ControlPlaneReconciler(
            planes, status_writer=self._status_writer, runtimes=runtimes, concurrency=concurrency, clock=clock
        )
        self.tenants = tenants
        self._records = tenants.records
        self._repairs_due: set[str] = set()
        """Tenants without a record whose control planes must be repaired."""
        self.accepted_specs = tenants.accepted_specs
        self._finalizer = TenantFinalizer(
            management,
            computes=computes,
            planes=planes,
            runtimes=runtimes,
            accepted_specs=self.accepted_specs,
            status_writer=self._status_writer,
            clock=clock,
        )
        self._queue = ObjectQueue("tenant", self._reconcile, on_error=self._handle_error)
        tenants.changed.subscribe(self._tenant_changed)
        tenants.outdated.subscribe(self.enqueue)

    def enqueue(self, name: str) -> None:
        """Request a reconciliation of a known tenant."""
        if name in self._records:
            self._queue.enqueue(name)

    def repair_control_plane(self, name: str) -> None:
        """Request that a control plane is provisioned again, because another client changed it.

        A tenant that is not reconciled yet follows when it is.
        """
        if (record := self._records.get(name)) is None:
            self._repairs_due.add(name)
            return
        record.request_repair()
        self._queue.enqueue(name)

    def enqueue_all(self) -> None:
        """Request a reconciliation of all tenants, because a compute cluster changed."""
        self._queue.enqueue(*self._records)

    async def run(self, leading: asyncio.Event | None = None) -> None:
        """Run until cancelled. Before `leading` is set, only watch the tenants.

        No reconciliation starts before all tenants and compute clusters are known.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tenants.reflector.run(), name="tenants/watch")
            if leading is not None:
                await leading.wait()
            await self.tenants.reflector.wait_until_complete()
            await self._computes.clusters.reflector.wait_until_complete()
            self.tenants.load_specs()
            self._computes.tenants_changed()
            group.create_task(self._queue.run(), name="tenants/workers")

    async def close(self) -> None:
        """Stop the runtimes of all tenants; their pods and control planes continue to run."""
        records = self._records.copy()
        self._records.clear()
        await asyncio.gather(*(self._finalizer.stop_runtime(name, record) for name, record in records.items()))

    def _tenant_changed(self, old: Tenant | None, new: Tenant | None) -> None:
        tenant = new or old
        if tenant is None or (old is not None and new is not None and _is_unchanged(old, new)):
            return
        self._queue.enqueue(tenant.metadata.name)
        record = self._records.get(tenant.metadata.name)
        if record is not None and tenant.is_ending:
            record.request_interrupt()

    async def _reconcile(self, name: str) -> float | None:
        tenant = self.tenants.reflector.store.get(("", name))
        record = self._records.get(name)
        if tenant is None or (record is not None and record.uid != tenant.metadata.uid):
            await self._finalizer.clean_up(name, record)
            self._records.pop(name, None)
            self._computes.tenants_changed()  # a cluster that is being detached waits for the last tenant
            return None if tenant is None else 0.0
        if record is not None and (record.is_kept or record.is_interrupted) and not tenant.is_ending:
            await self._finalizer.stop_runtime(name, record)
            record = None
        if record is None:
            record = self._records[name] = TenantRecord.from_tenant(tenant, now=self._clock.monotonic())
            record.is_repair_due = name in self._repairs_due
            self._repairs_due.discard(name)
        record.generation = tenant.metadata.generation
        if tenant.metadata.deletion_timestamp is not None:
            await self._finalizer.finalize_tenant(tenant, record)
            return None
        if tenant.spec.delete_after:
            return await self._finalizer.keep_data(tenant, record)
        self._update_datastore_fact(name, record)
        spec = await self._accept_spec(tenant, record)
        if spec is None:
            await self._status_writer.write_status(tenant, record)
            return RETRY_SECONDS
        tenant_in_force = Tenant(metadata=tenant.metadata, spec=spec, status=record.status)
        try:
            access = await self._reconciler.ensure_access(tenant_in_force, record)
        except Interrupted:
            raise
        except VkgatewayError:
            await self._run_previous(tenant_in_force, record)
            raise
        await self._run_tenant(tenant_in_force, record, access)
        record.update_facts(
            guarantee=self._guarantee_verdict(name) or record.facts.guarantee,
            budget=self._budget_verdict(name, record.facts.budget),
            effect=self._effect_verdict(tenant_in_force),
        )
        await self._status_writer.write_status(tenant, record)
        if record.facts.virtual_nodes.status == "Unknown":
            return REQUEUE_SECONDS
        # All tenants start at the same time, and simultaneous probes of all would delay pods.
        return PROBE_RETRY_SECONDS if record.failed_probes else vary_slightly(PROBE_SECONDS)

    def _effect_verdict(self, tenant: Tenant) -> Verdict | None:
        clusters = self._computes.clusters
        links = {name: link for name, link in clusters.links.items() if link.is_reachable}
        found = {name: clusters.find_cluster(name) for name, link in links.items() if link.nodes.is_complete}
        return effect_verdict(
            tenant,
            computes={name: compute for name, compute in found.items() if compute is not None},
            classes={name: link.classes.class_names() for name, link in links.items() if link.classes.is_complete},
        )

    async def _handle_error(self, name: str, error: Exception) -> None:
        tenant, record = self.tenants.reflector.store.get(("", name)), self._records.get(name)
        if isinstance(error, (StatusNotWritten, Interrupted)):
            return
        if tenant is not None and record is not None and record.uid == tenant.metadata.uid:
            self._update_datastore_fact(name, record)
            record.record_error(error)
            await self._status_writer.write_status(tenant, record)

    def _update_datastore_fact(self, name: str, record: TenantRecord) -> bool:
        """Update the fact about datastore writes, and return whether the API server is blocked now."""
        writable = self._datastore_verdict(name)
        if writable is not None and (record.facts.datastore is not None or not writable.is_true):
            record.update_facts(datastore=writable)
        return writable is not None and not writable.is_true

    # Accepted

    async def _accept_spec(self, tenant: Tenant, record: TenantRecord) -> TenantSpec | None:
        """Return the spec in force: the requested or the previously accepted spec; None if there is none."""
        record.stage = "accepted"
        name = tenant.metadata.name
        verdict = self.accepted_specs.decide_acceptance(
            tenant,
            computes=self._computes.clusters.clusters_with_status(),
            templates=self._control_planes.template_names(),
        )
        record.update_facts(accepted=verdict)
        spec = self.accepted_specs.spec_of(name)
        if spec is not None and not _is_recorded(spec, tenant, record):
            others = (view.metadata.uid for view in self.tenants.reflector.store.values() if view.metadata.name != name)
            await self._finalizer.remove_predecessor(tenant, record, other_uids=frozenset(others))
            await self._record_acceptance(spec, tenant, record)
            self._computes.tenants_changed()
            if not record.facts.is_ready:  # the facts of a tenant that was Ready are about another spec
                await self._status_writer.write_status(tenant, record)
        return spec

    async def _record_acceptance(self, spec: TenantSpec, tenant: Tenant, record: TenantRecord) -> None:
        """Store the accepted spec and the finalizer on the object before anything is created for it."""
        seen = tenant.metadata
        annotations = acceptance_annotations(spec, seen.uid)
        stored = await finalizers.add_finalizer(
            self._management, TENANTS, seen, TENANT_FINALIZER, annotations=annotations
        )
        record.recorded_spec, record.recorded_version = spec, stored.resource_version

    # VirtualNodesReady

    async def _run_tenant(self, tenant: Tenant, record: TenantRecord, access: ApiServerAccess) -> None:
        record.stage = "virtual_nodes"
        state = await self._runner.ensure_running(tenant, access)
        verdict = state.verdict
        if verdict.status == "Unknown" and self._update_datastore_fact(tenant.metadata.name, record):
            verdict = false_verdict("DatastoreFull", "virtual nodes cannot be updated: the API server is read-only")
        record.update_facts(virtual_nodes=verdict, pools=state.pools)

    async def _run_previous(self, tenant: Tenant, record: TenantRecord) -> None:
        """Run the tenant on its existing control plane while provisioning fails; the status reports the failure."""
        if record.access is not None:
            with contextlib.suppress(errors.ApiError):
                state = await self._runner.ensure_running(tenant, record.access)
                record.update_facts(virtual_nodes=state.verdict, pools=state.pools)


def _is_recorded(spec: TenantSpec, tenant: Tenant, record: TenantRecord) -> bool:
    """Return whether the object carries the spec in force and the finalizer, which other clients may remove."""
    if _is_at_least(tenant.metadata.resource_version, record.recorded_version):
        metadata = tenant.metadata
        is_recorded = TENANT_FINALIZER in metadata.finalizers and ACCEPTED_FOR_ANNOTATION in metadata.annotations
        record.recorded_spec = read_accepted_spec(tenant) if is_recorded else None
    return record.recorded_spec == spec


def _is_at_least(version: str, ours: str) -> bool:
    """Return whether a watched version is at least as new as the gateway's last write (comparable by KEP-5504)."""
    return not ours or (version.isdecimal() and ours.isdecimal() and int(version) >= int(ours))


def _is_unchanged(old: Tenant, new: Tenant) -> bool:
    """Return whether only the status or the controller's own writes changed."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.generation == new.metadata.generation
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )


def effect_verdict(
    tenant: Tenant, *, computes: Mapping[str, ComputeCluster], classes: Mapping[str, Collection[str]]
) -> Verdict | None:
    """Return why parts of the spec have no effect now; None if all have.

    `classes` are the names of the storage classes by compute cluster, without clusters whose classes are not known.
    """
    problems = [*_empty_pools(tenant, computes), *_missing_classes(tenant, classes)]
    if not problems:
        return None
    reason = problems[0][0]
    return false_verdict(reason, "; ".join(sentence for _, sentence in problems))


def _empty_pools(tenant: Tenant, computes: Mapping[str, ComputeCluster]) -> Iterator[tuple[str, str]]:
    if not tenant.spec.pools:
        yield "NoPools", "spec.pools is empty, so that the tenant has no nodes and its pods stay Pending; add a pool"
    for index, pool in enumerate(tenant.spec.pools):
        compute = computes.get(pool.compute_cluster)
        seen = next((each for each in compute.status.pools if each.name == pool.name), None) if compute else None
        if compute is not None and seen is not None and not seen.nodes:
            spec = next((each for each in compute.spec.pools if each.name == pool.name), None)
            labels = ",".join(f"{key}={value}" for key, value in sorted((spec.node_selector if spec else {}).items()))
            yield (
                "PoolWithoutNodes",
                f"spec.pools[{index}]: pool {pool.name!r} of compute cluster {pool.compute_cluster!r} has no nodes; "
                f"label nodes with {labels}, or correct the pool's nodeSelector",
            )


def _missing_classes(tenant: Tenant, classes: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
    used = {pool.compute_cluster for pool in tenant.spec.pools}
    if not used or not used <= classes.keys():
        return
    found = sorted({name for cluster in used for name in classes[cluster]})
    policy = tenant.spec.policy
    for field, names in (
        ("storageClasses", [name for name in policy.storage_classes if name != ANY]),
        ("storageClassNames", list(policy.storage_class_names.values())),
    ):
        if missing := [name for name in names if name not in found]:
            yield (
                "StorageClassMissing",
                f"spec.policy.{field}: {', '.join(missing)}: no compute cluster of the tenant has this storage class; "
                f"available: {', '.join(found) or 'none'}",
            )
