"""Creation and removal of tenants' control planes, in ordered steps that may be repeated."""

from __future__ import annotations

import base64
import enum
import hashlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec
import structlog

from vkgateway.api.errors import InputError
from vkgateway.api.names import validate_tenant_name
from vkgateway.api.types import Tenant
from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.planes.access import ControlPlane
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.driver_set import DriverSet
from vkgateway.planes.kept_objects import (
    create_missing,
    delete_obsolete,
    is_initial,
    kept_objects,
    restore_objects,
    skip_type_checks,
)
from vkgateway.planes.plane import ControlPlaneSpec, tenant_plane_spec
from vkgateway.planes.plane_records import PlaneRecords, PlatformEndpoints
from vkgateway.planes.publication import Publication
from vkgateway.planes.record_store import ControlPlaneRecord, RecordStore
from vkgateway.planes.service_ranges import ServiceRanges
from vkgateway.planes.serving import FindMissing, find_missing_names, wait_for_names, wait_until_ready
from vkgateway.planes.templates import Templates, TenantFacts

_log = structlog.get_logger(__name__)

# The bootstrap roles take a second longer than the rest. An admin needs none of them, so objects are created meanwhile.
_ROLES_HOOK = "poststarthook/rbac/bootstrap-roles"


class Step(enum.StrEnum):
    """Current step of the provisioner; the values are reasons of a condition."""

    TEMPLATE = "ReadingTemplate"
    CREDENTIALS = "MakingCredentials"
    PROGRAMS = "FetchingPrograms"
    DATASTORE = "PreparingDatastore"
    PROCESSES = "StartingControlPlane"
    OBJECTS = "MakingObjects"
    SERVING = "WaitingForControlPlane"
    STOPPING = "StoppingControlPlane"
    ERASING = "ErasingDatastore"
    FORGETTING = "RemovingCredentials"


OnStep = Callable[[Step], Awaitable[None]]


class Datastore(Protocol):
    """The subset of `etcd.tenancy.Tenancy` that the provisioner uses."""

    async def ensure_tenant(self, tenant: str) -> bool:
        """Ensure that a tenant has its user, role and key range; return whether the user is new."""

    async def remove_tenant(self, tenant: str) -> int:
        """Delete a tenant's user, role and keys; return the number of keys."""


async def _ignore_step(step: Step) -> None:
    """Ignore the step."""


