"""Tenants that a standby serves at its kubelet endpoint: it watches their pods, and writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from vkgateway.api.objects import Meta, decode_object
from vkgateway.api.types import Tenant
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import NODES, PODS
from vkgateway.nodes.node_source import NodeSource
from vkgateway.runtime.views.pods import TenantPodView, decode_tenant_pod
from vkgateway.runtime.workqueue import ObjectQueue
from vkgateway.tenants.accepted_specs import read_accepted_spec
from vkgateway.tenants.interfaces import ApiServerAccess, ControlPlanes
from vkgateway.tenants.pods import TenantPods
from vkgateway.tenants.running_tenants import RunningTenants
from vkgateway.tenants.runtime import VIRTUAL_NODE_SELECTOR
from vkgateway.tenants.runtimes import TenantRuntimes
from vkgateway.tenants.store import TenantStore

log = structlog.get_logger(__name__)

RELOAD_SECONDS: Final = 60.0
"""Interval between reads of a tenant's access, whose certificates the leader renews."""
TAKEOVER_SECONDS: Final = 1.0
"""Interval between checks whether the runtime of a new leader has replaced a standby's view."""


class _NodeView(msgspec.Struct):
    metadata: Meta


def _decode_node(body: bytes) -> _NodeView:
    return _NodeView(decode_object(body).metadata)


class StandbyTenant:
    """View of one tenant: its pods and the labels of its virtual nodes. Close it after use."""

    def __init__(self, name: str, access: ApiServerAccess, sources: Mapping[str, NodeSource]) -> None:
        self.access = access
        self.client: Final = access.client
        self._sources = sources
        self._cache: Reflector[TenantPodView] = Reflector(
            access.client, PODS, decode=decode_tenant_pod, on_change=_ignore_change
        )
        self._nodes: Reflector[_NodeView] = Reflector(
            access.client, NODES, decode=_decode_node, on_change=_ignore_change, label_selector=VIRTUAL_NODE_SELECTOR
        )
        self.pods: Final = TenantPods(name, access.client, self._cache, sources=lambda: self._sources)
        watches = (("pods", self._cache), ("nodes", self._nodes))
        self._tasks = [asyncio.create_task(watch.run(), name=f"standby/{name}/watch-{kind}") for kind, watch in watches]

    def update_sources(self, sources: Mapping[str, NodeSource]) -> None:
        """Follow the virtual nodes of a changed spec or compute cluster."""
        self._sources = sources

    def node_labels(self) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of the virtual nodes by name."""
        return {name: node.metadata.labels for (_, name), node in self._nodes.store.items()}

    async def close(self) -> None:
        """Stop the watches, and close the client."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()


def _has_same_spec(old: Tenant, new: Tenant) -> bool:
    ours, theirs = old.metadata, new.metadata
    return (ours.uid, ours.generation, ours.annotations) == (theirs.uid, theirs.generation, theirs.annotations)


def _ignore_change(_old: object, _new: object) -> None:
    """Requests read the caches."""


class StandbyTenants:
    """Opens a view of each tenant that has a control plane, until the tenant runs here because this replica leads."""

    def __init__(
        self, planes: ControlPlanes, runtimes: TenantRuntimes, running: RunningTenants, tenants: TenantStore
    ) -> None:
        self._planes = planes
        self._runtimes = runtimes
        self._running = running
        self._tenants = tenants
        self._leading: asyncio.Event | None = None
        """Event of the current `run`."""
        self._queue = ObjectQueue("standby-tenant", self._reconcile)
        tenants.changed.subscribe(self._tenant_changed)

    def enqueue_all(self) -> None:
        """Update all views, because compute clusters changed."""
        self._queue.enqueue(*(name for _, name in self._tenants.reflector.store))

    def _tenant_changed(self, old: Tenant | None, new: Tenant | None) -> None:
        """Open, update or close the view of a tenant that was added, changed or deleted."""
        tenant = new or old
        is_viewed = tenant is not None and tenant.metadata.name in self._running.standbys
        if tenant is not None and not (is_viewed and old is not None and new is not None and _has_same_spec(old, new)):
            self._queue.enqueue(tenant.metadata.name)

    async def run(self, leading: asyncio.Event) -> None:
        """Run until cancelled. Once `leading` is set, only close views."""
        self._leading = leading
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._queue.run(), name="standby-tenants/workers")
                await leading.wait()
                self.enqueue_all()
        finally:
            views = list(self._running.standbys.values())
            self._running.standbys.clear()
            await asyncio.gather(*(view.close() for view in views))

    async def _reconcile(self, name: str) -> float | None:
        tenant = self._tenants.reflector.store.get(("", name))
        if tenant is None or tenant.spec.delete_after:
            # At once: the watches of the view may take a while to end.
            self._runtimes.revoke_tenant(name)
            await self._close_view(name)
            return None
        if self._leading is None or self._leading.is_set():
            return await self._hand_over(name)
        access = await self._planes.load_existing(tenant)
        if access is None:
            return RELOAD_SECONDS
        await self._update_view(tenant, access)
        return RELOAD_SECONDS

    async def _hand_over(self, name: str) -> float | None:
        """Close the view when the tenant's runtime answers requests."""
        if name not in self._running.standbys:
            return None
        if not self._running.is_served(name):
            return TAKEOVER_SECONDS
        await self._close_view(name)
        return None

    async def _update_view(self, tenant: Tenant, access: ApiServerAccess) -> None:
        name = tenant.metadata.name
        view = self._running.standbys.get(name)
        spec = read_accepted_spec(tenant) or tenant.spec
        accepted = Tenant(metadata=tenant.metadata, spec=spec, status=tenant.status)
        sources = self._runtimes.find_sources(accepted, access)
        if view is not None and view.access.is_same_server(access):
            view.update_sources(sources)
            await access.client.close()
        else:
            await self._close_view(name)
            self._running.standbys[name] = StandbyTenant(name, access, sources)
            log.info("standby serves a tenant's kubelet endpoint", tenant=name)
        self._runtimes.admit_tenant(name, access)

    async def _close_view(self, name: str) -> None:
        view = self._running.standbys.pop(name, None)
        if view is not None:
            await view.close()
