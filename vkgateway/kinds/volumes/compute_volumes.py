"""Compute claims that back a tenant's volumes: creation, expansion and deletion."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.names import OBJECT_NAME_MAX, UID_ANNOTATION, compute_namespace
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.namespaces.reconciler import NamespaceReconciler
from vkgateway.kinds.refusals import is_starting, refusal_message
from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.translation.claims import forward_claim, is_same_quantity
from vkgateway.kinds.volumes.translation.views import STORAGE, ClaimView, decode_claim, decode_volume
from vkgateway.kube import errors, resources
from vkgateway.runtime.views.annotations import NODES
from vkgateway.runtime.views.ownership import owned_by

log = structlog.get_logger(__name__)

_CREATED_GRACE: Final = 30.0
"""Seconds for which a claim counts as existing after its creation, although the watch has not shown it."""


class ComputeVolumes:
    """Compute claims of one tenant, found by the UID of the tenant's claim."""

    def __init__(self, scope: TenantScope, *, namespaces: NamespaceReconciler) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._namespaces = namespaces
        self._clock = scope.clock
        self._created_claims: dict[str, tuple[ComputeLink, ClaimView, float]] = {}
        """Created claims that the watch has not shown yet, with the time when they stop to count."""

    def find_claim(self, uid: str) -> tuple[ComputeLink, ClaimView] | None:
        """Return the compute claim of a volume and its cluster, as far as known."""
        for link in self._scope.links.values():
            view = link.claims.find_claim(self._tenant, uid)
            if view is not None:
                self._created_claims.pop(uid, None)
                return link, view
        created = self._created_claims.get(uid)
        if created is not None and created[2] > self._clock.time():
            return created[0], created[1]
        self._created_claims.pop(uid, None)
        return None

    def claim_shown(self, uid: str) -> None:
        """Drop the created claim of a volume: from now on the watch is authoritative."""
        self._created_claims.pop(uid, None)

    async def create_claim(self, link: ComputeLink, claim: ClaimView, *, class_name: str) -> ClaimView:
        """Create the compute claim for a tenant's claim; an existing one is accepted.

        It has the claim's own name, unless an earlier retained volume uses that name.

        Raises:
            ConflictError: an object that is not this tenant's uses the name.
            UnavailableError: an earlier claim of the name is still being deleted.
        """
        source = claim.metadata
        namespace = await self._namespaces.ensure_namespace(
            link, source.namespace, self._scope.cache.namespace_uid(source.namespace)
        )
        for name in (source.name, _second_name(source.name, source.uid)):
            document = forward_claim(claim, name=name, class_name=class_name, tenant=self._scope.tenant)
            compute_claim = await self._create_claim(link, document, namespace)
            if compute_claim.metadata.annotations.get(UID_ANNOTATION) == source.uid:
                self._created_claims[source.uid] = link, compute_claim, self._clock.time() + _CREATED_GRACE
                return compute_claim
            if compute_claim.is_deleting:
                raise UnavailableError(
                    f"claim {name} of an earlier volume is still being deleted in the compute cluster"
                )
        raise ConflictError(f"persistentvolumeclaims/{source.name}: the name is taken in the compute cluster")

    async def _create_claim(self, link: ComputeLink, document: Object, namespace: str) -> ClaimView:
        """Return the claim that has the name now: the created one, or the existing one."""
        name = document["metadata"]["name"]
        try:
            answer = await link.client.create(resources.PERSISTENT_VOLUME_CLAIMS, document, namespace=namespace)
        except errors.AlreadyExists:
            answer = await link.client.get(resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace)
        found = decode_claim(answer)
        if not owned_by(self._tenant, found.metadata):
            raise ConflictError(f"persistentvolumeclaims/{name}: the name is taken in the compute cluster")
        return found

    async def delete_claim(self, link: ComputeLink, compute_claim: ClaimView) -> None:
        """Delete a compute claim; its storage class decides what happens to the data."""
        metadata = compute_claim.metadata
        self._created_claims.pop(metadata.annotations.get(UID_ANNOTATION, ""), None)
        if compute_claim.is_deleting:
            return
        log.info("deleting compute claim", tenant=self._tenant, compute=link.name, claim="/".join(metadata.key))
        try:
            await link.client.delete(
                resources.PERSISTENT_VOLUME_CLAIMS, metadata.name, namespace=metadata.namespace, uid=metadata.uid
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def resize_claim(self, link: ComputeLink, compute_claim: ClaimView, claim: ClaimView) -> str:
        """Request the size of the tenant's claim in the compute cluster; return why it was refused, or "".

        Raises ApiError.
        """
        if is_same_quantity(compute_claim.requested_storage, claim.requested_storage):
            return ""
        patch: dict[str, Any] = {
            "metadata": {"uid": compute_claim.metadata.uid},
            "spec": {"resources": {"requests": {STORAGE: claim.requested_storage}}},
        }
        try:
            await link.client.patch(
                resources.PERSISTENT_VOLUME_CLAIMS,
                compute_claim.metadata.name,
                patch,
                namespace=compute_claim.metadata.namespace,
                metadata_only=True,
            )
        except (errors.Invalid, errors.Forbidden) as error:
            if is_starting(error):
                raise
            return self.refusal_text(claim, error)
        return ""

    async def reachable_nodes(self, link: ComputeLink, compute_claim: ClaimView) -> Object:
        """Return the node affinity of a bound claim's compute volume; the first call records it on the claim."""
        known = recorded_nodes(compute_claim)
        if known is not None:
            return known
        nodes = await self._read_nodes(link, compute_claim) or {}
        metadata = compute_claim.metadata
        metadata_patch = {"uid": metadata.uid, "annotations": {NODES: msgspec.json.encode(nodes).decode()}}
        await link.client.patch(
            resources.PERSISTENT_VOLUME_CLAIMS,
            metadata.name,
            {"metadata": metadata_patch},
            namespace=metadata.namespace,
            metadata_only=True,
        )
        return nodes

    async def _read_nodes(self, link: ComputeLink, compute_claim: ClaimView) -> Object | None:
        try:
            answer = await link.client.get(resources.PERSISTENT_VOLUMES, compute_claim.spec.volume_name)
        except errors.NotFound:
            return None
        except errors.Forbidden as error:
            log.warning("volume not read", tenant=self._tenant, compute=link.name, error=error.message)
            return None
        return decode_volume(answer).spec.node_affinity

    def waits_for_pod(self, link: ComputeLink, compute_claim: ClaimView) -> bool:
        """Return whether the compute cluster provisions the volume only for a pod that uses it."""
        found = link.classes.store.get(("", compute_claim.class_name))
        return found is not None and found.waits_for_consumer

    def reclaim_policy(self, link: ComputeLink, compute_claim: ClaimView) -> str:
        """Return the reclaim policy of the claim's storage class."""
        found = link.classes.store.get(("", compute_claim.class_name))
        return found.reclaim_policy if found is not None else "Delete"

    def refusal_text(self, claim: ClaimView, error: errors.ApiError) -> str:
        """Return the compute cluster's refusal of a claim, in the tenant's names."""
        namespace = claim.metadata.namespace
        return refusal_message(error, Sanitizer(((compute_namespace(self._tenant, namespace), namespace),)))


def recorded_nodes(compute_claim: ClaimView) -> Object | None:
    """Return the recorded node affinity of a volume, or None if it was not recorded yet."""
    text = compute_claim.metadata.annotations.get(NODES)
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text is not None else None
    except msgspec.DecodeError:
        return None


def _second_name(name: str, uid: str) -> str:
    """Return a name for a claim whose own name is used by an earlier retained volume."""
    suffix = f"-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"
    return f"{name[: OBJECT_NAME_MAX - len(suffix)].rstrip('-.')}{suffix}"
