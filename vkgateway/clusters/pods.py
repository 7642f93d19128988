"""Compute pods of all tenants, the copies that they use, and the pod fields that the cluster would drop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from vkgateway.api.names import NAMESPACE_ANNOTATION, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import Meta, Object, ObjectView, decode_object
from vkgateway.clusters.cluster_watches import LISTED, PODS, ClusterWatches
from vkgateway.clusters.reachability import Reachability
from vkgateway.clusters.tenant_owners import TenantOwners
from vkgateway.kinds.pods.policy.feature_gates import FeatureGatedField, feature_gated_fields
from vkgateway.kinds.pods.translation.subresources import Subresource
from vkgateway.kinds.sources import COMPUTE_COPIES, COMPUTE_PODS, COMPUTE_TOKENS
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.views.annotations import TOKEN_OF
from vkgateway.runtime.views.ownership import COPY_RESOURCES, CopyKind, Key, is_copy, owned_by, source_key
from vkgateway.runtime.views.pods import ComputePodView, decode_compute_pod


class ComputePods(Reflector[ComputePodView]):
    """Compute pods of all tenants. Observers of the cluster are notified of a change before the tenant is."""

    def __init__(
        self,
        client: Client,
        watches: ClusterWatches,
        reachability: Reachability,
    ) -> None:
        super().__init__(
            client,
            resources.PODS,
            decode=decode_compute_pod,
            on_change=self.handle_change,
            label_selector=TENANT_LABEL,
            on_reachable=reachability.set_watching,
            on_complete=partial(watches.notify, LISTED),
        )
        self._client = client
        self._watches = watches
        self.kept_features: set[str] = set()
        """Feature gates that were seen enabled in the cluster; a change of reachability clears them."""
        self._by_tenant: dict[str, dict[Key, ComputePodView]] = defaultdict(dict)

    def find_pod(self, tenant: str, key: Key) -> ComputePodView | None:
        """Return the compute pod of a tenant pod."""
        return self._by_tenant[tenant].get(key)

    def tenant_pod_keys(self, tenant: str) -> list[Key]:
        """Return the keys of all tenant pods that have a compute pod."""
        return list(self._by_tenant[tenant])

    def tenant_names(self) -> list[str]:
        """Return the sorted names of the tenants that have compute pods."""
        return sorted(tenant for tenant, pods in self._by_tenant.items() if pods)

    def of_tenant(self, tenant: str) -> list[ComputePodView]:
        """Return all compute pods of a tenant."""
        return list(self._by_tenant[tenant].values())

    def handle_change(self, old: ComputePodView | None, new: ComputePodView | None) -> None:
        """Handle a compute pod that was added, changed or deleted."""
        view = new or old
        if view is None or not owned_by(view.tenant_name, view.metadata):
            return
        tenant, key = view.tenant_name, view.tenant_key
        if new is not None:
            self._by_tenant[tenant][key] = new
        elif (known := self._by_tenant[tenant].get(key)) is not None and known.metadata.uid == view.metadata.uid:
            del self._by_tenant[tenant][key]
        self._watches.notify(PODS, old, new)
        if (owner := self._watches.tenants.get(tenant)) is not None:
            owner.notify(COMPUTE_PODS, key)

    async def fields_lost_on_create(self, pod: Object) -> tuple[FeatureGatedField, ...]:
        """Return the fields that the cluster would drop from a new pod. Raises ApiError, as the creation would.

        API servers drop feature-gated fields silently, and the version does not tell which gates are enabled. Pods and
        patches with such fields are therefore tried in a dry run first. Retained fields are cached, so that few pods
        need a dry run. Dropped fields are not cached, so that an enabled gate takes effect immediately.
        """
        untried = self._untried_fields(pod["spec"])
        if not untried:
            return ()
        namespace = pod["metadata"]["namespace"]
        return self._lost_fields(
            untried, await self._client.create(resources.PODS, pod, namespace=namespace, dry_run=True)
        )

    async def fields_lost_on_patch(
        self, pod: Meta, patch: Object, subresource: Subresource
    ) -> tuple[FeatureGatedField, ...]:
        """Return the fields that it would drop from a strategic merge patch. Raises ApiError, as the patch would."""
        untried = self._untried_fields(patch["spec"])
        if not untried:
            return ()
        answer = await self._client.patch(
            resources.PODS,
            pod.name,
            patch,
            namespace=pod.namespace,
            subresource=subresource,
            kind="strategic",
            dry_run=True,
        )
        return self._lost_fields(untried, answer)

    def _untried_fields(self, spec: Object) -> list[FeatureGatedField]:
        return [one for one in feature_gated_fields(spec) if one.gate not in self.kept_features]

    def _lost_fields(self, tried: Sequence[FeatureGatedField], answer: bytes) -> tuple[FeatureGatedField, ...]:
        """Return the fields that are missing in the answer to a dry run, and record the gates of the other ones."""
        kept = set(feature_gated_fields(msgspec.json.decode(answer)["spec"]))
        lost = tuple(one for one in tried if one not in kept)
        self.kept_features |= {one.gate for one in tried} - {one.gate for one in lost}
        return lost


class ComputeCopies(Reflector[ObjectView]):
    """Copies of all tenants' ConfigMaps or Secrets; for Secrets, the pods' token Secrets too.

    The ConfigMaps include the tenants' owner records, which are passed to `owners`.
    """

    def __init__(self, kind: CopyKind, client: Client, watches: ClusterWatches, owners: TenantOwners) -> None:
        super().__init__(
            client,
            COPY_RESOURCES[kind],
            decode=decode_object,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=partial(watches.notify, LISTED),
        )
        self._kind = kind
        self._watches = watches
        self._owners = owners

    def of_tenant(self, tenant: str) -> Iterator[Key]:
        """Yield the tenant's namespace and name of each object that has a copy."""
        for view in list(self.store.values()):
            if is_copy(tenant, view.metadata):
                yield source_key(view.metadata)

    def _handle_change(self, old: ObjectView | None, new: ObjectView | None) -> None:
        view = new or old
        if view is not None and view.metadata.namespace == SYSTEM_NAMESPACE and self._kind == "configmaps":
            self._owners.record_changed(old, new)
        if view is None or (owner := self._watches.find_owner(view.metadata)) is None:
            return
        annotations = view.metadata.annotations
        if TOKEN_OF not in annotations:
            owner.notify(COMPUTE_COPIES, self._kind, source_key(view.metadata))
        elif new is None:
            owner.notify(COMPUTE_TOKENS, (annotations[NAMESPACE_ANNOTATION], annotations[TOKEN_OF]))
