"""Volumes of a tenant: each claim gets a compute claim, shown as a PersistentVolume in the tenant cluster.

The gateway takes the role of an external provisioner. The tenant's own controllers request a volume, bind it, protect
it while it is in use, and release it afterwards. Only the gateway sees the compute cluster.
"""

from __future__ import annotations

from typing import Final

import structlog

from vkgateway.api import times
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import COMPUTE_CLUSTER_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.namespaces.reconciler import NamespaceReconciler
from vkgateway.kinds.refusals import is_starting
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_CLAIMS, COMPUTE_STORAGE_CHANGED, RESYNC, TENANT_STORAGE_LISTED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.compute_volumes import ComputeVolumes
from vkgateway.kinds.volumes.tenant_volumes import VOLUME, TenantVolumes
from vkgateway.kinds.volumes.translation.claims import claim_status_patch, unsupported_reason
from vkgateway.kinds.volumes.translation.storage_classes import allowed_names, compute_class_name
from vkgateway.kinds.volumes.translation.views import PROVISIONER, ClaimView, VolumeView, decode_claim
from vkgateway.kinds.volumes.translation.volumes import (
    PROTECTION_FINALIZER,
    VOLUME_FINALIZER,
    tenant_volume,
    volume_name,
    volume_node_affinity,
    volume_patch,
)
from vkgateway.kube import errors, resources
from vkgateway.runtime import finalizers

log = structlog.get_logger(__name__)

_LOST_AFTER: Final = 30.0
"""Seconds for which a compute claim must be missing before its volume counts as lost; a watch may lag."""
_EXPANSION_RETRY: Final = 300.0
"""Seconds until a refused expansion is retried: a quota or a permission in the compute cluster may have changed."""
_SLOW_SECONDS: Final = 60.0
"""Seconds after which an unfinished provisioning is reported."""


