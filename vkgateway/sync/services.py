"""Services below: one for each of the tenant's that has a cluster address, with endpoints that are its own pods'."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import ConflictError
from vkgateway.model.names import NAMESPACE_ANNOTATION, UID_ANNOTATION, compute_namespace
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute import ComputeLink, Key, decode_service, decode_slice, owned_by, source_key
from vkgateway.sync.events import EventRecorder, Severity
from vkgateway.sync.namespaces import Namespaces
from vkgateway.translate.context import TenantContext
from vkgateway.translate.services import (
    CONTROLLERS_SLICES,
    MANAGED_BY_LABEL,
    ServiceView,
    SliceView,
    forward_service,
    forward_slice,
    reserved_selector,
    service_spec,
    slice_content,
)

log = structlog.get_logger(__name__)

KUBERNETES: Final = ("default", "kubernetes")
"""The Service of the API server itself, which pods find by other means."""


class Services:
    """One tenant's Services in all its compute clusters.

    They are watched from the first time that the tenant has a compute namespace (`need`): before, nothing of it runs
    that could call them. Endpoints of Services with a selector are the compute cluster's own affair: the selector
    chooses among the pods of one compute namespace. `wake(key)` asks for a look at one Service.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        *,
        events: EventRecorder,
        namespaces: Namespaces,
        namespace_uid: Callable[[str], str],
        wake: Callable[[Key], None],
        on_complete: Callable[[], None],
    ) -> None:
        self.tenant = tenant
        self._events = events
        self._namespaces = namespaces
        self._namespace_uid = namespace_uid
        self._wake = wake
        self._needed = asyncio.Event()
        self._slices_of: defaultdict[Key, set[Key]] = defaultdict(set)
        """Slices that the tenant wrote itself, by their Service."""
        self.above: Reflector[ServiceView] = Reflector(
            client,
            resources.SERVICES,
            decode=decode_service,
            on_change=self._service_changed,
            on_complete=on_complete,
        )
        self.slices: Reflector[SliceView] = Reflector(
            client,
            resources.ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=self._slice_changed,
            on_complete=on_complete,
            label_selector=f"{MANAGED_BY_LABEL}!={CONTROLLERS_SLICES}",
        )

    @property
    def complete(self) -> bool:
        """Whether all of the tenant's Services are known."""
        return self.above.complete and self.slices.complete

    def need(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self._needed.set()

    async def run(self) -> None:
        """Watch, once that is needed, until cancelled."""
        await self._needed.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.above.run(), name=f"tenant/{self.tenant.name}/watch-services")
            group.create_task(self.slices.run(), name=f"tenant/{self.tenant.name}/watch-slices")

    def own(self) -> dict[Key, ServiceView]:
        """The Services that the tenant has beside that of its API server."""
        return {key: view for key, view in self.above.items.items() if key != KUBERNETES}

    def wake_all(self, links: Iterable[ComputeLink]) -> None:
        """Have every Service looked at, above and below."""
        if not self.complete:
            return
        keys = set(self.own())
        for link in links:
            for view in link.services.items.values():
                if owned_by(self.tenant.name, view.metadata):
                    keys.add(source_key(view.metadata))
        for key in keys:
            self._wake(key)

    def wake_namespace(self, namespace: str) -> None:
        """Have the Services of a namespace looked at."""
        for key in self.above.items:
            if key[0] == namespace:
                self._wake(key)

    def pods_changed(self) -> None:
        """Pods came or went: addresses in slices that the tenant wrote may be its own no longer."""
        for key in self._slices_of:
            self._wake(key)

    def below(self, link: ComputeLink, key: Key) -> ServiceView | None:
        """The compute Service that stands for a tenant's."""
        found = link.services.items.get((compute_namespace(self.tenant.name, key[0]), key[1]))
        return found if found is not None and owned_by(self.tenant.name, found.metadata) else None

    async def reconcile(self, key: Key, links: Mapping[str, ComputeLink]) -> None:
        """Make what stands below for one Service equal to it, in every compute cluster that can be trusted.

        Raises:
            ConflictError: the name below is taken by something that is not this tenant's.
        """
        above = self._wanted(key)
        if above is not None and (reserved := reserved_selector(above.spec)):
            message = f"the selector's key {reserved} is the gateway's own, and no pod carries it; nothing leads there"
            await self._tell(above.metadata, "ServiceRefused", message)
            above = None
        if above is not None and above.outside:
            message = f"{' and '.join(above.outside)}: not opened by the compute cluster; the cluster address works"
            await self._tell(above.metadata, "NotOpened", message, kind="Normal")
        trusted = [link for link in links.values() if link.services_trusted]
        own = {link.name: pod_addresses(link, self.tenant.name) for link in trusted} if key in self._slices_of else {}
        for link in trusted:
            await self._reconcile(link, key, above, own.get(link.name, frozenset()))
        if above is not None and own and len(trusted) == len(links):
            await self._tell_refused(above, frozenset().union(*own.values()))

    def _wanted(self, key: Key) -> ServiceView | None:
        """A Service that has, or should have, one below; headless ones and names of others live in DNS only."""
        view = self.above.items.get(key) if key != KUBERNETES else None
        if view is None or not view.cluster_ip or view.metadata.deletion_timestamp is not None:
            return None
        return view

    async def _reconcile(self, link: ComputeLink, key: Key, above: ServiceView | None, own: frozenset[str]) -> None:
        below = self.below(link, key)
        if above is None:
            if below is not None:
                await _delete(link, resources.SERVICES, below.metadata)
            return
        await self._namespaces.ensure(link, key[0], self._namespace_uid(key[0]))
        try:
            below = await self._write(link, above, below)
        except errors.ApiError as error:
            if not error.transient:
                said = error.words.replace(compute_namespace(self.tenant.name, key[0]), key[0])
                await self._tell(above.metadata, "ForwardingRefused", f"the compute cluster refused it: {said}")
            raise
        await self._reconcile_slices(link, key, below, own)

    async def _write(self, link: ComputeLink, above: ServiceView, below: ServiceView | None) -> ServiceView:
        wanted = forward_service(above, tenant=self.tenant)
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if below is None:
            try:
                return decode_service(await link.client.create(resources.SERVICES, wanted, namespace=namespace))
            except errors.AlreadyExists:
                below = decode_service(await link.client.get(resources.SERVICES, name, namespace=namespace))
            if not owned_by(self.tenant.name, below.metadata):
                message = "the Service's name is taken in the compute cluster by something that is not this tenant's"
                await self._tell(above.metadata, "NameTaken", message)
                raise ConflictError(f"services/{name}: the name is taken in the compute cluster")
        if _same(above, below):
            return below
        # The cluster address stays: servers keep the one there is where none is named.
        wanted["metadata"] |= {"uid": below.metadata.uid, "resourceVersion": below.metadata.resource_version}
        return decode_service(await link.client.replace(resources.SERVICES, name, wanted, namespace=namespace))

    # Slices that tenants write themselves

    async def _reconcile_slices(self, link: ComputeLink, key: Key, service: ServiceView, own: frozenset[str]) -> None:
        below = {
            view.metadata.name: view
            for view in link.slices.items.values()
            if view.metadata.namespace == service.metadata.namespace
            and view.service == key[1]
            and owned_by(self.tenant.name, view.metadata)
        }
        for slice_key in sorted(self._slices_of.get(key, ())):
            above = self.slices.items.get(slice_key)
            if above is None:
                continue
            content, _ = slice_content(above, own=own)
            if content["endpoints"]:
                await self._write_slice(link, above, content, service.metadata, below.pop(above.metadata.name, None))
        for view in below.values():
            await _delete(link, resources.ENDPOINT_SLICES, view.metadata)

    async def _write_slice(
        self, link: ComputeLink, above: SliceView, content: Object, service: Meta, below: SliceView | None
    ) -> None:
        if below is not None and slice_text(below) == text_of(content):
            return
        wanted = forward_slice(above, content, service=service, tenant=self.tenant)
        namespace, name = service.namespace, above.metadata.name
        if below is None:
            try:
                await link.client.create(resources.ENDPOINT_SLICES, wanted, namespace=namespace)
                return
            except errors.AlreadyExists:
                below = decode_slice(await link.client.get(resources.ENDPOINT_SLICES, name, namespace=namespace))
            if not owned_by(self.tenant.name, below.metadata):
                raise ConflictError(f"endpointslices/{name}: the name is taken in the compute cluster")
        wanted["metadata"] |= {"uid": below.metadata.uid, "resourceVersion": below.metadata.resource_version}
        try:
            await link.client.replace(resources.ENDPOINT_SLICES, name, wanted, namespace=namespace)
        except errors.Invalid:  # the kind of address cannot be changed
            await _delete(link, resources.ENDPOINT_SLICES, below.metadata)
            raise

    async def _tell_refused(self, service: ServiceView, own: frozenset[str]) -> None:
        """Tell of addresses that are the tenant's pods' in none of its compute clusters."""
        for slice_key in sorted(self._slices_of.get(service.metadata.key, ())):
            view = self.slices.items.get(slice_key)
            refused = slice_content(view, own=own)[1] if view is not None else []
            if refused:
                named = ", ".join(refused[:5])
                message = f"EndpointSlice {slice_key[1]}: {named}: not the address of a running pod of this tenant"
                await self._tell(service.metadata, "EndpointRefused", message)

    async def _tell(self, metadata: Meta, reason: str, message: str, *, kind: Severity = "Warning") -> None:
        await self._events.emit(metadata, reason=reason, message=message, kind=kind, about="Service")

    # What the watches say

    def _service_changed(self, old: ServiceView | None, new: ServiceView | None) -> None:
        view = new or old
        assert view is not None
        if view.metadata.key != KUBERNETES:
            self._wake(view.metadata.key)

    def _slice_changed(self, old: SliceView | None, new: SliceView | None) -> None:
        for view in (old, new):
            if view is None or not view.service:
                continue
            service = view.metadata.namespace, view.service
            if service == KUBERNETES:
                continue
            if view is new:
                self._slices_of[service].add(view.metadata.key)
            else:
                self._slices_of[service].discard(view.metadata.key)
                if not self._slices_of[service]:
                    del self._slices_of[service]
            self._wake(service)


