"""Watches of the tenants' claims and of the storage classes in a compute cluster."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from vkgateway.api.names import TENANT_LABEL, UID_ANNOTATION
from vkgateway.clusters.cluster_watches import STORAGE_CHANGED, ClusterWatches
from vkgateway.kinds.sources import COMPUTE_CLAIMS
from vkgateway.kinds.volumes.translation.views import ClaimView, StorageClassView, decode_claim, decode_class
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.watch_state import Key
from vkgateway.runtime.views.ownership import owned_by


class ComputeClaims(Reflector[ClaimView]):
    """Compute claims of all tenants, indexed by the UID of the tenant's claim."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.PERSISTENT_VOLUME_CLAIMS,
            decode=decode_claim,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=partial(watches.notify, STORAGE_CHANGED),
        )
        self._watches = watches
        self._by_tenant: dict[str, dict[str, Key]] = defaultdict(dict)
        """Keys of compute claims by tenant and UID of the tenant's claim."""

    def find_claim(self, tenant: str, uid: str) -> ClaimView | None:
        """Return the compute claim for the tenant's claim with this UID."""
        key = self._by_tenant[tenant].get(uid)
        return self.store.get(key) if key is not None else None

    def claim_uids(self, tenant: str) -> list[str]:
        """Return the UIDs of all the tenant's claims that have a compute claim."""
        return list(self._by_tenant[tenant])

    def _handle_change(self, old: ClaimView | None, new: ClaimView | None) -> None:
        view = new or old
        assert view is not None
        metadata = view.metadata
        tenant, uid = metadata.labels.get(TENANT_LABEL, ""), metadata.annotations.get(UID_ANNOTATION, "")
        if not owned_by(tenant, metadata):
            return
        if new is not None:
            self._by_tenant[tenant][uid] = metadata.key
        elif self._by_tenant[tenant].get(uid) == metadata.key:
            del self._by_tenant[tenant][uid]
        if (owner := self._watches.tenants.get(tenant)) is not None:
            owner.notify(COMPUTE_CLAIMS, uid)


class ComputeClasses(Reflector[StorageClassView]):
    """Storage classes of the cluster."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.STORAGE_CLASSES,
            decode=decode_class,
            on_change=lambda _old, _new: watches.notify(STORAGE_CHANGED),
            on_complete=partial(watches.notify, STORAGE_CHANGED),
        )

    def class_names(self) -> list[str]:
        """Return the names of the storage classes."""
        return [name for _, name in self.store]