class VolumeReconciler:
    """Reconciler of one tenant's volumes in all its compute clusters, keyed by the UID of the tenant's claim."""

    def __init__(self, scope: TenantScope, tenant_volumes: TenantVolumes, *, namespaces: NamespaceReconciler) -> None:
        self._scope = scope
        self._client = scope.client
        self._clock = scope.clock
        self._tenant_volumes = tenant_volumes
        self._compute_volumes = ComputeVolumes(scope, namespaces=namespaces)
        self._locations = VolumeLocations(scope, self._compute_volumes)
        self._writer = VolumeWriter(scope)
        self._missing_since: dict[str, float] = {}
        """Volumes that nothing stands for below, though something did, with the time since."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(VOLUME, self.reconcile)
            .watches(COMPUTE_CLAIMS, self._compute_claim_changed)
            .watches_each((TENANT_STORAGE_LISTED, COMPUTE_STORAGE_CHANGED, RESYNC), self._enqueue_all)
        )

    def _enqueue_all(self) -> None:
        if self._tenant_volumes.is_complete:
            for uid in self.known_volumes():
                self._scope.work_queue.enqueue(VOLUME, uid)

    def known_volumes(self) -> set[str]:
        """Return the handles of all volumes known in the tenant cluster or in a compute cluster."""
        compute_uids = (link.claims.claim_uids(self._scope.name) for link in self._scope.links.values())
        return self._tenant_volumes.volume_uids().union(*compute_uids)

    def _compute_claim_changed(self, uid: str) -> None:
        self._compute_volumes.claim_shown(uid)
        self._scope.work_queue.enqueue(VOLUME, uid)

    async def reconcile(self, uid: str) -> None:
        """Reconcile one volume. Raises ApiError or UnavailableError if it must be retried."""
        if not self._tenant_volumes.is_complete:
            return
        volume, claim = self._tenant_volumes.find_volume(uid), self._tenant_volumes.find_bound_claim(uid)
        if claim is not None and claim.spec.volume_name in ("", _volume_name_of(uid, volume)):
            await self._reconcile_claimed(uid, claim, volume)
        else:
            await self._reconcile_released(uid, volume, elsewhere=claim is not None)

    # A claim that uses or requests the volume

    async def _reconcile_claimed(self, uid: str, claim: ClaimView, volume: VolumeView | None) -> None:
        found = self._compute_volumes.find_claim(uid)
        if found is not None:
            self._missing_since.pop(uid, None)
            link, compute_claim = found
            if compute_claim.status.phase == "Lost":
                await self._lose_volume(volume)
            elif volume is None:
                await self._show_volume(claim, link, compute_claim)
            else:
                await self._update_volume(claim, volume, link, compute_claim)
        elif claim.is_deleting:
            return
        elif volume is None:
            if self._locations.are_clusters_trusted and not claim.spec.volume_name:
                await self._provision_volume(claim)
        elif self._locations.is_missing(volume):
            await (self._provision_volume(claim) if volume.is_provisional else self._handle_missing(uid, volume))

    async def _provision_volume(self, claim: ClaimView) -> None:
        """Create the compute claim, once the tenant's own controllers have requested provisioning."""
        name = claim.class_name
        if not name:
            return
        target = compute_class_name(self._scope.tenant, name)
        if target is None:
            classes = (known for link in self._scope.links.values() for known in link.classes.class_names())
            allowed = ", ".join(allowed_names(self._scope.tenant, classes)) or "none"
            message = f"storage class {name} is not allowed for this tenant; allowed: {allowed}"
            await self._report_event(claim.metadata, "StorageClassRefused", message)
            return
        if reason := unsupported_reason(claim):
            await self._report_event(claim.metadata, "NotSupported", reason)
            return
        link = self._locations.select_cluster(claim)
        if claim.provisioner_name != PROVISIONER or link is None or not link.claims_trusted:
            return
        if target not in link.classes.class_names():
            message = (
                f"storage class {name} does not exist in the compute cluster of node {claim.selected_node or 'any'}"
            )
            await self._report_event(claim.metadata, "StorageClassMissing", message)
            return
        try:
            compute_claim = await self._compute_volumes.create_claim(link, claim, class_name=target)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            if not is_starting(error):
                await self._report_event(
                    claim.metadata, "ForwardingRefused", self._compute_volumes.refusal_text(claim, error)
                )
            raise errors.TooManyRequests(error.message, status=429, reason="TooManyRequests") from error
        await self._show_volume(claim, link, compute_claim)

    async def _show_volume(self, claim: ClaimView, link: ComputeLink, compute_claim: ClaimView) -> None:
        """Create the volume in the tenant cluster, provisional if the compute cluster waits for a consumer.

        The tenant's scheduler binds no pod before its claims are bound, and the compute cluster provisions no volume
        before the pod exists. The provisional volume resolves this deadlock.
        """
        if claim.is_deleting:
            return
        waits = self._compute_volumes.waits_for_pod(link, compute_claim)
        if not compute_claim.is_bound and not waits:
            await self._report_slow(claim, compute_claim)
            return
        affinity = await self._locations.node_affinity(link, compute_claim)
        document = tenant_volume(
            claim,
            compute_claim,
            cluster=link.name,
            reclaim_policy=self._compute_volumes.reclaim_policy(link, compute_claim),
            node_affinity=affinity,
            provisional=not compute_claim.is_bound,
        )
        try:
            await self._client.create(resources.PERSISTENT_VOLUMES, document)
        except errors.AlreadyExists:
            return

    async def _update_volume(
        self, claim: ClaimView, volume: VolumeView, link: ComputeLink, compute_claim: ClaimView
    ) -> None:
        """Update capacity, node affinity and status of a volume, and expand it with its claim."""
        await self._writer.label_cluster(volume, link)
        if not compute_claim.is_bound:
            await self._report_slow(claim, compute_claim)
            return
        # A volume created while the tenant had pools in only one compute cluster has no node affinity yet.
        is_incomplete = volume.is_provisional or (
            volume.spec.node_affinity is None and len(self._locations.cluster_names()) > 1
        )
        affinity = await self._locations.node_affinity(link, compute_claim) if is_incomplete else None
        patch = volume_patch(volume, capacity=compute_claim.storage_capacity, node_affinity=affinity)
        if patch is not None:
            await self._writer.patch_volume(volume.metadata, patch)
        if not claim.is_bound or claim.spec.volume_name != volume.metadata.name:
            return
        status = claim_status_patch(claim, compute_claim)
        if status is not None:
            await self._client.patch_status(resources.PERSISTENT_VOLUME_CLAIMS, claim.metadata, status)
        refusal = await self._compute_volumes.resize_claim(link, compute_claim, claim)
        if refusal:
            await self._report_event(claim.metadata, "VolumeResizeFailed", refusal)
            self._scope.work_queue.enqueue(VOLUME, claim.metadata.uid, _EXPANSION_RETRY)

    async def _report_slow(self, claim: ClaimView, compute_claim: ClaimView) -> None:
        """Report a slow provisioning, unless the volume waits for its pod."""
        if not compute_claim.provisioner_name:
            return
        age = self._clock.time() - _created_at(compute_claim.metadata)
        if age < _SLOW_SECONDS:
            self._scope.work_queue.enqueue(VOLUME, claim.metadata.uid, _SLOW_SECONDS - age)
            return
        await self._report_event(
            claim.metadata, "VolumeDelayed", "the compute cluster has not provisioned the volume yet"
        )

    # A volume without a claim

    async def _reconcile_released(self, uid: str, volume: VolumeView | None, *, elsewhere: bool) -> None:
        """Delete a released volume, data included; the compute claim first.

        `elsewhere` says that the claim is bound to another volume.
        """
        found = self._compute_volumes.find_claim(uid)
        if found is not None or volume is None:
            self._missing_since.pop(uid, None)
        if volume is None:
            # A bound compute claim has a volume in the tenant cluster until the volume is released. If both volume and
            # claim are missing, the compute claim is retained: a tenant whose datastore was restored from a backup
            # still has its data.
            if found is not None and (elsewhere or not found[1].is_bound):
                await self._compute_volumes.delete_claim(*found)
            return
        # An existing compute claim can be deleted whatever the other clusters say. For a missing one, all must be
        # trusted.
        trusted = found[0].claims_trusted if found is not None else self._locations.is_missing(volume)
        if not trusted or await self._writer.is_claimed(volume):
            return
        if not volume.is_released:
            # The volume is retained. If its namespace was deleted, nothing is left of it.
            await (
                self._writer.label_cluster(volume, found[0]) if found is not None else self._handle_missing(uid, volume)
            )
        elif found is not None:
            await self._compute_volumes.delete_claim(*found)
        else:
            await self._writer.remove_volume(volume)

    async def _handle_missing(self, uid: str, volume: VolumeView) -> None:
        """Count a volume as lost if its compute claim stays missing, because it was deleted in the compute cluster."""
        now = self._clock.time()
        since = self._missing_since.setdefault(uid, now)
        if now - since < _LOST_AFTER:
            self._scope.work_queue.enqueue(VOLUME, uid, _LOST_AFTER - (now - since))
            return
        log.warning("compute claim of volume is missing", tenant=self._scope.name, volume=volume.metadata.name)
        await self._lose_volume(volume)

    async def _lose_volume(self, volume: VolumeView | None) -> None:
        """Delete the volume of an existing claim; the tenant's own controller then marks the claim as lost."""
        if volume is not None:
            await self._writer.remove_volume(volume, protected=True)

    async def _report_event(self, metadata: Meta, reason: str, message: str) -> None:
        await self._scope.events.emit_event(
            metadata, reason=reason, message=message, kind="Warning", about=resources.PERSISTENT_VOLUME_CLAIMS
        )


