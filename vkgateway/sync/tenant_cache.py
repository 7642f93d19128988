"""Stores of a tenant cluster's pods, namespaces, ConfigMaps and Secrets, watched as long as the tenant is."""

from __future__ import annotations

from functools import partial
from typing import Any

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import UnavailableError
from vkgateway.model.objects import NamespaceView, ObjectView, decode_namespace, decode_object
from vkgateway.sync.runtime.sources import TENANT_CONFIG, TENANT_LISTED, TENANT_NAMESPACES, TENANT_PODS
from vkgateway.sync.runtime.watches import Watches
from vkgateway.sync.views.ownership import COPY_RESOURCES, CopyKind
from vkgateway.sync.views.pods import TenantPodView, decode_tenant_pod


class TenantCache:
    """The cache of one tenant. `sources` are the objects that pods may refer to; only their metadata is kept."""

    def __init__(self, client: Client, watches: Watches) -> None:
        self._watches = watches
        on_complete = partial(watches.notify, TENANT_LISTED)
        self.pods: Reflector[TenantPodView] = Reflector(
            client,
            resources.PODS,
            decode=decode_tenant_pod,
            on_change=lambda old, new: watches.notify(TENANT_PODS, old, new),
            on_complete=on_complete,
        )
        self.namespaces: Reflector[NamespaceView] = Reflector(
            client,
            resources.NAMESPACES,
            decode=decode_namespace,
            on_change=lambda old, new: watches.notify(TENANT_NAMESPACES, old, new),
            on_complete=on_complete,
        )
        self.sources: dict[CopyKind, Reflector[ObjectView]] = {
            kind: Reflector(
                client,
                resource,
                decode=decode_object,
                on_change=partial(self._source_changed, kind),
                on_complete=on_complete,
            )
            for kind, resource in COPY_RESOURCES.items()
        }

    @property
    def is_complete(self) -> bool:
        """Whether all lists are complete, so that an object which is not in the cache does not exist."""
        return (
            self.pods.is_complete
            and self.namespaces.is_complete
            and self.sources["configmaps"].is_complete
            and self.sources["secrets"].is_complete
        )

    def all_reflectors(self) -> list[Reflector[Any]]:
        """Return the watches; the caller runs them."""
        return [self.pods, self.namespaces, *self.sources.values()]

    def find_namespace(self, name: str) -> NamespaceView | None:
        """Return the tenant's namespace of this name."""
        return self.namespaces.store.get(("", name))

    def namespace_uid(self, name: str) -> str:
        """Return the UID of a namespace. Raises UnavailableError if it does not exist."""
        view = self.find_namespace(name)
        if view is None:
            raise UnavailableError(f"namespace {name} is gone", hint="nothing to do; its pods go with it")
        return view.metadata.uid

    def namespace_labels(self) -> dict[str, dict[str, str]]:
        """Return the labels of all namespaces, by name."""
        return {view.metadata.name: view.metadata.labels for view in self.namespaces.store.values()}

    def _source_changed(self, kind: CopyKind, old: ObjectView | None, new: ObjectView | None) -> None:
        view = new or old
        assert view is not None
        self._watches.notify(TENANT_CONFIG, (kind, *view.metadata.key))
