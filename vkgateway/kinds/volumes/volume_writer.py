"""Writing of one tenant's volumes in the tenant cluster."""

from __future__ import annotations

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.translation.views import VolumeView, decode_claim
from vkgateway.kinds.volumes.translation.volumes import PROTECTION_FINALIZER, VOLUME_FINALIZER
from vkgateway.kube import errors, resources
from vkgateway.runtime import finalizers


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
            await finalizers.remove_finalizers(
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