def _volume_name_of(uid: str, volume: VolumeView | None) -> str:
    return volume.metadata.name if volume is not None else volume_name(uid)


def _created_at(metadata: Meta) -> float:
    return times.parse_time(metadata.creation_timestamp).timestamp() if metadata.creation_timestamp else 0.0


class VolumeWriter:
    """Writer of the PersistentVolumes that the gateway created for one tenant."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope

    async def is_claimed(self, volume: VolumeView) -> bool:
        """Return whether a claim uses the volume. Data is at stake, so this reads the tenant's API server."""
        reference = volume.spec.claim_ref
        if reference is None:
            return False
        try:
            answer = await self._scope.client.get(
                resources.PERSISTENT_VOLUME_CLAIMS, reference.name, namespace=reference.namespace
            )
        except errors.NotFound:
            return False
        claim = decode_claim(answer)
        return claim.metadata.uid == reference.uid and claim.spec.volume_name in ("", volume.metadata.name)

    async def remove_volume(self, volume: VolumeView, *, protected: bool = False) -> None:
        """Delete a volume in the tenant cluster. `protected` also removes the tenant controller's finalizer."""
        metadata = volume.metadata
        finalizer_names = (VOLUME_FINALIZER, PROTECTION_FINALIZER) if protected else (VOLUME_FINALIZER,)
        if metadata.deletion_timestamp is None:
            try:
                await self._scope.client.delete(resources.PERSISTENT_VOLUMES, metadata.name, uid=metadata.uid)
            except (errors.NotFound, errors.Conflict):
                return
        if not set(finalizer_names).isdisjoint(metadata.finalizers):
            await finalizers.remove_finalizer(
                self._scope.client, resources.PERSISTENT_VOLUMES, metadata, *finalizer_names
            )

    async def patch_volume(self, metadata: Meta, patch: Object) -> None:
        """Patch a volume, if it still exists."""
        marked = {**patch, "metadata": {**(patch.get("metadata") or {}), "uid": metadata.uid}}
        try:
            await self._scope.client.patch(resources.PERSISTENT_VOLUMES, metadata.name, marked, metadata_only=True)
        except errors.NotFound:
            return

    async def label_cluster(self, volume: VolumeView, link: ComputeLink) -> None:
        """Label a volume with its compute cluster if the label is missing: the cluster may be detached later."""
        if volume.compute_cluster != link.name:
            await self.patch_volume(volume.metadata, {"metadata": {"labels": {COMPUTE_CLUSTER_LABEL: link.name}}})


