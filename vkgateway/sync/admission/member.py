"""A tenant's pod as the arbiter must know it, read once from the whole object."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from vkgateway.arbiter.snapshot import Band, PoolKey, Shape
from vkgateway.model import times
from vkgateway.model.names import RESERVED_PREFIX
from vkgateway.model.objects import Object
from vkgateway.sync.admission.shapes import shape_of
from vkgateway.sync.admission.virtual_nodes import pools_of, virtual_node_terms
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.gangs import FoundObjects, GangMarks, Kind, MarkError, Reference, gang_references, read_marks
from vkgateway.translate.gangs.mark_detection import needs_served_kind
from vkgateway.translate.governed import (
    VirtualNode,
    device_requests,
    has_pod_constraints,
    is_governed,
    other_gates,
    pod_band,
    reachable_nodes,
    unreachable_reason,
)

_GANG_HINTS = (
    f"{RESERVED_PREFIX}gang",
    "training.kubeflow.org/",
    "ray.io/",
    "spark-",
    "sparkoperator.k8s.io/",
    "scheduling.k8s.io/",
    "scheduling.x-k8s.io/",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.volcano.sh/",
    "volcano.sh/",
    "kueue.x-k8s.io/",
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
)
"""How labels and annotations begin that make a pod one of a gang."""

_DEFAULT_GRACE = 30.0
"""Seconds that a pod may take to end where it does not say (core/v1 PodSpec.terminationGracePeriodSeconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """A pod of a gang; one that stands alone is a gang of one."""

    uid: str
    key: Key
    mark: str
    """Fingerprint of what it was read from."""
    governed: bool
    """The arbiter admits it. Other members start without it, and only count: those of a Spark application."""
    marks: GangMarks | None
    """None: they make no sense, see `fault`."""
    fault: str
    shape: Shape
    pools: tuple[PoolKey, ...]
    """Where it may run, best liked first."""
    bound: bool
    """Its virtual node is settled."""
    band: Band
    priority: int
    preempts: bool
    """Its PriorityClass lets it preempt others (`preemptionPolicy`)."""
    created: float
    """Seconds since the epoch."""
    grace: float
    """Seconds that it may take to end."""
    waiting_gates: tuple[str, ...]
    """Gates of others; it is not ready to be scheduled while it has any."""
    beside: tuple[Reference, ...]
    """Objects that say more about its gang."""
    has_only_marks: bool = False
    """It asks for no device, and none of its marks means anything where their kinds are not served."""
    nowhere: str = ""
    """Why it may run in none of the pools that there are; empty where it may."""

    virtual_nodes: int = 1
    """On how many virtual nodes it may run."""
    follows_others: bool = False
    """Its tenant's scheduler alone can tell which virtual node it may go to: that is up to other pods."""

    @property
    def is_pinned(self) -> bool:
        """Whether it is let go to the pool that was found for it.

        Where that is left to the tenant's scheduler, room is looked for again on the node that the scheduler chose.
        Members of a gang stay in one pool, whatever they say.
        """
        lone = self.marks is None or self.marks.minimum <= 1
        return not (self.follows_others and lone and self.virtual_nodes > 1)

    @property
    def gang_group(self) -> str:
        """Its gang within the tenant; a pod whose marks make no sense stands alone."""
        return self.marks.group if self.marks is not None else f"{self.key[0]}/pod/{self.uid}"


def gang_id(tenant: str, group: str) -> str:
    """What the arbiter calls a tenant's gang: `TENANT/namespace/way/name`."""
    return f"{tenant}/{group}"


def tenant_of_gang(gang: str) -> str:
    """The tenant that a gang belongs to, by its id."""
    return gang.partition("/")[0]


def may_be_member(view: TenantPodView) -> bool:
    """Whether a pod that asks for nothing governed may be one of a gang all the same, by what is seen of it."""
    marks = (*view.metadata.labels, *view.metadata.annotations)
    return view.names_group or any(name.startswith(_GANG_HINTS) for name in marks)


def read_member(
    pod: Object,
    *,
    mark: str,
    bindings: Mapping[str, VirtualNodeBinding],
    look: Callable[[Reference], Object | None],
    nodes: Mapping[str, VirtualNode] = MappingProxyType({}),
    places: Sequence[Sequence[Object]] = (),
    unserved: Container[Kind] = frozenset(),
) -> GangMember | None:
    """Read a tenant's pod; None: it neither asks for anything governed nor belongs to a gang.

    `nodes` are the virtual nodes as the tenant's API server shows them, with labels and taints of the tenant's own; one
    that was not seen yet has what we gave it. `look` finds objects beside it; None: there is none, or it is not known
    yet. `places` is what each of its volumes asks of compute nodes: node selector terms, of which one must hold.
    `unserved` are kinds that the tenant's API server does not serve.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    beside = gang_references(pod, unserved)
    found = {reference: known for reference in beside if (known := look(reference)) is not None}
    marks, fault = _read_marks(pod, found, unserved)
    governed = is_governed(pod)
    if not governed and marks is not None and not marks.integration:
        return None
    contexts = {name: binding.pool for name, binding in bindings.items()}
    labels = {name: context.virtual_labels() for name, context in contexts.items()}
    seen = {name: _merge_labels(carries, nodes.get(name)) for name, carries in labels.items()}
    reach = reachable_nodes(pod, seen)
    pools = pools_of(reach, bindings)
    if parts := virtual_node_terms(reach, bindings):
        places = [*places, parts]
    carried = frozenset().union(*(context.carried_labels for context in contexts.values()))
    grace = spec.get("terminationGracePeriodSeconds")
    created = metadata.get("creationTimestamp")
    return GangMember(
        uid=metadata["uid"],
        key=(metadata["namespace"], metadata["name"]),
        mark=mark,
        governed=governed,
        marks=marks,
        fault=fault,
        shape=shape_of(pod, carried=carried, nodes=labels, places=places),
        pools=pools,
        virtual_nodes=len(reach),
        nowhere="" if pools or not seen else unreachable_reason(pod, seen),
        bound=bool(spec.get("nodeName")),
        band=Band(pod_band(spec)),
        priority=spec.get("priority") or 0,
        preempts=spec.get("preemptionPolicy") != "Never",
        created=times.parse_time(created).timestamp() if created else 0.0,
        grace=_DEFAULT_GRACE if grace is None else float(grace),
        waiting_gates=other_gates(pod),
        beside=beside,
        has_only_marks=needs_served_kind(pod) and not device_requests(pod),
        follows_others=governed and has_pod_constraints(pod),
    )


def _merge_labels(ours: Mapping[str, str], node: VirtualNode | None) -> VirtualNode:
    labels, taints = node or ({}, ())
    return {**labels, **ours}, taints


def _read_marks(pod: Object, found: FoundObjects, unserved: Container[Kind]) -> tuple[GangMarks | None, str]:
    try:
        return read_marks(pod, found, unserved), ""
    except MarkError as error:
        return None, str(error)
