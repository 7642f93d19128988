"""A tenant's volumes: for each claim one below, shown above as a volume of its own, and gone with it.

The gateway is to a tenant what external provisioners are to any cluster: the tenant's own controllers ask it for a
volume, bind what it shows, protect what is in use, and release what is not. It alone looks below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.model import times
from vkgateway.model.errors import UnavailableError
from vkgateway.model.names import COMPUTE_CLUSTER_LABEL
from vkgateway.model.objects import Meta, Object
from vkgateway.sync import finalizers
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.events import EventRecorder, Severity
from vkgateway.sync.namespaces import NamespaceReconciler
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.refusals import is_starting
from vkgateway.sync.storage.compute_volumes import ComputeVolumes
from vkgateway.sync.storage.tenant_volumes import TenantVolumes
from vkgateway.translate.context import TenantContext
from vkgateway.translate.storage.claims import claim_status_patch, unsupported_reason
from vkgateway.translate.storage.storage_classes import allowed_names, compute_class_name
from vkgateway.translate.storage.views import PROVISIONER, ClaimView, VolumeView, decode_claim
from vkgateway.translate.storage.volumes import (
    PROTECTION_FINALIZER,
    VOLUME_FINALIZER,
    tenant_volume,
    volume_name,
    volume_node_affinity,
    volume_patch,
)

log = structlog.get_logger(__name__)

_LOST_AFTER: Final = 30.0
"""Seconds for which a compute claim must be missing until its volume counts as lost: a watch may lag."""
_GROW_AGAIN: Final = 300.0
"""Seconds until a growth that was refused is asked for again: a quota below, or a right, may be another by then."""
_SLOW_SECONDS: Final = 60.0
"""Seconds after which a volume that is still being made is told of."""


class VolumeReconciler:
    """One tenant's volumes in all its compute clusters; each is known by the UID of the claim that it was made for.

    `bindings` are its virtual nodes; `later(uid, seconds)` asks for another look at a volume.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        above: TenantVolumes,
        *,
        links: Mapping[str, ComputeLink],
        bindings: Mapping[str, VirtualNodeBinding],
        events: EventRecorder,
        namespaces: NamespaceReconciler,
        namespace_uid: Callable[[str], str],
        later: Callable[[str, float], None],
        clock: Callable[[], float],
    ) -> None:
        self.tenant = tenant
        self._client = client
        self._tenant_volumes = above
        self._links = links
        self._bindings = bindings
        self._events = events
        self._requeue_after = later
        self._clock = clock
        self._compute_volumes = ComputeVolumes(
            tenant.name, namespaces=namespaces, namespace_uid=namespace_uid, clock=clock
        )
        self._missing_since: dict[str, float] = {}
        """Volumes that nothing stands for below, though something did, with the time since."""

    def known_volumes(self) -> set[str]:
        """All volumes that there is anything of, above or below."""
        below = (link.claims.claim_uids(self.tenant.name) for link in self._links.values())
        return self._tenant_volumes.volume_uids().union(*below)

    def compute_claim_changed(self, uid: str) -> None:
        """What stands for a volume below came, changed or went."""
        self._compute_volumes.claim_shown(uid)

    async def reconcile(self, uid: str) -> None:
        """Look at one volume and do what follows. Raises ApiError, UnavailableError: to be tried again."""
        if not self._tenant_volumes.is_complete:
            return
        volume, claim = self._tenant_volumes.find_volume(uid), self._tenant_volumes.find_bound_claim(uid)
        if claim is not None and claim.spec.volume_name in ("", _volume_name_of(uid, volume)):
            await self._reconcile_claimed(uid, claim, volume)
        else:
            await self._reconcile_released(uid, volume, elsewhere=claim is not None)

    # A claim that has, or wants, the volume

    async def _reconcile_claimed(self, uid: str, claim: ClaimView, volume: VolumeView | None) -> None:
        found = self._compute_volumes.find_claim(uid, self._links.values())
        if found is not None:
            self._missing_since.pop(uid, None)
            link, below = found
            if below.status.phase == "Lost":
                await self._lose_volume(volume)
            elif volume is None:
                await self._show_volume(claim, link, below)
            else:
                await self._update_volume(claim, volume, link, below)
        elif claim.is_deleting:
            return
        elif volume is None:
            if self._are_clusters_trusted and not claim.spec.volume_name:
                await self._provision_volume(claim)
        elif self._is_missing(volume):
            await (self._provision_volume(claim) if volume.is_provisional else self._handle_missing(uid, volume))

    async def _provision_volume(self, claim: ClaimView) -> None:
        """Ask the compute cluster for the volume, once the tenant's own controllers have asked us."""
        name = claim.class_name
        if not name:
            return
        target = compute_class_name(self.tenant, name)
        if target is None:
            classes = (known for link in self._links.values() for known in link.classes.class_names())
            allowed = ", ".join(allowed_names(self.tenant, classes)) or "none"
            message = f"storage class {name} is not allowed to this tenant; allowed: {allowed}"
            await self._report_event(claim.metadata, "StorageClassRefused", message)
            return
        if why := unsupported_reason(claim):
            await self._report_event(claim.metadata, "NotSupported", why)
            return
        link = self._select_cluster(claim)
        if claim.provisioner_name != PROVISIONER or link is None or not link.claims_trusted:
            return
        if target not in link.classes.class_names():
            message = f"storage class {name} is not there in the compute cluster of node {claim.selected_node or 'any'}"
            await self._report_event(claim.metadata, "StorageClassMissing", message)
            return
        try:
            below = await self._compute_volumes.create_claim(link, claim, class_name=target, tenant=self.tenant)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            if not is_starting(error):
                await self._report_event(
                    claim.metadata, "ForwardingRefused", self._compute_volumes.refusal_text(claim, error)
                )
            raise errors.TooManyRequests(error.message, status=429, reason="TooManyRequests") from error
        await self._show_volume(claim, link, below)

    def _select_cluster(self, claim: ClaimView) -> ComputeLink | None:
        """The compute cluster for a claim: that of the node that the scheduler chose, or else the only one."""
        links = {binding.link.name: binding.link for binding in self._bindings.values()}
        if claim.selected_node:
            binding = self._bindings.get(claim.selected_node)
            return binding.link if binding is not None else None
        return next(iter(links.values())) if len(links) == 1 else None

    async def _show_volume(self, claim: ClaimView, link: ComputeLink, below: ClaimView) -> None:
        """Show the claim its volume, or a provisional one where the compute cluster waits for the pod itself.

        The tenant's scheduler lets no pod go to a node before its claims are bound, and the compute cluster makes no
        volume before a pod is there: one of the two must not wait.
        """
        if claim.is_deleting:
            return
        waits = self._compute_volumes.waits_for_pod(link, below)
        if not below.is_bound and not waits:
            await self._report_slow(claim, below)
            return
        affinity = await self._node_affinity(link, below)
        document = tenant_volume(
            claim,
            below,
            cluster=link.name,
            reclaim_policy=self._compute_volumes.reclaim_policy(link, below),
            node_affinity=affinity,
            provisional=not below.is_bound,
        )
        try:
            await self._client.create(resources.PERSISTENT_VOLUMES, document)
        except errors.AlreadyExists:
            return

    async def _update_volume(self, claim: ClaimView, volume: VolumeView, link: ComputeLink, below: ClaimView) -> None:
        """Make what is told of a volume true, and let it grow with its claim."""
        await self._label_cluster(volume, link)
        if not below.is_bound:
            await self._report_slow(claim, below)
            return
        # Of one that was shown while the tenant had pools in one compute cluster only nothing is told yet.
        untold = volume.is_provisional or (volume.spec.node_affinity is None and len(self._cluster_names()) > 1)
        affinity = await self._node_affinity(link, below) if untold else None
        patch = volume_patch(volume, capacity=below.storage_capacity, node_affinity=affinity)
        if patch is not None:
            await self._patch_volume(volume.metadata, patch)
        if not claim.is_bound or claim.spec.volume_name != volume.metadata.name:
            return
        status = claim_status_patch(claim, below)
        if status is not None:
            await self._client.patch(
                resources.PERSISTENT_VOLUME_CLAIMS,
                claim.metadata.name,
                {"metadata": {"uid": claim.metadata.uid}, "status": status},
                namespace=claim.metadata.namespace,
                subresource="status",
                metadata_only=True,
            )
        refused = await self._compute_volumes.resize_claim(link, below, claim)
        if refused:
            await self._report_event(claim.metadata, "VolumeResizeFailed", refused)
            self._requeue_after(claim.metadata.uid, _GROW_AGAIN)

    async def _node_affinity(self, link: ComputeLink, below: ClaimView) -> Object | None:
        bindings = self._bindings.values()
        clusters = len(self._cluster_names())
        nodes_behind = [(b.pool, link.nodes.nodes_behind(b.pool)) for b in bindings if b.link is link]
        if below.is_bound and not link.nodes.is_complete:
            raise UnavailableError("the nodes of the compute cluster are not known now")
        nodes = await self._compute_volumes.reachable_nodes(link, below) if below.is_bound else None
        return volume_node_affinity(link.name, clusters=clusters, nodes_behind=nodes_behind, below=nodes)

    def _cluster_names(self) -> set[str]:
        """The compute clusters in which the tenant has pools."""
        return {binding.link.name for binding in self._bindings.values()}

    async def _report_slow(self, claim: ClaimView, below: ClaimView) -> None:
        """Tell that a volume takes long, unless it is the pod that it waits for."""
        if not below.provisioner_name:
            return
        age = self._clock() - _created_at(below.metadata)
        if age < _SLOW_SECONDS:
            self._requeue_after(claim.metadata.uid, _SLOW_SECONDS - age)
            return
        await self._report_event(claim.metadata, "VolumeDelayed", "the compute cluster has not made the volume yet")

    # A volume that no claim has

    async def _reconcile_released(self, uid: str, volume: VolumeView | None, *, elsewhere: bool) -> None:
        """Remove a volume that was given up, and what stands for it below, data and all; that first.

        `elsewhere` says that its claim has found another volume.
        """
        found = self._compute_volumes.find_claim(uid, self._links.values())
        if found is not None or volume is None:
            self._missing_since.pop(uid, None)
        if volume is None:
            # Whatever was shown has a volume above until it is given up. One whose volume is not there, nor its claim,
            # is kept: a tenant whose store was set back has its data still.
            if found is not None and (elsewhere or not found[1].is_bound):
                await self._compute_volumes.delete_claim(*found)
            return
        # What is there can go, whatever another compute cluster would say; that there is nothing, all must have said.
        trusted = found[0].claims_trusted if found is not None else self._is_missing(volume)
        if not trusted or await self._is_claimed(volume):
            return
        if not volume.is_released:
            # It was to be kept. Nothing is left of it where its namespace went.
            await (self._label_cluster(volume, found[0]) if found is not None else self._handle_missing(uid, volume))
        elif found is not None:
            await self._compute_volumes.delete_claim(*found)
        else:
            await self._remove_volume(volume)

    async def _is_claimed(self, volume: VolumeView) -> bool:
        """Whether a claim has the volume, as the tenant's server itself tells it now: this is about data."""
        reference = volume.spec.claim_ref
        if reference is None:
            return False
        try:
            answer = await self._client.get(
                resources.PERSISTENT_VOLUME_CLAIMS, reference.name, namespace=reference.namespace
            )
        except errors.NotFound:
            return False
        claim = decode_claim(answer)
        return claim.metadata.uid == reference.uid and claim.spec.volume_name in ("", volume.metadata.name)

    async def _handle_missing(self, uid: str, volume: VolumeView) -> None:
        """Nothing stands below for a volume that there was: somebody there removed it."""
        now = self._clock()
        since = self._missing_since.setdefault(uid, now)
        if now - since < _LOST_AFTER:
            self._requeue_after(uid, _LOST_AFTER - (now - since))
            return
        log.warning("volume is gone below", tenant=self.tenant.name, volume=volume.metadata.name)
        await self._lose_volume(volume)

    async def _lose_volume(self, volume: VolumeView | None) -> None:
        """Take a volume away that its claim has still: the claim is then lost, as the tenant's controller tells it."""
        if volume is not None:
            await self._remove_volume(volume, protected=True)

    async def _remove_volume(self, volume: VolumeView, *, protected: bool = False) -> None:
        """Remove a volume above. With `protected` also where the tenant's own controller protects it for its claim."""
        metadata = volume.metadata
        ending = (VOLUME_FINALIZER, PROTECTION_FINALIZER) if protected else (VOLUME_FINALIZER,)
        if metadata.deletion_timestamp is None:
            try:
                await self._client.delete(resources.PERSISTENT_VOLUMES, metadata.name, uid=metadata.uid)
            except (errors.NotFound, errors.Conflict):
                return
        if not set(ending).isdisjoint(metadata.finalizers):
            await finalizers.remove_finalizers(self._client, resources.PERSISTENT_VOLUMES, metadata, *ending)

    async def _patch_volume(self, metadata: Meta, patch: Object) -> None:
        marked = {**patch, "metadata": {**(patch.get("metadata") or {}), "uid": metadata.uid}}
        try:
            await self._client.patch(resources.PERSISTENT_VOLUMES, metadata.name, marked, metadata_only=True)
        except errors.NotFound:
            return

    async def _label_cluster(self, volume: VolumeView, link: ComputeLink) -> None:
        """Note on a volume which compute cluster has it, if that is not said yet: it may be detached one day."""
        if volume.compute_cluster != link.name:
            await self._patch_volume(volume.metadata, {"metadata": {"labels": {COMPUTE_CLUSTER_LABEL: link.name}}})

    def _is_missing(self, volume: VolumeView) -> bool:
        """Whether nothing stands for a volume that was not found: not so while what has it is not attached."""
        where, links = volume.compute_cluster, self._links
        there = where in links if where else bool(links)
        return there and all(link.claims_trusted for link in links.values())

    @property
    def _are_clusters_trusted(self) -> bool:
        """The same of where the tenant has pools, or claims still: elsewhere none of its volumes was ever made."""
        own = self._cluster_names()
        links = (link for link in self._links.values() if link.name in own or link.claims.claim_uids(self.tenant.name))
        return all(link.claims_trusted for link in links)

    async def _report_event(self, metadata: Meta, reason: str, message: str, *, kind: Severity = "Warning") -> None:
        await self._events.emit_event(
            metadata, reason=reason, message=message, kind=kind, about="PersistentVolumeClaim"
        )


def _volume_name_of(uid: str, volume: VolumeView | None) -> str:
    return volume.metadata.name if volume is not None else volume_name(uid)


def _created_at(metadata: Meta) -> float:
    return times.parse_time(metadata.creation_timestamp).timestamp() if metadata.creation_timestamp else 0.0