class VolumeLocations:
    """Selection of the compute cluster of a new volume, and lookup of the nodes that can reach an existing one."""

    def __init__(self, scope: TenantScope, compute_volumes: ComputeVolumes) -> None:
        self._scope = scope
        self._compute_volumes = compute_volumes

    def select_cluster(self, claim: ClaimView) -> ComputeLink | None:
        """Return the compute cluster for a claim: that of the selected node, or else the only one."""
        links = {binding.link.name: binding.link for binding in self._scope.bindings.values()}
        if claim.selected_node:
            binding = self._scope.bindings.get(claim.selected_node)
            return self._scope.links.get(binding.link.name) if binding is not None else None
        return self._scope.links.get(next(iter(links))) if len(links) == 1 else None

    async def node_affinity(self, link: ComputeLink, compute_claim: ClaimView) -> Object | None:
        """Return the node affinity of a volume in the tenant cluster. Raises UnavailableError, ApiError."""
        bindings = self._scope.bindings.values()
        clusters = len(self.cluster_names())
        nodes_behind = [(b.pool, link.nodes.nodes_behind(b.pool)) for b in bindings if b.link is link]
        if compute_claim.is_bound and not link.nodes.is_complete:
            raise UnavailableError("the nodes of the compute cluster are not known at the moment")
        nodes = await self._compute_volumes.reachable_nodes(link, compute_claim) if compute_claim.is_bound else None
        return volume_node_affinity(link.name, clusters=clusters, nodes_behind=nodes_behind, compute_affinity=nodes)

    def cluster_names(self) -> set[str]:
        """Return the compute clusters in which the tenant has pools."""
        return {binding.link.name for binding in self._scope.bindings.values()}

    def is_missing(self, volume: VolumeView) -> bool:
        """Return whether the compute claim that was not found is missing; False while the volume's cluster is not
        attached.
        """
        cluster, links = volume.compute_cluster, self._scope.links
        is_attached = cluster in links if cluster else bool(links)
        return is_attached and all(link.claims_trusted for link in links.values())

    @property
    def are_clusters_trusted(self) -> bool:
        """Whether all clusters in which the tenant has pools or compute claims are trusted; others hold none of its
        volumes.
        """
        cluster_names = self.cluster_names()
        links = (
            link
            for link in self._scope.links.values()
            if link.name in cluster_names or link.claims.claim_uids(self._scope.name)
        )
        return all(link.claims_trusted for link in links)
