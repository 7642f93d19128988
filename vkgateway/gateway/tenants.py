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
from vkgateway.gateway.clearing import clear, clusters_of
from vkgateway.gateway.compute import ComputeController
from vkgateway.gateway.events import Recorder
from vkgateway.gateway.ledger import ACCEPTED_FOR, ACCEPTED_SPEC, Ledger, marks, written
from vkgateway.gateway.planes import Access, ControlPlanes, Runtimes
from vkgateway.gateway.status import Verdict, failing
from vkgateway.gateway.tenant_record import Interrupted, NotTold, Teller, TenantRecord
from vkgateway.gateway.upkeep import PROBE_AGAIN_SECONDS, PROBE_SECONDS, Upkeep, nobody
from vkgateway.gateway.worker import DONE, Fleet, Outcome
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import TENANTS
from vkgateway.model.api import Tenant, TenantSpec
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import TENANT_FINALIZER
from vkgateway.sync.metrics import forget as forget_metrics
from vkgateway.sync.teardown import remove_pods

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
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
        recorder: Recorder,
        computes: ComputeController,
        planes: ControlPlanes,
        runtimes: Runtimes,
        guarantee: Callable[[str], Verdict | None] = lambda _: None,
        datastore: Callable[[str], Verdict | None] = lambda _: None,
        concurrency: int = 8,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._management = management
        self._computes = computes
        self._planes = planes
        self._runtimes = runtimes
        self._guarantee = guarantee
        self._datastore = datastore
        self._monotonic = monotonic
        self._teller = Teller(management, recorder, clock=clock, monotonic=monotonic)
        self._upkeep = Upkeep(
            planes, teller=self._teller, runtimes=runtimes, concurrency=concurrency, monotonic=monotonic
        )
        self._records: dict[str, TenantRecord] = {}
        self.ledger = Ledger(computes.pool_facts, computes.standing)
        self._fleet = Fleet("tenant", self._reconcile, on_error=self._failed)
        self.tenants: Reflector[Tenant] = Reflector(
            management, TENANTS, decode=msgspec.json.Decoder(Tenant).decode, on_change=self._tenant_changed
        )

    def wake(self, name: str) -> None:
        """Have one tenant looked at."""
        if name in self._records:
            self._fleet.wake(name)

    def wake_all(self) -> None:
        """Have all tenants looked at: a compute cluster changed."""
        self._fleet.wake_all()

    def names(self) -> list[str]:
        """Return the names of the tenants that were looked at."""
        return list(self._records)

    def phases(self) -> list[str]:
        """Return the phase of every tenant that was looked at."""
        return [record.status.phase for record in self._records.values()]

    async def run(self) -> None:
        """Work until cancelled. Nothing is decided before all tenants and compute clusters are known."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tenants.run(), name="tenants/watch")
            await self.tenants.wait_complete()
            await self._computes.clusters.wait_complete()
            self.ledger.load(self.tenants.items.values())
            self._computes.tenants_changed()
            group.create_task(self._fleet.run(), name="tenants/workers")

    async def close(self) -> None:
        """End the work for all tenants; their pods and control planes go on."""
        await asyncio.gather(*(self._drop(name) for name in list(self._records)))

    def _tenant_changed(self, old: Tenant | None, new: Tenant | None) -> None:
        found = new or old
        if found is None or (old is not None and new is not None and _same(old, new)):
            return
        self._fleet.wake(found.metadata.name)
        record = self._records.get(found.metadata.name)
        if record is not None and found.metadata.deletion_timestamp is not None:
            record.interrupt()

    async def _reconcile(self, name: str) -> Outcome:
        tenant = self.tenants.items.get(("", name))
        record = self._records.get(name)
        if tenant is None or (record is not None and record.uid != tenant.metadata.uid):
            return await self._vanished(name, tenant)
        if record is None:
            record = self._records[name] = TenantRecord.of(tenant, now=self._monotonic())
        record.generation = tenant.metadata.generation
        if tenant.metadata.deletion_timestamp is not None:
            return await self._remove(tenant, record)
        self._learn_held(name, record)
        spec = await self._accept(tenant, record)
        if spec is None:
            await self._teller.tell(tenant, record)
            return RETRY_SECONDS
        inforce = Tenant(metadata=tenant.metadata, spec=spec, status=record.status)
        try:
            access = await self._upkeep.ensure(inforce, record)
        except Interrupted:
            raise
        except VkgatewayError:
            await self._serve_meanwhile(inforce, record)
            raise
        await self._serve(inforce, record, access)
        record.learn(guarantee=self._guarantee(name) or record.facts.guarantee)
        await self._teller.tell(tenant, record)
        if record.facts.virtual_nodes.status == "Unknown":
            return LOOK_SECONDS
        return PROBE_AGAIN_SECONDS if record.unanswered else PROBE_SECONDS

    async def _failed(self, name: str, error: Exception) -> None:
        tenant, record = self.tenants.items.get(("", name)), self._records.get(name)
        if isinstance(error, (NotTold, Interrupted)):
            return
        if tenant is not None and record is not None and record.uid == tenant.metadata.uid:
            self._learn_held(name, record)
            record.trouble(error)
            await self._teller.tell(tenant, record)

    def _learn_held(self, name: str, record: TenantRecord) -> bool:
        """Learn whether the tenant's API server may write, if it ever might not; say whether it may not now."""
        writable = self._datastore(name)
        if writable is not None and (record.facts.datastore is not None or not writable.good):
            record.learn(datastore=writable)
        return writable is not None and not writable.good

    # Accepted

    async def _accept(self, tenant: Tenant, record: TenantRecord) -> TenantSpec | None:
        """Return the spec in force: the one asked for, or the one accepted before; None if there is none."""
        record.stage = "accepted"
        name = tenant.metadata.name
        verdict = self.ledger.decide(tenant, computes=self._computes.seen(), templates=self._planes.templates())
        record.learn(accepted=verdict)
        spec = self.ledger.accepted(name)
        if spec is not None and not _is_recorded(spec, tenant, record):
            await self._remove_earlier(tenant, record)
            await self._record(spec, tenant, record)
            self._computes.tenants_changed()
            if not record.facts.ready:  # what is known of a tenant that was Ready is about another spec
                await self._teller.tell(tenant, record)
        return spec

    async def _remove_earlier(self, tenant: Tenant, record: TenantRecord) -> None:
        """See to it that a new tenant gets no credentials, keys or data of an earlier one of its name.

        They may be there though nobody took them away: its finalizer was taken off by force while no gateway ran, or
        the datastore was put back from a backup. What the copy of another tenant says of that one is no sign that this
        one had anything; but for its own it may be put back from a backup, too, and has all that is there.
        """
        annotations = tenant.metadata.annotations
        held = TENANT_FINALIZER in tenant.metadata.finalizers or ACCEPTED_SPEC in annotations
        others = (view.metadata for view in self.tenants.items.values() if view.metadata.name != tenant.metadata.name)
        copied = annotations.get(ACCEPTED_FOR) in {other.uid for other in others}
        if (held and not copied) or record.recorded is not None or record.facts.api_server is not None:
            return
        record.stage = "control_plane"
        await self._planes.remove(tenant.metadata.name, on_step=nobody)
        record.stage = "accepted"

    async def _record(self, spec: TenantSpec, tenant: Tenant, record: TenantRecord) -> None:
        """Write down what was accepted, with our finalizer, before anything is made for it."""
        seen = tenant.metadata
        annotations = marks(spec, seen.uid)
        stored = await finalizers.hold(self._management, TENANTS, seen, TENANT_FINALIZER, annotations=annotations)
        record.recorded, record.recorded_in = spec, stored.resource_version

    # VirtualNodesReady

    async def _serve(self, tenant: Tenant, record: TenantRecord, access: Access) -> None:
        record.stage = "virtual_nodes"
        seen = await self._runtimes.serve(tenant, access)
        verdict = seen.verdict
        if verdict.status == "Unknown" and self._learn_held(tenant.metadata.name, record):
            verdict = failing("DatastoreFull", "they cannot be brought up to date: the API server may not write")
        record.learn(virtual_nodes=verdict, pools=seen.pools)

    async def _serve_meanwhile(self, tenant: Tenant, record: TenantRecord) -> None:
        """Go on by the control plane there is, if any, while it cannot be made as wanted; that is what is told."""
        if record.access is not None:
            with contextlib.suppress(errors.ApiError):
                seen = await self._runtimes.serve(tenant, record.access)
                record.learn(virtual_nodes=seen.verdict, pools=seen.pools)

    # Deletion

    async def _remove(self, tenant: Tenant, record: TenantRecord) -> Outcome:
        record.stage = "deleting"
        name = tenant.metadata.name
        held = TENANT_FINALIZER in tenant.metadata.finalizers or record.recorded is not None
        if record.released or not held:
            return None
        await self._say(tenant, record, "its pods are being ended")
        await self._drop(name, keep=True)
        needed = clusters_of(tenant, self.ledger.accepted(name))
        await clear(self._computes, name, needed=needed, remove=remove_pods)
        # Kubernetes takes 5 s at least for a namespace; nothing in it runs any more.
        await _both(clear(self._computes, name, needed=needed), self._remove_plane(tenant, record))
        # A request that was under way when the work was ended may have made something since.
        await clear(self._computes, name, needed=needed)
        await self._release(tenant)
        record.released = True
        self.ledger.forget(name)
        forget_metrics(name)
        self._computes.tenants_changed()
        return None

    async def _remove_plane(self, tenant: Tenant, record: TenantRecord) -> None:
        await self._say(tenant, record, "its control plane and data are being removed")
        name = tenant.metadata.name
        await self._planes.remove(name, on_step=lambda _reason, message: self._say(tenant, record, message))
        await self._say(tenant, record, "its namespaces in compute clusters are being removed")

    async def _say(self, tenant: Tenant, record: TenantRecord, message: str) -> None:
        record.learn(deleting=Verdict("False", "Deleting", message))
        await self._teller.try_to_tell(tenant, record)

    async def _release(self, tenant: Tenant) -> None:
        await finalizers.release(self._management, TENANTS, tenant.metadata, TENANT_FINALIZER)
        log.info("tenant is gone", tenant=tenant.metadata.name)

    async def _vanished(self, name: str, successor: Tenant | None) -> Outcome:
        """The object is gone: what it had goes too, if somebody took our finalizer off by force."""
        await self._drop(name, keep=True)
        if self.ledger.accepted(name) is not None:
            log.warning("tenant vanished without being removed; removing what it had", tenant=name)
            await clear(self._computes, name, needed=self._computes.links)
            await self._planes.remove(name, on_step=nobody)
            self.ledger.forget(name)
            forget_metrics(name)
            self._computes.tenants_changed()
        self._records.pop(name, None)
        return DONE if successor is None else 0.0

    async def _drop(self, name: str, *, keep: bool = False) -> None:
        """End the work for a tenant and close its client."""
        record = self._records.get(name) if keep else self._records.pop(name, None)
        await self._runtimes.stop(name)
        if record is not None and record.access is not None:
            access, record.access = record.access, None
            await access.client.close()


async def _both(*parts: Awaitable[None]) -> None:
    """Do two things side by side, both to their end; raises what the first of them failed with."""
    for result in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _is_recorded(spec: TenantSpec, tenant: Tenant, record: TenantRecord) -> bool:
    """Whether the object carries the spec in force as its own, and our finalizer. Others may take them off."""
    if _is_since(tenant.metadata.resource_version, record.recorded_in):
        held = TENANT_FINALIZER in tenant.metadata.finalizers and ACCEPTED_FOR in tenant.metadata.annotations
        record.recorded = written(tenant) if held else None
    return record.recorded == spec


def _is_since(version: str, ours: str) -> bool:
    """Whether what a watch shows is at least as new as what we wrote, if we did; versions grow (KEP-5504)."""
    return not ours or (version.isdecimal() and ours.isdecimal() and int(version) >= int(ours))


def _same(old: Tenant, new: Tenant) -> bool:
    """Whether nothing changed but the status and what we wrote ourselves."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.generation == new.metadata.generation
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )
