"""What the arbiter must know of one compute cluster: its pools, and who holds what there beside the arbiter's pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from vkgateway.arbiter.facts import Pool
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.names import POOL_LABEL
from vkgateway.model.requests import Milli
from vkgateway.sync.admission.images import NodeImages
from vkgateway.sync.admission.numa import NodeZones, ShapeOf
from vkgateway.sync.admission.occupancy import Occupancy
from vkgateway.sync.admission.pools import PoolFacts
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import owned_by
from vkgateway.sync.compute.strangers import StrangerView
from vkgateway.sync.compute.topologies import TopologyView
from vkgateway.sync.pods.views import ComputePodView
from vkgateway.translate.poolnodes import PoolNodes

_AVOIDED_LEAST: Final = 2
"""So many nodes may be left alone at once, or a tenth of a cluster's if that is more."""

IsMember = Callable[[str, str], bool]
"""Tenant and tenant pod uid: whether the arbiter itself places that pod, so that it is no stranger's burden."""


class ClusterFacts:
    """One compute cluster; `poke` is called when something changed that the arbiter should look at, `poke_later` where
    that is only what others hold there: pods that it does not place come and go by the hundred."""

    def __init__(
        self,
        link: ComputeLink,
        *,
        is_member: IsMember,
        shape_of: ShapeOf,
        poke: Callable[[], None],
        poke_later: Callable[[], None],
        is_back: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self.link = link
        self._is_member = is_member
        self._poke = poke
        self._poke_later = poke_later
        self._is_back = is_back
        self._away = not link.trusted
        self._occupancy = Occupancy()
        self._images = NodeImages()
        self._zones = NodeZones(shape_of)
        self._unjudged: dict[str, TopologyView | None] = {}
        """What nodes published before it was known which pods are there."""
        self._pools: dict[str, PoolFacts] = {}
        self._members: dict[str, PoolNodes] = {}
        """The nodes of each pool, as of the last cycle."""
        self._homes: dict[str, frozenset[str]] = {}
        """Their names."""
        self.avoided: dict[str, float] = {}
        """Nodes that did not take a pod that was placed on them, and until when they are left alone."""
        link.on_pod_changed.append(self._pod_changed)
        link.on_stranger_changed.append(self._stranger_changed)
        link.on_nodes_changed.append(poke)
        link.on_reachable_changed.append(self._reachable_changed)
        link.on_topology_changed.append(self._topology_changed)
        self._unjudged.update(link.topologies.items())
        for pod in link.pods.items.values():
            self._count(pod)
        for stranger in link.strangers.items.values():
            self._stranger_changed(None, stranger)

    def close(self) -> None:
        """Hear no more of it."""
        self.link.on_pod_changed.remove(self._pod_changed)
        self.link.on_stranger_changed.remove(self._stranger_changed)
        self.link.on_nodes_changed.remove(self._poke)
        self.link.on_reachable_changed.remove(self._reachable_changed)
        self.link.on_topology_changed.remove(self._topology_changed)

    @property
    def known(self) -> bool:
        """Whether all that is there is known, and the cluster answers."""
        link = self.link
        return link.trusted and link.nodes.complete and link.strangers.complete and link.topologies.known

    def pools(self, specs: Iterable[PoolSpec], *, images: frozenset[str], now: float) -> list[Pool]:
        """Return the pools. `images` are those that any pod asks for."""
        specs = tuple(specs)
        self._assign({spec.name: self.link.nodes.pool(spec.node_selector) for spec in specs})
        self._judge_zones()
        changed, self._occupancy.changed = self._occupancy.changed, set()
        changed |= self._zones.changed
        self._zones.changed = set()
        changed |= self._images.look(self.link.nodes.items.values(), images, now=now)
        self.avoided = {node: until for node, until in self.avoided.items() if until > now}
        avoided = frozenset(self.avoided)
        found = []
        for spec in specs:
            facts = self._pools.setdefault(spec.name, PoolFacts((self.link.name, spec.name), self._images, self._zones))
            found.append(facts.facts(spec, self._members[spec.name], self._occupancy, changed=changed, avoided=avoided))
        return found

    def avoid(self, node: str, *, until: float) -> bool:
        """Leave a node alone until then (seconds since the epoch); False: too many are left alone already."""
        if node not in self.avoided and len(self.avoided) >= max(_AVOIDED_LEAST, len(self.link.nodes.items) // 10):
            return False
        self.avoided[node] = until
        return True

    def unread(self, tenant: str, pool: str) -> Milli:
        """What a tenant's pods hold in a pool that the arbiter does not place."""
        return self._occupancy.of_owner((tenant, pool))

    def _reachable_changed(self) -> None:
        was_away, self._away = self._away, not self.link.trusted
        if was_away and not self._away:
            self._is_back(self.link.name)
        self._poke()

    def _assign(self, members: dict[str, PoolNodes]) -> None:
        """Note which nodes are whose; a pod whose node has another pool by now is a burden there."""
        before, self._members = self._members, members
        if before.keys() == members.keys() and all(before[name] is nodes for name, nodes in members.items()):
            return
        homes = {name: frozenset(node.metadata.name for node in pool.nodes) for name, pool in members.items()}
        if homes != self._homes:
            self._homes = homes
            for pod in self.link.pods.items.values():
                self._count(pod)

    def recount(self, pod: ComputePodView) -> None:
        """Look again at whose burden a pod is: it was read, or forgotten."""
        self._count(pod)

    def _topology_changed(self, node: str, view: TopologyView | None) -> None:
        self._unjudged[node] = view
        if self._zones.watches:
            self._judge_zones()
        self._poke_later()

    def _judge_zones(self) -> None:
        """Note which pods are in what nodes have published: at once, but not before all pods are known."""
        unjudged, self._unjudged = self._unjudged, {}
        if unjudged and not self._zones.watches:
            self._zones.follow(self.link.pods.items.values())
        for node, view in unjudged.items():
            self._zones.published(node, view, used=self._occupancy.on_node(node))

    def _pod_changed(self, old: ComputePodView | None, new: ComputePodView | None) -> None:
        self._zones.pod_changed(old, new)
        if new is not None:
            self._count(new)
        elif old is not None:
            self._occupancy.drop(old.metadata.uid)
        self._poke_later()

    def _count(self, pod: ComputePodView) -> None:
        uid, pool = pod.metadata.uid, pod.metadata.labels.get(POOL_LABEL, "")
        placed = self._is_member(pod.tenant, pod.tenant_uid)
        moved = bool(self._homes and pod.spec.node_name) and pod.spec.node_name not in self._homes.get(pool, ())
        if pod.ended or not owned_by(pod.tenant, pod.metadata) or (placed and not moved):
            self._occupancy.drop(uid)
            return
        owner = None if placed else (pod.tenant, pool)
        self._occupancy.hold(uid, node=pod.spec.node_name, amounts=pod.requests or {}, owner=owner)

    def _stranger_changed(self, old: StrangerView | None, new: StrangerView | None) -> None:
        if new is not None:
            self._occupancy.hold(new.metadata.uid, node=new.node, amounts=new.requests)
        elif old is not None:
            self._occupancy.drop(old.metadata.uid)
        self._poke_later()
