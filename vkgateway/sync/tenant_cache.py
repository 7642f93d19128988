"""What a tenant's API server holds of pods, namespaces, ConfigMaps and Secrets, watched as long as the tenant is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import UnavailableError
from vkgateway.model.objects import NamespaceView, ObjectView, decode_namespace, decode_object
from vkgateway.sync.views.ownership import COPY_RESOURCES, CopyKind, Reference
from vkgateway.sync.views.pods import TenantPodView, decode_tenant_pod


class TenantCache:
    """One tenant's; `sources` are what pods may refer to, of which only metadata is kept.

    `on_pod(old, new)` and `on_namespace(old, new)` hear of changes, `on_source(reference)` of which object changed, and
    `on_complete()` of each list that became complete.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_pod: Callable[[TenantPodView | None, TenantPodView | None], None],
        on_namespace: Callable[[NamespaceView | None, NamespaceView | None], None],
        on_source: Callable[[Reference], None],
        on_complete: Callable[[], None],
    ) -> None:
        self._on_source = on_source
        self.pods: Reflector[TenantPodView] = Reflector(
            client, resources.PODS, decode=decode_tenant_pod, on_change=on_pod, on_complete=on_complete
        )
        self.namespaces: Reflector[NamespaceView] = Reflector(
            client, resources.NAMESPACES, decode=decode_namespace, on_change=on_namespace, on_complete=on_complete
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
        """Whether everything the tenant has is known, so that absence is a fact."""
        return (
            self.pods.is_complete
            and self.namespaces.is_complete
            and self.sources["configmaps"].is_complete
            and self.sources["secrets"].is_complete
        )

    def all_reflectors(self) -> list[Reflector[Any]]:
        """The watches, which whoever has this runs."""
        return [self.pods, self.namespaces, *self.sources.values()]

    def find_namespace(self, name: str) -> NamespaceView | None:
        """The tenant's namespace of this name."""
        return self.namespaces.store.get(("", name))

    def namespace_uid(self, name: str) -> str:
        """Its UID. Raises UnavailableError if it is gone."""
        view = self.find_namespace(name)
        if view is None:
            raise UnavailableError(f"namespace {name} is gone", hint="nothing to do; its pods go with it")
        return view.metadata.uid

    def namespace_labels(self) -> dict[str, dict[str, str]]:
        """The labels of all namespaces, by name."""
        return {view.metadata.name: view.metadata.labels for view in self.namespaces.store.values()}

    def _source_changed(self, kind: CopyKind, old: ObjectView | None, new: ObjectView | None) -> None:
        view = new or old
        assert view is not None
        self._on_source((kind, *view.metadata.key))
