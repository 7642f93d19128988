"""Pods and the claims they use: what each claim is called below, or why a pod must wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vkgateway.model.names import NAMESPACE_ANNOTATION, compute_namespace
from vkgateway.model.objects import Object
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.storage.above import Above
from vkgateway.sync.storage.below import nodes_noted
from vkgateway.translate.references import claims_of
from vkgateway.translate.storage.volumes import node_terms

_PATIENCE: Final = 1.0
"""Seconds that a pod waits for its claims before it is told of: the watch of pods may be ahead of that of claims."""


@dataclass(slots=True)
class Claims:
    """What the claims of a pod are called in a compute cluster, by the tenant's name of each."""

    names: dict[str, str] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    """A sentence for each claim that the pod must wait for."""
    early: bool = False
    """Nothing is told of that yet: it may only seem so."""


class Users:
    """The pods of one tenant that wait for claims. `later(key, seconds)` asks for a look at a pod."""

    def __init__(
        self,
        tenant: str,
        above: Above,
        *,
        links: Mapping[str, ComputeLink],
        later: Callable[[Key, float], None],
        clock: Callable[[], float],
    ) -> None:
        self._tenant = tenant
        self._links = links
        self._above = above
        self._later = later
        self._clock = clock
        self._waiting: dict[Key, set[Key]] = {}
        """Claims to the pods that wait for them."""
        self._lacking: dict[Key, set[Key]] = {}
        """The same the other way round."""
        self._since: dict[Key, float] = {}
        """Pods that wait for claims, with the time since."""

    def find(self, pod: Key, names: Sequence[str], link: ComputeLink) -> Claims:
        """Look up the claims of a pod that is to run in a compute cluster; once one that it waits for changes, it is
        looked at again. From now on the tenant's claims are watched.
        """
        found = Claims()
        if not names:
            return found
        self._above.need_volumes()
        for name in names:
            below, why = self._below((pod[0], name), link)
            if below:
                found.names[name] = below
            else:
                found.lacking.append(f'persistentvolumeclaim "{name}" {why}')
                self._waiting.setdefault((pod[0], name), set()).add(pod)
                self._lacking.setdefault(pod, set()).add((pod[0], name))
        if not found.lacking:
            self._since.pop(pod, None)
        elif (left := self._since.setdefault(pod, self._clock()) + _PATIENCE - self._clock()) > 0:
            found.early = True
            self._later(pod, left)
        return found

    def places(self, pod: Object) -> list[list[Object]]:
        """What the volumes of a pod ask of compute nodes, as far as that is known: for each, node selector terms, of
        which one must hold.
        """
        found: list[list[Object]] = []
        for name in claims_of(pod):
            handle, _ = self._handle((pod["metadata"]["namespace"], name))
            if terms := node_terms(self._nodes(handle)):
                found.append(terms)
        return found

    def is_placed(self, handle: str) -> bool:
        """Whether it is known what nodes can reach a volume."""
        return self._nodes(handle) is not None

    def _nodes(self, handle: str) -> Object | None:
        below = next((one for link in self._links.values() if (one := link.claims.find(self._tenant, handle))), None)
        return nodes_noted(below) if below is not None else None

    def changed(self, claim: Key) -> None:
        """Something about a claim, or about its volume, changed."""
        for pod in self._waiting.pop(claim, ()):
            self._no_longer(pod, claim)
            self._later(pod, 0.0)

    def volume_changed(self, uid: str) -> None:
        """Something about what stands for a volume below changed."""
        claim = self._above.holder(uid)
        if claim is not None:
            self.changed(claim.metadata.key)

    def all_changed(self) -> None:
        """Everything is to be looked at again."""
        for claim in list(self._waiting):
            self.changed(claim)

    def forget(self, pod: Key) -> None:
        """A pod is gone."""
        self._since.pop(pod, None)
        for claim in self._lacking.pop(pod, ()):
            pods = self._waiting[claim]
            pods.discard(pod)
            if not pods:
                del self._waiting[claim]

    def _no_longer(self, pod: Key, claim: Key) -> None:
        claims = self._lacking[pod]
        claims.discard(claim)
        if not claims:
            del self._lacking[pod]

    def _below(self, key: Key, link: ComputeLink) -> tuple[str, str]:
        """Name of the compute claim, or why there is none."""
        if not self._above.complete or not link.claims_trusted:
            return "", "cannot be looked up now"
        handle, why = self._handle(key)
        below = link.claims.find(self._tenant, handle) if handle else None
        if below is None:
            return "", why or "has no volume in the compute cluster of this node"
        if below.metadata.namespace != compute_namespace(self._tenant, key[0]):
            home = below.metadata.annotations.get(NAMESPACE_ANNOTATION, "")
            return "", f"is bound to a volume that stays in namespace {home}"
        return below.metadata.name, ""

    def _handle(self, key: Key) -> tuple[str, str]:
        """Which volume of ours a claim has, or why it has none."""
        claim = self._above.claims.items.get(key)
        if claim is None:
            return "", "not found"
        name = claim.spec.volume_name
        volume = self._above.volumes.items.get(("", name))
        if volume is None:
            return "", "has lost its volume" if name else "is not bound"
        return volume.handle, f"is bound to {name}, which is no volume of the platform's" if not volume.handle else ""