class Provisioner:
    """Creates and removes control planes. One call per tenant at a time; calls for different tenants run concurrently.

    `endpoints` is what API servers reach. `address` is the host and port of the gateway's endpoint, with port 0 if the
    port is not fixed; `webhooks_ca` signed its certificate. New tenants get their Service range from `ranges`; without
    it, from their template. None gets a range that overlaps one of `taken_ranges`.
    """

    def __init__(
        self,
        *,
        store: RecordStore,
        datastore: Datastore,
        drivers: DriverSet,
        templates: Templates,
        endpoints: PlatformEndpoints,
        address: tuple[str, int] = ("", 0),
        webhooks_ca: bytes = b"",
        ranges: ServiceRanges | None = None,
        taken_ranges: Callable[[], Collection[str]] = tuple,
        connect: Callable[[ControlPlane], Client] = ControlPlane.create_client,
        find_missing: FindMissing = find_missing_names,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._datastore = datastore
        self._drivers = drivers
        self._templates = templates
        self._endpoints = endpoints
        self._address = address
        self._webhooks_ca = webhooks_ca
        self._connect = connect
        self._find_missing = find_missing
        self._clock = clock
        self._objects = TemplateObjects(store, clock=clock)
        self._records = PlaneRecords(
            store, drivers=drivers, endpoints=endpoints, ranges=ranges, taken_ranges=taken_ranges, clock=clock
        )

    async def provision(self, tenant: Tenant, *, on_step: OnStep = _ignore_step) -> ControlPlane:
        """Create or update a tenant's control plane as its spec says, and return once it serves.

        Awaits `on_step` before each step. A call that was interrupted may be repeated and continues from the current
        state. For a control plane that is up to date, nothing changes.

        Raises:
            VkgatewayError: the reason of the failure; `ApiError.is_transient` and `EtcdError.transient` say whether a
            retry helps.
        """
        name = tenant.metadata.name
        validate_tenant_name(name)
        await on_step(Step.TEMPLATE)
        template = self._templates.load_template(tenant.spec.template)
        await on_step(Step.CREDENTIALS)
        record, plane, former = await self._records.ensure(tenant, template)
        driver = self._drivers.named(record.driver)
        await on_step(Step.PROGRAMS)
        await driver.prepare(tenant.spec.kubernetes_version)
        if former:
            # Before the new start: two controller-managers without leader election would create the same pods twice.
            await self._drivers.remove(name, names=former)
        self._drivers.assign(name, record.driver)
        await on_step(Step.DATASTORE)
        if await self._datastore.ensure_tenant(name):
            record = await self._forget_objects(name, record)
        await on_step(Step.PROCESSES)
        version = tenant.spec.kubernetes_version
        kubelet_clients = await driver.start(plane, credentials=record.credentials, version=version)
        if former:
            # Not earlier: after an interruption, the record must name every driver that may run a part.
            record = await self._store.save(name, record)
            _log.info("control plane moved", tenant=name, to=record.driver)
        control_plane = ControlPlane.from_record(plane, record, kubelet_clients)
        async with self._connect(control_plane) as client:
            await wait_until_ready(client, plane, driver=driver, clock=self._clock, exclude=_ROLES_HOOK)
            await on_step(Step.OBJECTS)
            objects = template.render_objects(self._tenant_facts(tenant, plane))
            await self._objects.ensure(client, record, objects, tenant=name)
            if record.objects:
                await self._objects.delete_obsolete(client, objects, tenant=name)
            await on_step(Step.SERVING)
            await wait_until_ready(client, plane, driver=driver, clock=self._clock)
        await driver.start_clients(plane, version=version)
        await wait_for_names(
            plane, ca=control_plane.ca, driver=driver, clock=self._clock, find_missing=self._find_missing
        )
        return control_plane

    async def load_existing(self, tenant: Tenant) -> ControlPlane | None:
        """Return a tenant's control plane as it was last provisioned; None if that never finished.

        Reads the record and checks nothing, so it is much faster than `provision`.
        """
        name = tenant.metadata.name
        validate_tenant_name(name)
        kept = await self._store.load(name)
        if kept is None or not kept.objects:
            return None
        driver = self._drivers.assign(name, kept.driver)
        endpoint = await driver.endpoints.find(name, recorded_port=kept.port)
        kubelet_clients = await driver.kubelet_clients(name)
        if endpoint is None or not kubelet_clients:
            return None
        # Clients of the API server need nothing that the template sets.
        plane = tenant_plane_spec(
            name,
            address=endpoint.address,
            port=endpoint.port,
            etcd_endpoints=self._endpoints.etcd,
            publication=Publication(type=kept.exposure, url=kept.published_url),
        )
        return ControlPlane.from_record(plane, kept, kubelet_clients)

    async def check_publication(self, tenant: Tenant, *, endpoint: ServerEndpoint) -> Publication:
        """Return where clients outside the management cluster connect now, without other changes."""
        exposure = tenant.spec.api_server.exposure
        name = tenant.metadata.name
        return await self._drivers.of(name).endpoints.publish(name, exposure, previous=exposure.type, endpoint=endpoint)

    async def restore_kept_objects(self, tenant: Tenant, *, client: Client, endpoint: ServerEndpoint) -> None:
        """Restore the kept objects of a tenant that serves at `endpoint`, if its admins changed them.

        Raises:
            VkgatewayError: the template is not readable, or the API server does not answer or refuses.
        """
        template = self._templates.load_template(tenant.spec.template)
        facts = self._tenant_facts(tenant, self._endpoints.plane_spec(tenant, template, endpoint=endpoint))
        objects = template.render_objects(facts)
        await self._objects.restore(client, objects, tenant=facts.name)
        await self._objects.delete_obsolete(client, objects, tenant=facts.name)

    async def deprovision(self, tenant: str, *, on_step: OnStep = _ignore_step) -> None:
        """Remove a tenant's control plane, however much of it exists; credentials last.

        The tenant's objects in compute clusters must be deleted before. Nothing happens for an invalid tenant name,
        since no such tenant can exist.
        """
        try:
            validate_tenant_name(tenant)
        except InputError:
            return
        await on_step(Step.STOPPING)
        await self._drivers.remove(tenant)
        await on_step(Step.ERASING)
        keys = await self._datastore.remove_tenant(tenant)
        await on_step(Step.FORGETTING)
        await self._store.delete(tenant)
        _log.info("control plane removed", tenant=tenant, keys=keys)

    async def _forget_objects(self, tenant: str, record: ControlPlaneRecord) -> ControlPlaneRecord:
        """Clear the digest of the initial objects: etcd did not know the tenant, so its objects are lost."""
        if not record.objects:
            return record
        _log.warning("tenant missing in the datastore; its initial objects are created again", tenant=tenant)
        return await self._store.save(tenant, replace(record, objects=""))

    def _tenant_facts(self, tenant: Tenant, plane: ControlPlaneSpec) -> TenantFacts:
        return TenantFacts(
            name=tenant.metadata.name,
            template=tenant.spec.template,
            kubernetes_version=tenant.spec.kubernetes_version,
            address=plane.address,
            port=plane.port,
            cluster_domain=plane.cluster_domain,
            policy=tenant.spec.policy,
            endpoint_host=self._address[0],
            endpoint_port=self._address[1],
            webhooks_url=f"https://{plane.webhooks_at}" if plane.webhooks_at else "",
            webhooks_ca=base64.b64encode(self._webhooks_ca).decode(),
        )


_RETRY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


class TemplateObjects:
    """Writes the objects of templates; `store` records which version a tenant has."""

    def __init__(self, store: RecordStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock

    async def ensure(
        self, client: Client, record: ControlPlaneRecord, objects: list[dict[str, Any]], *, tenant: str
    ) -> None:
        """Apply the template's objects once per version of the template; restore kept objects each time.

        Later changes may fail because of the tenant's own webhooks or policies. Such a failure is logged and delays
        nothing.
        """
        digest = hashlib.sha256(msgspec.json.encode(objects, order="deterministic")).hexdigest()[:16]
        if digest == record.objects:
            try:
                await self.restore(client, objects, tenant=tenant)
            except errors.ApiError as error:
                _log.warning("failed to restore kept objects", tenant=tenant, error=str(error))
            return
        try:
            stored = await self._apply_with_retry(client, [one for one in objects if not is_initial(one)])
            await skip_type_checks(client, stored)
            await create_missing(client, objects)
        except errors.ApiError as error:
            if not record.objects:
                raise
            _log.warning("the tenant's API server refuses its template's objects", tenant=tenant, error=str(error))
            return
        await self._store.save(tenant, replace(record, objects=digest))

    async def restore(self, client: Client, objects: list[dict[str, Any]], *, tenant: str) -> None:
        """Create missing objects, and revert changes to kept ones. Raises ApiError."""
        await create_missing(client, objects)
        if changed := await restore_objects(client, kept_objects(objects)):
            _log.warning("kept objects restored", tenant=tenant, objects=changed)

    async def delete_obsolete(self, client: Client, objects: list[dict[str, Any]], *, tenant: str) -> None:
        """Delete objects that gate or reject pods and that the template no longer has; a failure is only logged."""
        try:
            removed = await delete_obsolete(client, kept_objects(objects))
        except errors.ApiError as error:
            _log.warning("failed to delete obsolete admission objects", tenant=tenant, error=str(error))
            return
        if removed:
            _log.info("obsolete admission objects deleted", tenant=tenant, objects=removed)

    async def _apply_with_retry(self, client: Client, objects: list[dict[str, Any]]) -> list[bytes]:
        """Apply objects and return the stored ones; retry until a new API server has created its first namespaces."""
        started = self._clock.monotonic()
        while True:
            try:
                return await apply_objects(client, objects)
            except errors.ApiError as error:
                missing = isinstance(error, errors.NotFound)
                if not (missing or error.is_transient) or self._clock.monotonic() - started >= _RETRY_SECONDS:
                    raise
            await self._clock.sleep(_POLL_SECONDS)
