"""Claims that pods use: the name of each compute claim, or why the pod must wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from vkgateway.api.names import NAMESPACE_ANNOTATION, compute_namespace
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.pods.translation.pod_references import pod_claims
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import (
    COMPUTE_CLAIMS,
    COMPUTE_STORAGE_CHANGED,
    RESYNC,
    TENANT_CLAIMS,
    TENANT_STORAGE_LISTED,
    VOLUME_LOCATIONS,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.compute_volumes import recorded_nodes
from vkgateway.kinds.volumes.tenant_volumes import TenantVolumes
from vkgateway.kinds.volumes.translation.volumes import required_node_terms
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.ownership import Key

_REPORT_DELAY: Final = 1.0
"""Seconds that a pod waits for its claims before it is reported; the watch of claims may lag behind that of pods."""


@dataclass(slots=True)
class PodClaims:
    """Compute claims of a pod, by the names of the tenant's claims."""

    names: dict[str, str] = field(default_factory=dict)
    unready: list[str] = field(default_factory=list)
    """A message for each claim that the pod must wait for."""
    is_early: bool = False
    """Whether it is too early to report the pod as waiting; the watch of claims may lag."""


class ClaimUsers:
    """Pods of one tenant that wait for claims, and the compute nodes that can reach its volumes."""

    def __init__(self, scope: TenantScope, tenant_volumes: TenantVolumes) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._tenant_volumes = tenant_volumes
        self._clock = scope.clock
        self._located_volumes: set[str] = set()
        """Volumes of which the nodes that can reach them are known."""
        self._waiting: dict[Key, set[Key]] = {}
        """Waiting pods by claim."""
        self._claims_by_pod: dict[Key, set[Key]] = {}
        """Claims by waiting pod."""
        self._waiting_since: dict[Key, float] = {}
        """Time since when each pod waits for claims."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.watches(TENANT_CLAIMS, self.claim_changed)
            .watches(COMPUTE_CLAIMS, self._compute_claim_changed)
            .watches_each((TENANT_STORAGE_LISTED, COMPUTE_STORAGE_CHANGED, RESYNC), self._all_changed)
        )

    def find_claims(self, pod: Key, names: Sequence[str], link: ComputeLink) -> PodClaims:
        """Look up a pod's claims in a compute cluster. A change of a missing claim enqueues the pod again.

        The first call for a pod with claims starts the watches of the tenant's claims and volumes.
        """
        found = PodClaims()
        if not names:
            return found
        self._tenant_volumes.start_watching_volumes()
        for name in names:
            compute_name, reason = self._find_compute_claim((pod[0], name), link)
            if compute_name:
                found.names[name] = compute_name
            else:
                found.unready.append(f'persistentvolumeclaim "{name}" {reason}')
                self._waiting.setdefault((pod[0], name), set()).add(pod)
                self._claims_by_pod.setdefault(pod, set()).add((pod[0], name))
        now = self._clock.time()
        if not found.unready:
            self._waiting_since.pop(pod, None)
        elif (remaining := self._waiting_since.setdefault(pod, now) + _REPORT_DELAY - now) > 0:
            found.is_early = True
            self._scope.work_queue.enqueue(POD, pod, remaining)
        return found

    def volume_terms(self, pod: Object) -> list[list[Object]]:
        """Return the known node selector terms of a pod's volumes: a list per volume, of which one term must match."""
        found: list[list[Object]] = []
        for name in pod_claims(pod):
            handle, _ = self._find_handle((pod["metadata"]["namespace"], name))
            if terms := required_node_terms(self._recorded_nodes(handle)):
                found.append(terms)
        return found

    def is_location_known(self, handle: str) -> bool:
        """Return whether the nodes that can reach a volume are known."""
        return self._recorded_nodes(handle) is not None

    def _recorded_nodes(self, handle: str) -> Object | None:
        compute_claim = next(
            (one for link in self._scope.links.values() if (one := link.claims.find_claim(self._tenant, handle))), None
        )
        return recorded_nodes(compute_claim) if compute_claim is not None else None

    def claim_changed(self, claim: Key) -> None:
        """Enqueue the pods that wait for a claim, after the claim or its volume changed."""
        for pod in self._waiting.pop(claim, ()):
            self._stop_waiting(pod, claim)
            self._scope.work_queue.enqueue(POD, pod)

    def _compute_claim_changed(self, uid: str) -> None:
        if not self.is_location_known(uid):
            self._located_volumes.discard(uid)
        elif uid not in self._located_volumes:
            self._located_volumes.add(uid)
            self._scope.watches.notify(VOLUME_LOCATIONS)
        claim = self._tenant_volumes.find_bound_claim(uid)
        if claim is not None:
            self.claim_changed(claim.metadata.key)

    def _all_changed(self) -> None:
        if not self._tenant_volumes.is_complete:
            return
        for claim in list(self._waiting):
            self.claim_changed(claim)
        self._scope.watches.notify(VOLUME_LOCATIONS)

    def forget_pod(self, pod: Key) -> None:
        """Drop the state of a deleted pod."""
        self._waiting_since.pop(pod, None)
        for claim in self._claims_by_pod.pop(pod, ()):
            pods = self._waiting[claim]
            pods.discard(pod)
            if not pods:
                del self._waiting[claim]

    def _stop_waiting(self, pod: Key, claim: Key) -> None:
        claims = self._claims_by_pod[pod]
        claims.discard(claim)
        if not claims:
            del self._claims_by_pod[pod]

    def _find_compute_claim(self, key: Key, link: ComputeLink) -> tuple[str, str]:
        """Return the name of the compute claim, or why there is none."""
        if not self._tenant_volumes.is_complete or not link.claims_trusted:
            return "", "cannot be looked up now"
        handle, reason = self._find_handle(key)
        compute_claim = link.claims.find_claim(self._tenant, handle) if handle else None
        if compute_claim is None:
            return "", reason or "has no volume in the compute cluster of this node"
        if compute_claim.metadata.namespace != compute_namespace(self._tenant, key[0]):
            namespace = compute_claim.metadata.annotations.get(NAMESPACE_ANNOTATION, "")
            return "", f"is bound to a volume that stays in namespace {namespace}"
        return compute_claim.metadata.name, ""

    def _find_handle(self, key: Key) -> tuple[str, str]:
        """Return the handle of the claim's volume, or why there is none."""
        claim = self._tenant_volumes.claims.store.get(key)
        if claim is None:
            return "", "not found"
        name = claim.spec.volume_name
        volume = self._tenant_volumes.volumes.store.get(("", name))
        if volume is None:
            return "", "has lost its volume" if name else "is not bound"
        return (
            volume.volume_handle,
            f"is bound to {name}, which is not a volume of the platform" if not volume.volume_handle else "",
        )
