"""Pods and the claims they use: what each claim is called below, or why a pod must wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vkgateway.model.names import NAMESPACE_ANNOTATION, compute_namespace
from vkgateway.model.objects import Object
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.storage.compute_volumes import recorded_nodes
from vkgateway.sync.storage.tenant_volumes import TenantVolumes
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.pod_references import pod_claims
from vkgateway.translate.storage.volumes import required_node_terms

_PATIENCE: Final = 1.0
"""Seconds that a pod waits for its claims before it is told of: the watch of pods may be ahead of that of claims."""


@dataclass(slots=True)
class PodClaims:
    """What the claims of a pod are called in a compute cluster, by the tenant's name of each."""

    names: dict[str, str] = field(default_factory=dict)
    unready: list[str] = field(default_factory=list)
    """A sentence for each claim that the pod must wait for."""
    is_early: bool = False
    """Nothing is told of that yet: it may only seem so."""


class ClaimUsers:
    """The pods of one tenant that wait for claims. `later(key, seconds)` asks for a look at a pod."""

    def __init__(
        self,
        tenant: str,
        above: TenantVolumes,
        *,
        links: Mapping[str, ComputeLink],
        later: Callable[[Key, float], None],
        clock: Callable[[], float],
    ) -> None:
        self._tenant = tenant
        self._links = links
        self._tenant_volumes = above
        self._requeue_after = later
        self._clock = clock
        self._waiting: dict[Key, set[Key]] = {}
        """Claims to the pods that wait for them."""
        self._claims_by_pod: dict[Key, set[Key]] = {}
        """The same the other way round."""
        self._waiting_since: dict[Key, float] = {}
        """Pods that wait for claims, with the time since."""

    def find_claims(self, pod: Key, names: Sequence[str], link: ComputeLink) -> PodClaims:
        """Look up the claims of a pod that is to run in a compute cluster; once one that it waits for changes, it is
        looked at again. From now on the tenant's claims are watched.
        """
        found = PodClaims()
        if not names:
            return found
        self._tenant_volumes.start_watching_volumes()
        for name in names:
            below, why = self._find_compute_claim((pod[0], name), link)
            if below:
                found.names[name] = below
            else:
                found.unready.append(f'persistentvolumeclaim "{name}" {why}')
                self._waiting.setdefault((pod[0], name), set()).add(pod)
                self._claims_by_pod.setdefault(pod, set()).add((pod[0], name))
        if not found.unready:
            self._waiting_since.pop(pod, None)
        elif (left := self._waiting_since.setdefault(pod, self._clock()) + _PATIENCE - self._clock()) > 0:
            found.is_early = True
            self._requeue_after(pod, left)
        return found

    def volume_terms(self, pod: Object) -> list[list[Object]]:
        """What the volumes of a pod ask of compute nodes, as far as that is known: for each, node selector terms, of
        which one must hold.
        """
        found: list[list[Object]] = []
        for name in pod_claims(pod):
            handle, _ = self._find_handle((pod["metadata"]["namespace"], name))
            if terms := required_node_terms(self._recorded_nodes(handle)):
                found.append(terms)
        return found

    def is_location_known(self, handle: str) -> bool:
        """Whether it is known what nodes can reach a volume."""
        return self._recorded_nodes(handle) is not None

    def _recorded_nodes(self, handle: str) -> Object | None:
        below = next(
            (one for link in self._links.values() if (one := link.claims.find_claim(self._tenant, handle))), None
        )
        return recorded_nodes(below) if below is not None else None

    def claim_changed(self, claim: Key) -> None:
        """Something about a claim, or about its volume, changed."""
        for pod in self._waiting.pop(claim, ()):
            self._stop_waiting(pod, claim)
            self._requeue_after(pod, 0.0)

    def volume_changed(self, uid: str) -> None:
        """Something about what stands for a volume below changed."""
        claim = self._tenant_volumes.find_bound_claim(uid)
        if claim is not None:
            self.claim_changed(claim.metadata.key)

    def all_changed(self) -> None:
        """Everything is to be looked at again."""
        for claim in list(self._waiting):
            self.claim_changed(claim)

    def forget_pod(self, pod: Key) -> None:
        """A pod is gone."""
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
        """Name of the compute claim, or why there is none."""
        if not self._tenant_volumes.is_complete or not link.claims_trusted:
            return "", "cannot be looked up now"
        handle, why = self._find_handle(key)
        below = link.claims.find_claim(self._tenant, handle) if handle else None
        if below is None:
            return "", why or "has no volume in the compute cluster of this node"
        if below.metadata.namespace != compute_namespace(self._tenant, key[0]):
            home = below.metadata.annotations.get(NAMESPACE_ANNOTATION, "")
            return "", f"is bound to a volume that stays in namespace {home}"
        return below.metadata.name, ""

    def _find_handle(self, key: Key) -> tuple[str, str]:
        """Which volume of ours a claim has, or why it has none."""
        claim = self._tenant_volumes.claims.store.get(key)
        if claim is None:
            return "", "not found"
        name = claim.spec.volume_name
        volume = self._tenant_volumes.volumes.store.get(("", name))
        if volume is None:
            return "", "has lost its volume" if name else "is not bound"
        return (
            volume.volume_handle,
            f"is bound to {name}, which is no volume of the platform's" if not volume.volume_handle else "",
        )
