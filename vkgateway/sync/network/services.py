"""Services below: one for each of the tenant's that has a cluster address, with endpoints that are its own pods'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import CLUSTER_IP_ANNOTATION, NAMESPACE_ANNOTATION, UID_ANNOTATION, compute_namespace
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute.fan_out import apply_to_each
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.events import EventRecorder, Severity
from vkgateway.sync.namespaces import NamespaceReconciler
from vkgateway.sync.network.service_cidr import TenantServiceCidr, handle_refused_address
from vkgateway.sync.network.tenant_slices import TenantSlices
from vkgateway.sync.refusals import is_object_refused, lacks_rights, refusal_message
from vkgateway.sync.views.ownership import Key, owned_by, source_key
from vkgateway.translate.context import TenantContext
from vkgateway.translate.exposure import load_balancer_patch
from vkgateway.translate.sanitizer import Sanitizer
from vkgateway.translate.services import (
    API_SERVICE,
    ServiceView,
    decode_service,
    forward_service,
    is_forwarded,
    is_platform_service,
    is_service_current,
)

log = structlog.get_logger(__name__)

_KNOWN_WITHIN: Final = 5.0
"""Seconds for which a pod waits at most until it is known which Services there are."""


@dataclass(slots=True)
class _ServiceLock:
    """One at a time works on a Service; those who wait count as `users`, too."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class ServiceReconciler:
    """One tenant's Services in all its compute clusters.

    They are watched from the first time that the tenant has a compute namespace (`start_watching`): before, nothing of
    it runs that could call them. Endpoints of Services with a selector are the compute cluster's own affair: the
    selector chooses among the pods of one compute namespace. `wake(key)` asks for a look at one Service,
    `wake_addresses()` for one at those that lead to addresses which came or went.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        *,
        events: EventRecorder,
        namespaces: NamespaceReconciler,
        own_range: TenantServiceCidr,
        namespace_uid: Callable[[str], str],
        wake: Callable[[Key], None],
        wake_addresses: Callable[[], None],
        on_complete: Callable[[], None],
    ) -> None:
        self._tenant = tenant
        self._client = client
        self._events = events
        self._namespaces = namespaces
        self._range = own_range
        self._namespace_uid = namespace_uid
        self._wake = wake
        self._needed = asyncio.Event()
        self._known = asyncio.Event()
        self._unreconciled: set[Key] = set()
        """Services that came or changed, and were not looked at since."""
        self._locks: dict[Key, _ServiceLock] = {}
        """Services that are being looked at."""
        self.tenant_services: Reflector[ServiceView] = Reflector(
            client,
            resources.SERVICES,
            decode=decode_service,
            on_change=self._service_changed,
            on_complete=lambda: self._list_completed(on_complete),
        )
        self.slices = TenantSlices(
            tenant, client, wake=self._enqueue_service, wake_addresses=wake_addresses, on_complete=on_complete
        )

    @property
    def tenant(self) -> TenantContext:
        """Whose they are; may be set anew."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        self._tenant = self.slices.tenant = self._range.tenant = tenant

    @property
    def is_complete(self) -> bool:
        """Whether all of the tenant's Services are known."""
        return self.tenant_services.is_complete and self.slices.tenant_slices.is_complete

    def start_watching(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self._needed.set()

    async def run(self) -> None:
        """Watch, once that is needed, until cancelled."""
        await self._needed.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tenant_services.run(), name=f"tenant/{self.tenant.name}/watch-services")
            group.create_task(self.slices.tenant_slices.run(), name=f"tenant/{self.tenant.name}/watch-slices")

    def own_services(self) -> dict[Key, ServiceView]:
        """The Services that the tenant has beside those of its API server and of the platform's name server."""
        return {key: view for key, view in self.tenant_services.store.items() if not is_platform_service(view)}

    def enqueue_all(self, links: Iterable[ComputeLink]) -> None:
        """Have every Service looked at, above and below."""
        if not self.is_complete:
            return
        self.slices.pods_listed()
        keys = set(self.own_services())
        for link in links:
            for view in link.services.store.values():
                if owned_by(self.tenant.name, view.metadata):
                    keys.add(source_key(view.metadata))
        for key in keys:
            self._wake(key)

    def enqueue_namespace(self, namespace: str) -> None:
        """Have the Services of a namespace looked at."""
        for key in self.tenant_services.store:
            if key[0] == namespace:
                self._wake(key)

    def pod_changed(self, key: Key) -> None:
        """A pod came, changed or went below: addresses in slices that the tenant wrote may be its own no longer."""
        self.slices.pod_changed(key)

    def find_compute_service(self, link: ComputeLink, key: Key) -> ServiceView | None:
        """The compute Service that stands for a tenant's."""
        found = link.services.store.get((compute_namespace(self.tenant.name, key[0]), key[1]))
        return found if found is not None and owned_by(self.tenant.name, found.metadata) else None

    async def settle_namespace(self, namespace: str, links: Mapping[str, ComputeLink]) -> None:
        """Have what a namespace's Services are now stand below, as far as it can: a pod is about to start there.

        Its kubelet tells it their addresses once, when it starts.
        """
        self.start_watching()
        if not self._known.is_set():
            try:
                async with asyncio.timeout(_KNOWN_WITHIN):
                    await self._known.wait()
            except TimeoutError:
                log.warning("Services are not known; a pod starts without them", tenant=self.tenant.name)
                self._known.set()
        for key in [key for key in (*self._unreconciled, *self._locks) if key[0] == namespace]:
            try:
                await self.reconcile(key, links)
            except (errors.ApiError, ConflictError, UnavailableError) as error:
                log.info("a pod starts before a Service", tenant=self.tenant.name, service=key, error=str(error))

    async def reconcile(self, key: Key, links: Mapping[str, ComputeLink]) -> None:
        """Make what stands below for one Service equal to it, in every compute cluster that can be trusted.

        Raises:
            ConflictError: the name below is taken by something that is not this tenant's.
        """
        turn = self._locks.setdefault(key, _ServiceLock())
        turn.users += 1
        try:
            async with turn.lock:
                self._unreconciled.discard(key)
                await self._reconcile_all(key, links)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._locks[key]

    async def _reconcile_all(self, key: Key, links: Mapping[str, ComputeLink]) -> None:
        above = self._forwarded_service(key)
        if above is not None and (unopened := above.unforwarded_exposure(tenant=self.tenant)):
            message = f"{' and '.join(unopened)}: not opened by the compute cluster; the cluster address works"
            await self._report_event(above.metadata, "NotOpened", message, kind="Normal")
        trusted = [link for link in links.values() if link.services_trusted]
        own = {link.name: self.slices.addresses_in(link) for link in trusted} if self.slices.has_slices(key) else {}
        if above is not None:
            await self._publish_address(key, above, links.values())
        await apply_to_each(trusted, lambda link: self._reconcile_in(link, key, above, own.get(link.name, ())))
        if above is not None and own and len(trusted) == len(links):
            for message in self.slices.refused_addresses(key, own=frozenset().union(*own.values())):
                await self._report_event(above.metadata, "EndpointRefused", message)

    async def _publish_address(self, key: Key, above: ServiceView, links: Iterable[ComputeLink]) -> None:
        """Show the address of a LoadBalancer in its status, as the tenant's policy says."""
        below = [found for link in links if (found := self.find_compute_service(link, key)) is not None]
        patch = load_balancer_patch(
            above.spec, above.status, tenant=self.tenant, compute_statuses=[found.status for found in below]
        )
        if patch is None:
            return
        namespace, name = key
        body = patch | {"metadata": {"uid": above.metadata.uid}}
        try:
            await self._client.patch(resources.SERVICES, name, body, namespace=namespace, subresource="status")
        except (errors.NotFound, errors.Conflict):
            return

    def _forwarded_service(self, key: Key) -> ServiceView | None:
        """A Service that has, or should have, one below; headless ones and names of others live in DNS only."""
        view = self.tenant_services.store.get(key)
        if (
            view is None
            or is_platform_service(view)
            or not view.cluster_ip
            or view.metadata.deletion_timestamp is not None
        ):
            return None
        return view

    async def _reconcile_in(self, link: ComputeLink, key: Key, above: ServiceView | None, own: Collection[str]) -> None:
        below = self.find_compute_service(link, key)
        if above is None:
            if below is not None:
                await _delete_service(link, below.metadata)
            return
        await self._namespaces.ensure_namespace(link, key[0], self._namespace_uid(key[0]))
        try:
            below = await self._write_service(link, above, below)
        except errors.ApiError as error:
            if is_object_refused(error) or lacks_rights(error):
                cleaner = Sanitizer(((compute_namespace(self.tenant.name, key[0]), key[0]),))
                await self._report_event(above.metadata, "ForwardingRefused", refusal_message(error, cleaner))
            raise
        await self.slices.reconcile(link, below.metadata, key, own=own)

    async def _write_service(self, link: ComputeLink, above: ServiceView, below: ServiceView | None) -> ServiceView:
        same_address = self._range.contains_address(above.cluster_ip) and await self._range.ensure_range(link)
        if below is not None and same_address and _has_stale_address(above, below):
            await _delete_service(link, below.metadata)
            below = None
        wanted = forward_service(above, tenant=self.tenant)
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if below is None:
            try:
                return await self._create_service(link, above, wanted, same_address=same_address)
            except errors.AlreadyExists:
                below = decode_service(await link.client.get(resources.SERVICES, name, namespace=namespace))
            if not owned_by(self.tenant.name, below.metadata):
                message = "the Service's name is taken in the compute cluster by something that is not this tenant's"
                await self._report_event(above.metadata, "NameTaken", message)
                raise ConflictError(f"services/{name}: the name is taken in the compute cluster")
        if _is_current(above, below, tenant=self.tenant):
            return below
        # The cluster address stays: servers keep the one there is where none is named.
        wanted["metadata"] |= {"uid": below.metadata.uid, "resourceVersion": below.metadata.resource_version}
        if is_forwarded(above, tenant=self.tenant):
            # Controllers of load balancers keep their finalizers and notes on it.
            wanted["metadata"]["finalizers"] = list(below.metadata.finalizers)
            wanted["metadata"]["annotations"] = below.metadata.annotations | wanted["metadata"]["annotations"]
        return decode_service(await link.client.replace(resources.SERVICES, name, wanted, namespace=namespace))

    async def _create_service(
        self, link: ComputeLink, above: ServiceView, wanted: Object, *, same_address: bool
    ) -> ServiceView:
        namespace = wanted["metadata"]["namespace"]
        if same_address:
            addressed = wanted | {"spec": {**wanted["spec"], "clusterIP": above.cluster_ip}}
            try:
                return decode_service(await link.client.create(resources.SERVICES, addressed, namespace=namespace))
            except errors.Invalid as error:
                # Perhaps by the Service itself, not shown by the watch yet: addresses are looked at before names.
                handle_refused_address(link, error, self._range, above.cluster_ip)
                if self._will_release(link, above.cluster_ip):
                    raise UnavailableError(
                        "the address is that of a Service that is about to give it up", hint="it is tried again"
                    ) from error
        made = decode_service(await link.client.create(resources.SERVICES, wanted, namespace=namespace))
        if same_address:
            message = f"{above.cluster_ip} is in use in the compute cluster; the Service's name leads to another"
            await self._report_event(above.metadata, "AddressTaken", message)
        return made

    def _will_release(self, link: ComputeLink, address: str) -> bool:
        """Whether a Service of the tenant has an address below that it has no more above."""
        for view in link.services.store.values():
            if view.cluster_ip == address and owned_by(self.tenant.name, view.metadata):
                above = self._forwarded_service(source_key(view.metadata))
                if above is None:
                    return True
                return self._range.contains_address(above.cluster_ip) and _has_stale_address(above, view)
        return False

    async def _report_event(self, metadata: Meta, reason: str, message: str, *, kind: Severity = "Warning") -> None:
        await self._events.emit_event(metadata, reason=reason, message=message, kind=kind, about="Service")

    # What the watches say

    def _list_completed(self, tell: Callable[[], None]) -> None:
        self._known.set()
        tell()

    def _service_changed(self, old: ServiceView | None, new: ServiceView | None) -> None:
        view = new or old
        assert view is not None
        key = view.metadata.key
        if new is not None and new.cluster_ip and not is_platform_service(new):
            self._unreconciled.add(key)
        else:
            self._unreconciled.discard(key)
        self._enqueue_service(key)

    def _enqueue_service(self, key: Key) -> None:
        if key != API_SERVICE:
            self._wake(key)


def _is_current(above: ServiceView, below: ServiceView, *, tenant: TenantContext) -> bool:
    said = below.metadata.annotations
    return (
        said.get(UID_ANNOTATION) == above.metadata.uid
        and said.get(NAMESPACE_ANNOTATION) == above.metadata.namespace
        and said.get(CLUSTER_IP_ANNOTATION) == above.cluster_ip
        and is_service_current(above, below, tenant=tenant)
    )


def _has_stale_address(above: ServiceView, below: ServiceView) -> bool:
    """Whether the address above is another than when the one below was made, which cannot change its own."""
    known = below.metadata.annotations.get(CLUSTER_IP_ANNOTATION)
    return above.cluster_ip not in (known, below.cluster_ip)


async def _delete_service(link: ComputeLink, metadata: Meta) -> None:
    try:
        await link.client.delete(resources.SERVICES, metadata.name, namespace=metadata.namespace, uid=metadata.uid)
    except (errors.NotFound, errors.Conflict):
        return