class _PodStatus(msgspec.Struct, rename="camel", gc=False):
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="podIPs")
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="hostIPs")


_status = msgspec.json.Decoder(_PodStatus)


def pod_addresses(link: ComputeLink, tenant: str) -> frozenset[str]:
    """Addresses of the tenant's pods that run in a compute cluster, as that tells them; never a node's."""
    found: set[str] = set()
    for view in link.pods_of(tenant):
        if view.ended:
            continue
        status = _status.decode(view.status)
        hosts = {status.host_ip, *(entry.get("ip", "") for entry in status.host_ips)}
        found |= {status.pod_ip, *(entry.get("ip", "") for entry in status.pod_ips)} - hosts
    return frozenset(found - {""})


def slice_text(view: SliceView) -> bytes:
    """What a slice says, for comparison."""
    return text_of({"addressType": view.address_type, "endpoints": view.endpoints or [], "ports": view.ports or []})


def text_of(content: Object) -> bytes:
    """The same of a slice that is to be."""
    return msgspec.json.encode(content, order="deterministic")


def _same(above: ServiceView, below: ServiceView) -> bool:
    return (
        below.metadata.annotations.get(UID_ANNOTATION) == above.metadata.uid
        and below.metadata.annotations.get(NAMESPACE_ANNOTATION) == above.metadata.namespace
        and not below.outside
        and service_spec(below.spec) == service_spec(above.spec)
    )


async def _delete(link: ComputeLink, resource: resources.Resource, metadata: Meta) -> None:
    try:
        await link.client.delete(resource, metadata.name, namespace=metadata.namespace, uid=metadata.uid)
    except (errors.NotFound, errors.Conflict):
        return
