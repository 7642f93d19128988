"""Sources of changes that the reconcilers of a tenant can watch, and the handlers that watch them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVarTuple, Unpack

from vkgateway.api.objects import NamespaceView
from vkgateway.kinds.context import TenantContext
from vkgateway.runtime.views.ownership import CopyKind, Key, Reference
from vkgateway.runtime.views.pods import TenantPodView

Ts = TypeVarTuple("Ts")


class Source(Generic[*Ts]):
    """A source of changes. Its type parameters are the arguments of its handlers."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Source({self.name!r})"


class Watches:
    """Handlers by source, which run in the order of registration.

    A handler must neither wait nor raise: it only requests reconciles.
    """

    def __init__(self) -> None:
        self._handlers: dict[Source[*tuple[Any, ...]], list[Callable[..., None]]] = {}

    def add(self, source: Source[*Ts], handler: Callable[[Unpack[Ts]], None]) -> None:
        """Call a handler for each change of a source from now on."""
        self._handlers.setdefault(source, []).append(handler)

    def remove(self, source: Source[*Ts], handler: Callable[[Unpack[Ts]], None]) -> None:
        """Stop calling a handler."""
        self._handlers[source].remove(handler)

    def has_handlers(self, source: Source[*Ts]) -> bool:
        """Return whether any handler watches a source."""
        return bool(self._handlers.get(source))

    def notify(self, source: Source[*Ts], *change: *Ts) -> None:
        """Call the handlers of a source."""
        for handler in tuple(self._handlers.get(source, ())):
            handler(*change)


TENANT_CHANGED: Final = Source[TenantContext, TenantContext]("tenant changed")
"""The tenant's policy, pools or compute clusters changed: the old and the new tenant."""
TENANT_PODS: Final = Source[TenantPodView | None, TenantPodView | None]("tenant pods")
"""A tenant pod was created (old is None), changed, or was deleted (new is None)."""
TENANT_NAMESPACES: Final = Source[NamespaceView | None, NamespaceView | None]("tenant namespaces")
TENANT_CONFIG: Final = Source[Reference]("tenant configuration")
"""A ConfigMap or Secret of the tenant was created, changed or deleted."""
TENANT_LISTED: Final = Source[()]("tenant listed")
"""A list of the tenant cluster's pods, namespaces, ConfigMaps or Secrets is complete."""
RESYNC: Final = Source[()]("resync")
"""Every object may have changed: all lists are complete, the tenant changed, or a compute cluster is reachable."""

TENANT_SERVICES: Final = Source[Key]("tenant Services")
"""A Service of the tenant, or one of its slices, was created, changed or deleted, or must be reconciled again."""
TENANT_SERVICES_LISTED: Final = Source[()]("tenant Services listed")
"""The list of the tenant's Services or slices is complete."""
TENANT_STORAGE_LISTED: Final = Source[()]("tenant storage listed")
"""The list of the tenant's claims or volumes is complete."""
TENANT_CLAIMS: Final = Source[Key]("tenant claims")
"""A claim of the tenant, or its volume, changed."""
VOLUME_LOCATIONS: Final = Source[()]("volume locations")
"""Volumes may be reachable from other compute nodes than before."""
TENANT_ACTIVE: Final = Source[()]("tenant active")
"""The tenant has a compute namespace, or is about to get one: what only matters then is watched from now on."""

SERVER_ADDRESSES: Final = Source[()]("server addresses")
"""The tenant's API server or name servers may have other addresses, or a name server must be reconciled."""

COMPUTE_PODS: Final = Source[Key]("compute pods")
"""The compute pod of a tenant pod was created, changed or deleted; the key is that of the tenant pod."""
COMPUTE_TOKENS: Final = Source[Key]("compute tokens")
"""The Secret with the tokens of a pod was deleted; the key is that of the tenant pod."""
COMPUTE_COPIES: Final = Source[CopyKind, Key]("compute copies")
"""A copy of a ConfigMap or Secret was created, changed or deleted."""
COMPUTE_NAMESPACES: Final = Source[str]("compute namespaces")
"""The compute namespace of a tenant namespace was created, changed or deleted."""
COMPUTE_SERVICES: Final = Source[Key]("compute Services")
"""The compute Service of a tenant's Service, or one of its slices, was created, changed or deleted."""
COMPUTE_POLICIES: Final = Source[str]("compute network policies")
"""A network policy in the compute namespace of a tenant namespace was created, changed or deleted."""
COMPUTE_PLATFORM_SERVICES: Final = Source[()]("compute platform Services")
"""A Service or slice for the tenant in the gateway's own namespace was created, changed or deleted."""
COMPUTE_CLAIMS: Final = Source[str]("compute claims")
"""The compute claim of the tenant's claim with this UID was created, changed or deleted."""
COMPUTE_EVENTS: Final = Source[str, Key]("compute events")
"""An Event in a compute namespace of the tenant was created or changed: the compute cluster and the Event's own key."""
COMPUTE_NETWORK_LISTED: Final = Source[()]("compute network objects listed")
"""All Services, slices, network policies and PodDisruptionBudgets of a compute cluster are known."""
COMPUTE_STORAGE_CHANGED: Final = Source[()]("compute storage changed")
"""Storage classes of a compute cluster changed, or all its claims and classes are known."""
COMPUTE_REACHABLE: Final = Source[()]("compute cluster reachable")
"""A compute cluster became reachable or unreachable, or one of its lists is complete."""
