"""Making a tenant's control plane and taking it away: ordered steps, each of which may be repeated."""

from __future__ import annotations

import asyncio
import base64
import datetime
import enum
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import structlog

from vkgateway.controlplane.access import ControlPlane
from vkgateway.controlplane.credentials import Credentials
from vkgateway.controlplane.drivers.base import Driver, ServerEndpoint
from vkgateway.controlplane.kept_objects import (
    create_missing,
    delete_obsolete,
    is_initial,
    kept_objects,
    restore_objects,
)
from vkgateway.controlplane.plane import ControlPlaneSpec, tenant_plane_spec
from vkgateway.controlplane.plane_files import admin_kubeconfig
from vkgateway.controlplane.record_store import ControlPlaneRecord, RecordStore
from vkgateway.controlplane.service_ranges import ServiceRanges
from vkgateway.controlplane.templates import Template, Templates, TenantFacts
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.model.api import Tenant
from vkgateway.model.errors import InputError, UnavailableError
from vkgateway.model.names import validate_tenant_name

_log = structlog.get_logger(__name__)

_SERVING_SECONDS = 60.0
_POLL_SECONDS = 0.05
_FAILURE_CHECK_SECONDS = 1.0
# The roles take a second longer than the rest; an admin needs none of them, so objects are made meanwhile.
_ROLES_HOOK = "poststarthook/rbac/bootstrap-roles"


class Step(enum.StrEnum):
    """What is being done; the values serve as reasons of a condition."""

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
    """The part of `etcd.tenancy.Tenancy` that is used here."""

    async def ensure_tenant(self, tenant: str) -> bool:
        """Give a tenant its user, role and key range; whether it had no user."""

    async def remove_tenant(self, tenant: str) -> int:
        """Take them away, keys included."""


async def _ignore_step(step: Step) -> None:
    """Tell nobody."""


