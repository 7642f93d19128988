"""What stands for a tenant's volumes in compute clusters: claims there, made, grown and deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import OBJECT_NAME_MAX, UID_ANNOTATION, compute_namespace
from vkgateway.model.objects import Object
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.namespaces import NamespaceReconciler
from vkgateway.sync.refusals import is_starting, refusal_message
from vkgateway.sync.views.annotations import NODES
from vkgateway.sync.views.ownership import owned_by
from vkgateway.translate.context import TenantContext
from vkgateway.translate.sanitizer import Sanitizer
from vkgateway.translate.storage.claims import forward_claim, is_same_quantity
from vkgateway.translate.storage.views import STORAGE, ClaimView, decode_claim, decode_volume

log = structlog.get_logger(__name__)

_MADE_FOR: Final = 30.0
"""Seconds for which a claim that was just made counts as there, though the watch has not shown it."""


class ComputeVolumes:
    """One tenant's compute claims. Each is found by the UID of the tenant's claim that it was made for."""

    def __init__(
        self,
        tenant: str,
        *,
        namespaces: NamespaceReconciler,
        namespace_uid: Callable[[str], str],
        clock: Callable[[], float],
    ) -> None:
        self._tenant = tenant
        self._namespaces = namespaces
        self._namespace_uid = namespace_uid
        self._clock = clock
        self._created_claims: dict[str, tuple[ComputeLink, ClaimView, float]] = {}
        """Claims that were just made, until the watch shows them, with the time of giving up."""

    def find_claim(self, uid: str, links: Iterable[ComputeLink]) -> tuple[ComputeLink, ClaimView] | None:
        """The compute claim of a volume and where it is, as far as anything is known."""
        for link in links:
            view = link.claims.find_claim(self._tenant, uid)
            if view is not None:
                self._created_claims.pop(uid, None)
                return link, view
        made = self._created_claims.get(uid)
        if made is not None and made[2] > self._clock():
            return made[0], made[1]
        self._created_claims.pop(uid, None)
        return None

    def claim_shown(self, uid: str) -> None:
        """A watch told something of a volume's compute claim: it knows better than we from now on."""
        self._created_claims.pop(uid, None)

    async def create_claim(
        self, link: ComputeLink, claim: ClaimView, *, class_name: str, tenant: TenantContext
    ) -> ClaimView:
        """Make the compute claim for a tenant's; it may be there already.

        It has the claim's own name, unless a volume that was kept for later has it.
        Raises ConflictError where the name is taken by something that is not this tenant's, UnavailableError while an
        earlier claim of the name is on its way out.
        """
        source = claim.metadata
        namespace = await self._namespaces.ensure_namespace(
            link, source.namespace, self._namespace_uid(source.namespace)
        )
        for name in (source.name, _second_name(source.name, source.uid)):
            document = forward_claim(claim, name=name, class_name=class_name, tenant=tenant)
            made = await self._create_claim(link, document, namespace)
            if made.metadata.annotations.get(UID_ANNOTATION) == source.uid:
                self._created_claims[source.uid] = link, made, self._clock() + _MADE_FOR
                return made
            if made.is_deleting:
                raise UnavailableError(f"claim {name} of an earlier volume is still being removed below")
        raise ConflictError(f"persistentvolumeclaims/{source.name}: the name is taken in the compute cluster")

    async def _create_claim(self, link: ComputeLink, document: Object, namespace: str) -> ClaimView:
        """The claim that has the name now: the one made, or whichever was there before."""
        name = document["metadata"]["name"]
        try:
            answer = await link.client.create(resources.PERSISTENT_VOLUME_CLAIMS, document, namespace=namespace)
        except errors.AlreadyExists:
            answer = await link.client.get(resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace)
        found = decode_claim(answer)
        if not owned_by(self._tenant, found.metadata):
            raise ConflictError(f"persistentvolumeclaims/{name}: the name is taken in the compute cluster")
        return found

    async def delete_claim(self, link: ComputeLink, below: ClaimView) -> None:
        """Delete a compute claim; its data goes as its class says there."""
        metadata = below.metadata
        self._created_claims.pop(metadata.annotations.get(UID_ANNOTATION, ""), None)
        if below.is_deleting:
            return
        log.info("removing volume", tenant=self._tenant, compute=link.name, claim="/".join(metadata.key))
        try:
            await link.client.delete(
                resources.PERSISTENT_VOLUME_CLAIMS, metadata.name, namespace=metadata.namespace, uid=metadata.uid
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def resize_claim(self, link: ComputeLink, below: ClaimView, claim: ClaimView) -> str:
        """Ask for as much below as the tenant's claim asks for; returns why that was refused, or "".

        Raises ApiError.
        """
        if is_same_quantity(below.requested_storage, claim.requested_storage):
            return ""
        patch: dict[str, Any] = {
            "metadata": {"uid": below.metadata.uid},
            "spec": {"resources": {"requests": {STORAGE: claim.requested_storage}}},
        }
        try:
            await link.client.patch(
                resources.PERSISTENT_VOLUME_CLAIMS,
                below.metadata.name,
                patch,
                namespace=below.metadata.namespace,
                metadata_only=True,
            )
        except (errors.Invalid, errors.Forbidden) as error:
            if is_starting(error):
                raise
            return self.refusal_text(claim, error)
        return ""

    async def reachable_nodes(self, link: ComputeLink, below: ClaimView) -> Object:
        """What the compute volume of a bound claim says of nodes that can reach it; asked once, and noted there."""
        known = recorded_nodes(below)
        if known is not None:
            return known
        nodes = await self._read_nodes(link, below) or {}
        metadata = below.metadata
        note = {"uid": metadata.uid, "annotations": {NODES: msgspec.json.encode(nodes).decode()}}
        await link.client.patch(
            resources.PERSISTENT_VOLUME_CLAIMS,
            metadata.name,
            {"metadata": note},
            namespace=metadata.namespace,
            metadata_only=True,
        )
        return nodes

    async def _read_nodes(self, link: ComputeLink, below: ClaimView) -> Object | None:
        try:
            answer = await link.client.get(resources.PERSISTENT_VOLUMES, below.spec.volume_name)
        except errors.NotFound:
            return None
        except errors.Forbidden as error:
            log.warning("volume not read", tenant=self._tenant, compute=link.name, error=error.message)
            return None
        return decode_volume(answer).spec.node_affinity

    def waits_for_pod(self, link: ComputeLink, below: ClaimView) -> bool:
        """Whether the compute cluster makes the volume only once a pod that uses it is there."""
        found = link.classes.store.get(("", below.class_name))
        return found is not None and found.waits_for_consumer

    def reclaim_policy(self, link: ComputeLink, below: ClaimView) -> str:
        """What becomes of the data once no claim has it, as the class says."""
        found = link.classes.store.get(("", below.class_name))
        return found.reclaim_policy if found is not None else "Delete"

    def refusal_text(self, claim: ClaimView, error: errors.ApiError) -> str:
        """What the compute cluster said of a claim, for its tenant."""
        namespace = claim.metadata.namespace
        return refusal_message(error, Sanitizer(((compute_namespace(self._tenant, namespace), namespace),)))


def recorded_nodes(below: ClaimView) -> Object | None:
    """What was noted of the nodes that can reach a volume; None where that is not known yet."""
    text = below.metadata.annotations.get(NODES)
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text is not None else None
    except msgspec.DecodeError:
        return None


def _second_name(name: str, uid: str) -> str:
    """A name for a claim whose own is taken by an earlier volume that was kept."""
    suffix = f"-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"
    return f"{name[: OBJECT_NAME_MAX - len(suffix)].rstrip('-.')}{suffix}"
