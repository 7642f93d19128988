"""Deletes objects in compute clusters that the tenant does not need any more."""

from __future__ import annotations

from typing import Final

from vkgateway.api.names import NAME_ANNOTATION
from vkgateway.api.objects import NamespaceView
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.configs.reconciler import CopyReconciler
from vkgateway.kinds.namespaces.reconciler import NamespaceReconciler
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import RESYNC
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.tokens.reconciler import ServiceAccountTokens
from vkgateway.kinds.volumes.storage_classes import StorageClassReconciler
from vkgateway.runtime.requests import RequestKind

SWEEP: Final = RequestKind[bool]("sweep")
"""The key says whether to repair compute namespaces, too: periodically, but not at each start."""
_SWEEP_SECONDS: Final = 600.0


class Sweeper:
    """Deleter of copies without users, tokens without pods, and compute namespaces without a tenant namespace."""

    def __init__(
        self,
        scope: TenantScope,
        *,
        copies: CopyReconciler,
        tokens: ServiceAccountTokens,
        namespaces: NamespaceReconciler,
        classes: StorageClassReconciler,
    ) -> None:
        self._scope = scope
        self._copies = copies
        self._tokens = tokens
        self._namespaces = namespaces
        self._classes = classes

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.for_(SWEEP, self.reconcile).watches(RESYNC, lambda: self._scope.work_queue.enqueue(SWEEP, key=False))

    async def reconcile(self, repair: bool) -> None:
        """Sweep all compute clusters, and again after 10 minutes. With `repair`, rewrite the objects of namespaces."""
        await apply_to_each(list(self._scope.links.values()), lambda link: self._sweep_cluster(link, repair=repair))
        self._classes.enqueue(always=repair)
        self._scope.work_queue.enqueue(SWEEP, True, _SWEEP_SECONDS)

    async def _sweep_cluster(self, link: ComputeLink, *, repair: bool) -> None:
        if not link.is_trusted:
            return
        for reference in self._copies.find_unused(link):
            self._copies.enqueue_unused(reference)
        # Collected for each cluster: pods may be created while another cluster is swept.
        alive = {view.metadata.uid for view in self._scope.cache.pods.store.values()}
        await self._tokens.delete_unused(link, alive)

        async def reconcile(view: NamespaceView) -> None:
            original = view.metadata.annotations.get(NAME_ANNOTATION, "")
            await self._namespaces.reconcile_in(link, original, repair=repair)

        await apply_to_each(link.namespaces.of_tenant(self._scope.name), reconcile)