class Provisioner:
    """Makes control planes and takes them away. One call a tenant at a time; different tenants side by side.

    `etcd_endpoints` is where API servers find etcd; `webhooks_at` is the host and
    port of the gateway's endpoint, for those too old to gate pods themselves, and `webhooks_ca` who vouches for it.
    `endpoint` says the same of it for all, port 0 where that is not fixed.
    New tenants' Services get a range of `ranges` each; without it, all have their template's. `taken_ranges` may be set
    to what tells the ranges that none of them may have.
    """

    def __init__(
        self,
        *,
        store: RecordStore,
        datastore: Datastore,
        driver: Driver,
        templates: Templates,
        etcd_endpoints: tuple[str, ...],
        webhooks_at: str = "",
        endpoint: tuple[str, int] = ("", 0),
        webhooks_ca: bytes = b"",
        ranges: ServiceRanges | None = None,
        connect: Callable[[ControlPlane], Client] = ControlPlane.create_client,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._datastore = datastore
        self._driver = driver
        self._templates = templates
        self._etcd_endpoints = etcd_endpoints
        self._webhooks_at = webhooks_at
        self._endpoint = endpoint
        self._webhooks_ca = webhooks_ca
        self._ranges = ranges
        self.taken_ranges: Callable[[], Collection[str]] = tuple
        self._connect = connect
        self._now = now
        self._clock = clock
        self._sleep = sleep
        self._record_lock = asyncio.Lock()

    async def provision(self, tenant: Tenant, *, on_step: OnStep = _ignore_step) -> ControlPlane:
        """Bring a tenant's control plane to what its spec says, and return once it serves.

        `on_step` is awaited before each step. Stopped at any point and called again, it goes on from
        what it finds; called for a control plane that runs, it changes nothing.

        Raises:
            VkgatewayError: what stands in the way; `ApiError` and `EtcdError` tell by `transient` whether
                trying again helps.
        """
        name = tenant.metadata.name
        validate_tenant_name(name)
        await on_step(Step.TEMPLATE)
        template = self._templates.load_template(tenant.spec.template)
        await on_step(Step.CREDENTIALS)
        record, plane = await self._ensure_record(tenant, template)
        await on_step(Step.PROGRAMS)
        await self._driver.prepare(tenant.spec.kubernetes_version)
        await on_step(Step.DATASTORE)
        if await self._datastore.ensure_tenant(name):
            record = await self._forget_objects(name, record)
        await on_step(Step.PROCESSES)
        version = tenant.spec.kubernetes_version
        kubelet_clients = await self._driver.start(plane, credentials=record.credentials, version=version)
        control_plane = ControlPlane.from_record(plane, record, kubelet_clients)
        async with self._connect(control_plane) as client:
            await self._wait_until_ready(client, plane, exclude=_ROLES_HOOK)
            await on_step(Step.OBJECTS)
            objects = template.render_objects(self._tenant_facts(tenant, plane))
            await self._ensure_objects(client, record, objects, tenant=name)
            if record.objects:
                await self._delete_obsolete(client, objects, tenant=name)
            await on_step(Step.SERVING)
            await self._wait_until_ready(client, plane)
        return control_plane

    async def load_existing(self, tenant: Tenant) -> ControlPlane | None:
        """Say how a tenant's control plane was last made; None where that was never finished.

        Nothing is checked or changed, so it takes one look at the store where `provision` takes seconds.
        """
        name = tenant.metadata.name
        validate_tenant_name(name)
        kept = await self._store.load(name)
        if kept is None or not kept.objects:
            return None
        endpoint = await self._driver.find_endpoint(name, recorded_port=kept.port)
        kubelet_clients = await self._driver.kubelet_clients(name)
        if endpoint is None or not kubelet_clients:
            return None
        # Clients of the API server need nothing that the template sets.
        plane = tenant_plane_spec(
            name, address=endpoint.address, port=endpoint.port, etcd_endpoints=self._etcd_endpoints
        )
        return ControlPlane.from_record(plane, kept, kubelet_clients)

    async def restore_kept_objects(self, tenant: Tenant, *, client: Client, endpoint: ServerEndpoint) -> None:
        """Restore the kept objects of a tenant that serves at `endpoint`, if its admins changed them.

        Raises:
            VkgatewayError: its template cannot be read, or its API server does not answer or refuses.
        """
        template = self._templates.load_template(tenant.spec.template)
        facts = self._tenant_facts(tenant, self._plane_spec(tenant, template, endpoint=endpoint))
        objects = template.render_objects(facts)
        await self._restore_objects(client, objects, tenant=facts.name)
        await self._delete_obsolete(client, objects, tenant=facts.name)

    async def deprovision(self, tenant: str, *, on_step: OnStep = _ignore_step) -> None:
        """Remove everything a tenant's control plane had, and nothing else; credentials go last.

        It does not matter how much of it was ever made. What the tenant has in compute clusters is not
        touched: that must be gone before. A name that no tenant can have has nothing to be removed.
        """
        try:
            validate_tenant_name(tenant)
        except InputError:
            return
        await on_step(Step.STOPPING)
        await self._driver.remove(tenant)
        await on_step(Step.ERASING)
        keys = await self._datastore.remove_tenant(tenant)
        await on_step(Step.FORGETTING)
        await self._store.delete(tenant)
        _log.info("control plane removed", tenant=tenant, keys=keys)

    async def _ensure_record(self, tenant: Tenant, template: Template) -> tuple[ControlPlaneRecord, ControlPlaneSpec]:
        """Load the record or make it; renew the admin's certificate; follow a port that was changed."""
        name = tenant.metadata.name
        async with self._record_lock:
            kept = await self._store.load(name)
            endpoint = await self._driver.ensure_endpoint(
                name,
                requested_port=tenant.spec.api_server.port,
                recorded_port=kept.port if kept else 0,
                assigned_ports=self._store.assigned_ports,
            )
            credentials = kept.credentials if kept else await asyncio.to_thread(Credentials.create, name)
            credentials = credentials.renew_admin(now=self._now())
            service_range = kept.service_range if kept else await self._choose_range(name)
            service_cidr = (kept.service_cidr if kept else "") or service_range or template.service_cidr
            plane = self._plane_spec(tenant, template, endpoint=endpoint, service_cidr=service_cidr)
            record = ControlPlaneRecord(
                credentials=credentials,
                port=endpoint.port,
                kubeconfig=kubeconfig.dump(admin_kubeconfig(plane, credentials=credentials)),
                objects=kept.objects if kept else "",
                service_range=service_range,
                service_cidr=service_cidr,
            )
            if kept == record:
                return record, plane
            saved = await self._store.save(name, record)
        if (saved.port, saved.service_cidr) != (endpoint.port, service_cidr):  # another replica was quicker
            endpoint = endpoint._replace(port=saved.port)
            plane = self._plane_spec(tenant, template, endpoint=endpoint, service_cidr=saved.service_cidr)
        return saved, plane

    async def _forget_objects(self, tenant: str, record: ControlPlaneRecord) -> ControlPlaneRecord:
        """Forget that a tenant was born: etcd did not know it, so what it was born with is lost as well."""
        if not record.objects:
            return record
        _log.warning("the datastore did not know a tenant; what it is born with is made anew", tenant=tenant)
        return await self._store.save(tenant, replace(record, objects=""))

    async def _choose_range(self, tenant: str) -> str:
        """Choose a new tenant's range; "" where it has its template's. It stays for good, as API servers want it."""
        if self._ranges is None:
            return ""
        found = self._ranges.choose_range(tenant, given=await self._store.assigned_ranges(), taken=self.taken_ranges())
        if not found:
            _log.warning("no range of Services' addresses is free; the template's is used", tenant=tenant)
        return found

    def _plane_spec(
        self, tenant: Tenant, template: Template, *, endpoint: ServerEndpoint, service_cidr: str = ""
    ) -> ControlPlaneSpec:
        return tenant_plane_spec(
            tenant.metadata.name,
            address=endpoint.address,
            port=endpoint.port,
            etcd_endpoints=self._etcd_endpoints,
            subject_alt_names=tenant.spec.api_server.subject_alt_names,
            service_cidr=service_cidr or template.service_cidr,
            kubernetes_version=tenant.spec.kubernetes_version,
            webhooks_at=self._webhooks_at,
            pod_security=tenant.spec.policy.pod_security,
            tuning=template.tuning,
        )

    def _tenant_facts(self, tenant: Tenant, plane: ControlPlaneSpec) -> TenantFacts:
        return TenantFacts(
            name=tenant.metadata.name,
            template=tenant.spec.template,
            kubernetes_version=tenant.spec.kubernetes_version,
            address=plane.address,
            port=plane.port,
            cluster_domain=plane.cluster_domain,
            policy=tenant.spec.policy,
            endpoint_host=self._endpoint[0],
            endpoint_port=self._endpoint[1],
            webhooks_url=f"https://{plane.webhooks_at}" if plane.webhooks_at else "",
            webhooks_ca=base64.b64encode(self._webhooks_ca).decode(),
        )

    async def _wait_until_ready(self, client: Client, plane: ControlPlaneSpec, *, exclude: str = "") -> None:
        """Wait until the API server says that it is ready, but for the check called `exclude`."""
        params = {"exclude": exclude} if exclude else None
        started = looked = self._clock()
        while True:
            try:
                await client.request("GET", "/readyz", params=params, timeout=5)
                return
            except errors.ApiError as error:
                failure = error
            now = self._clock()
            if now - looked >= _FAILURE_CHECK_SECONDS:
                looked = now
                if trouble := await self._driver.failure_reason(plane):
                    raise UnavailableError(trouble)
            if now - started >= _SERVING_SECONDS:
                raise UnavailableError(
                    f"the API server of {plane.cluster!r} is not ready after {_SERVING_SECONDS:.0f} s: {failure}"
                ) from failure
            await self._sleep(_POLL_SECONDS)

    async def _ensure_objects(
        self, client: Client, record: ControlPlaneRecord, objects: list[dict[str, Any]], *, tenant: str
    ) -> None:
        """Make what the tenant is born with, once for each state of its template; keep what is to be kept.

        A tenant that has been born once may refuse changes later, by webhooks or policies of its own: that
        is told in the log and holds nothing up.
        """
        digest = hashlib.sha256(msgspec.json.encode(objects, order="deterministic")).hexdigest()[:16]
        if digest == record.objects:
            try:
                await self._restore_objects(client, objects, tenant=tenant)
            except errors.ApiError as error:
                _log.warning("kept objects were not put back", tenant=tenant, error=str(error))
            return
        try:
            await self._apply_with_retry(client, [one for one in objects if not is_initial(one)])
            await create_missing(client, objects)
        except errors.ApiError as error:
            if not record.objects:
                raise
            _log.warning("the tenant refuses its template's objects", tenant=tenant, error=str(error))
            return
        await self._store.save(tenant, replace(record, objects=digest))

    async def _restore_objects(self, client: Client, objects: list[dict[str, Any]], *, tenant: str) -> None:
        await create_missing(client, objects)
        if changed := await restore_objects(client, kept_objects(objects)):
            _log.warning("kept objects had been changed, and were put back", tenant=tenant, objects=changed)

    async def _delete_obsolete(self, client: Client, objects: list[dict[str, Any]], *, tenant: str) -> None:
        try:
            removed = await delete_obsolete(client, kept_objects(objects))
        except errors.ApiError as error:
            _log.warning("outgrown admission objects were not removed", tenant=tenant, error=str(error))
            return
        if removed:
            _log.info("removed outgrown admission objects", tenant=tenant, objects=removed)

    async def _apply_with_retry(self, client: Client, objects: list[dict[str, Any]]) -> None:
        """Apply, and again while a server that has just started lacks its first namespaces."""
        started = self._clock()
        while True:
            try:
                await apply_objects(client, objects)
                return
            except errors.ApiError as error:
                missing = isinstance(error, errors.NotFound)
                if not (missing or error.is_transient) or self._clock() - started >= _SERVING_SECONDS:
                    raise
            await self._sleep(_POLL_SECONDS)
