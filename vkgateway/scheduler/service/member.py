"""Members of gangs: a tenant pod as the arbiter needs it, decoded once from the whole object, and its state."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from vkgateway.api import times
from vkgateway.api.objects import Object
from vkgateway.api.requests import container_requests, device_requests, has_equal_limits, is_extended, pod_requests
from vkgateway.kinds.pods.translation.node_terms import real_node_terms
from vkgateway.kinds.pods.translation.to_compute import is_scheduled, pod_band, tenant_tolerations
from vkgateway.kinds.tenant_scope import VirtualNodeBinding
from vkgateway.runtime.views.ownership import Key
from vkgateway.scheduler.core.queueing.admission import Admission
from vkgateway.scheduler.core.snapshot import Band, PodState, PoolKey, Requirement, Shape, Toleration
from vkgateway.scheduler.gangs import (
    FoundObjects,
    GangMarks,
    Kind,
    MarkError,
    Reference,
    gang_references,
    read_marks,
)
from vkgateway.scheduler.gangs.mark_detection import needs_served_kind
from vkgateway.scheduler.gangs.pod_view import controller_key
from vkgateway.scheduler.governed import (
    VirtualNode,
    has_pod_constraints,
    is_governed,
    other_gates,
    reachable_nodes,
    unreachable_reason,
)
from vkgateway.scheduler.service.peer_constraints import PeerConstraints, read_constraints
from vkgateway.scheduler.service.virtual_nodes import pools_of, shown_nodes, virtual_node_terms

_DEFAULT_GRACE = 30.0
"""Default termination grace period in seconds (core/v1 PodSpec.terminationGracePeriodSeconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """A pod of a gang; a pod without a gang is a gang of one."""

    uid: str
    key: Key
    mark: str
    """Fingerprint of the pod that was read."""
    governed: bool
    """Whether the arbiter admits it. Other members, such as those of a Spark application, start without it and only
    count.
    """
    marks: GangMarks | None
    """None if the marks are invalid, see `fault`."""
    fault: str
    """Why the marks cannot be read."""
    shape: Shape
    pools: tuple[PoolKey, ...]
    """Pools where it may run, the preferred one first."""
    bound: bool
    """Whether it is bound to a virtual node."""
    band: Band
    priority: int
    preempts: bool
    """Whether its PriorityClass allows preemption (`preemptionPolicy`)."""
    created: float
    """Seconds since the epoch."""
    grace: float
    """Termination grace period in seconds."""
    waiting_gates: tuple[str, ...]
    """Scheduling gates of others; until they are lifted, the pod is not ready."""
    companions: tuple[Reference, ...]
    """Companion objects that say more about its gang."""
    has_only_marks: bool = False
    """Whether it requests no devices, and its marks have no meaning if their kinds are not served."""
    unreachable_reason: str = ""
    """Why no pool suits it; empty if one does."""

    virtual_nodes: int = 1
    """Number of virtual nodes on which it may run."""
    mark_warning: str = ""
    """Why the gang of an admitted pod does not follow its present marks."""
    follows_others: bool = False
    """Whether only the tenant's scheduler can choose its virtual node, as that depends on other pods."""
    controller: str = ""
    """Kind and name of its controller, such as `Job/train`; empty without one."""
    labels: Mapping[str, str] = field(default_factory=dict)
    peer_constraints: PeerConstraints | None = None
    """Its hard constraints about other pods; None: it has none."""

    @property
    def name_parts(self) -> tuple[str, ...]:
        """Namespace, name and, if it has one, kind and name of its controller."""
        return (*self.key, self.controller) if self.controller else self.key

    @property
    def is_pinned(self) -> bool:
        """Whether it is admitted to one pool.

        Otherwise, the tenant's scheduler chooses the virtual node, and the arbiter then places the pod there. Members
        of a gang always stay in one pool.
        """
        lone = self.marks is None or self.marks.minimum <= 1
        return not (self.follows_others and lone and self.virtual_nodes > 1)

    @property
    def gang_group(self) -> str:
        """The gang within the tenant; a pod with invalid marks is a gang of one."""
        return self.marks.group if self.marks is not None else f"{self.key[0]}/pod/{self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """State of a member at one moment. A succeeded member counts as done."""

    state: PodState | None = None
    """None: the pod does not exist any more, or has ended."""
    verdict: Admission | None = None
    """The verdict on a placed pod, with the node on which it runs; the deadline of a terminating pod is that of its
    termination. None: the pod holds no resources.
    """
    has_succeeded: bool = False
    has_failed: bool = False
    ended_at: float = 0.0
    """Time of its end (seconds since the epoch); 0: it has not ended."""


NO_STATE: Final = MemberState()
"""State of a pod that does not exist."""


def gang_id(tenant: str, group: str) -> str:
    """Return the arbiter's id of a tenant's gang: `TENANT/namespace/source/name`."""
    return f"{tenant}/{group}"


def tenant_of_gang(gang: str) -> str:
    """Return the tenant of a gang."""
    return gang.partition("/")[0]


def read_member(
    pod: Object,
    *,
    tenant: str,
    mark: str,
    bindings: Mapping[str, VirtualNodeBinding],
    look: Callable[[Reference], Object | None],
    nodes: Mapping[str, VirtualNode] = MappingProxyType({}),
    places: Sequence[Sequence[Object]] = (),
    unserved: Container[Kind] = frozenset(),
) -> GangMember | None:
    """Return the member that a tenant pod is; None if it neither requests anything governed nor belongs to a gang.

    `nodes` are the virtual nodes as the tenant's API server shows them, with the tenant's own labels and taints; a node
    that was not seen yet has those of the gateway. `look` finds companion objects; None: the object does not exist, or
    is not known yet. `places` are the node selector terms of each volume, of which one must hold. `unserved` are kinds
    that the tenant's API server does not serve.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    companions = gang_references(pod, unserved)
    found = {reference: known for reference in companions if (known := look(reference)) is not None}
    marks, fault = _read_marks(pod, found, unserved)
    governed = is_governed(pod)
    if not governed and marks is not None and not marks.integration:
        return None
    shown = shown_nodes(bindings, nodes)
    reach = reachable_nodes(pod, shown)
    pools = pools_of(reach, bindings)
    grace, created = spec.get("terminationGracePeriodSeconds"), metadata.get("creationTimestamp")
    follows_others = governed and has_pod_constraints(pod)
    _, *controller = controller_key(pod)
    return GangMember(
        uid=metadata["uid"],
        key=(metadata["namespace"], metadata["name"]),
        mark=mark,
        governed=governed,
        marks=marks,
        fault=fault,
        shape=_read_shape(pod, bindings, reach, places),
        pools=pools,
        virtual_nodes=len(reach),
        unreachable_reason="" if pools or not shown else unreachable_reason(pod, shown),
        bound=bool(spec.get("nodeName")),
        band=Band(pod_band(spec)),
        priority=spec.get("priority") or 0,
        preempts=spec.get("preemptionPolicy") != "Never",
        created=times.parse_time(created).timestamp() if created else 0.0,
        grace=_DEFAULT_GRACE if grace is None else float(grace),
        waiting_gates=other_gates(pod),
        companions=companions,
        has_only_marks=needs_served_kind(pod) and not device_requests(pod),
        follows_others=follows_others,
        controller="/".join(filter(None, controller)),
        labels=metadata.get("labels") or {},
        peer_constraints=_read_peer_constraints(pod, tenant, bindings, reach) if follows_others else None,
    )


def _read_peer_constraints(
    pod: Object, tenant: str, bindings: Mapping[str, VirtualNodeBinding], reach: Sequence[str]
) -> PeerConstraints:
    pools = [bindings[name].pool for name in reach]
    return read_constraints(
        pod,
        tenant,
        fronts=[pool.virtual_labels() for pool in pools],
        carried=frozenset().union(*(pool.carried_labels for pool in pools)),
    )


def _read_shape(
    pod: Object,
    bindings: Mapping[str, VirtualNodeBinding],
    reach: Sequence[str],
    places: Sequence[Sequence[Object]],
) -> Shape:
    """Return the shape of a pod that may run on the virtual nodes `reach`."""
    parts = virtual_node_terms(reach, bindings)
    return shape_of(
        pod,
        carried=frozenset().union(*(binding.pool.carried_labels for binding in bindings.values())),
        nodes={name: binding.pool.virtual_labels() for name, binding in bindings.items()},
        places=[*places, parts] if parts else places,
    )


def _read_marks(pod: Object, found: FoundObjects, unserved: Container[Kind]) -> tuple[GangMarks | None, str]:
    try:
        return read_marks(pod, found, unserved), ""
    except MarkError as error:
        return None, str(error)


def shape_of(
    pod: Object,
    *,
    carried: frozenset[str],
    nodes: Mapping[str, Mapping[str, str]] | None = None,
    places: Sequence[Sequence[Object]] = (),
) -> Shape:
    """Return the shape of a tenant pod, as `forward_pod` will forward it.

    `carried` are the label keys of the real nodes of its pools. `nodes` are the known labels of the virtual nodes by
    name: alternatives of its node affinity that no virtual node matches are left out. A pod without a virtual node
    counts as scheduled, since it will be.

    The overhead is the tenant's; that of the compute cluster may differ. `places` are the node selector terms of each
    volume, of which one must hold. The pool's own tolerations and selector are left out, as they hold for all nodes of
    the pool.
    """
    spec = pod.get("spec") or {}
    scheduled = not spec.get("nodeName") or is_scheduled(pod)
    terms = real_node_terms(spec, carried=carried, scheduled=scheduled, nodes=nodes or {})
    for place in places:
        reached = [option.get("matchExpressions") or [] for option in place]
        terms = [[*term, *option] for term in terms or [[]] for option in reached]
    return Shape(
        requests=tuple(sorted((name, amount) for name, amount in pod_requests(pod).items() if amount)),
        terms=tuple(dict.fromkeys(_decode_term(term) for term in terms)),
        tolerations=tuple(
            dict.fromkeys(decode_toleration(entry) for entry in tenant_tolerations(spec.get("tolerations")))
        ),
        images=frozenset(_image_names(spec)),
        parts=_container_parts(spec),
    )


def _container_parts(spec: Mapping[str, Any]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return the parts that a kubelet allocates to single containers; nothing if one container requests all devices.

    Init containers count only if one requests more of a resource than each container does: they release it.
    """
    containers, starting = list(spec.get("containers") or ()), list(spec.get("initContainers") or ())
    exact = all(has_equal_limits(container) for container in (*containers, *starting))
    running = [*(each for each in starting if each.get("restartPolicy") == "Always"), *containers]
    parts = [_container_part(container, exact=exact) for container in running]
    for container in starting:
        part = _container_part(container, exact=exact)
        if any(all(dict(other).get(name, 0) < amount for other in parts) for name, amount in part):
            parts.insert(0, part)
    found = tuple(part for part in parts if part)
    return () if len(found) < 2 and all(is_extended(name) for part in found for name, _ in part) else found


def _container_part(container: Mapping[str, Any], *, exact: bool) -> tuple[tuple[str, int], ...]:
    """Return a container's devices; for pods of QoS class Guaranteed also memory, and whole CPUs."""
    asked = container_requests(container)
    shared = {"cpu"} if asked.get("cpu", 0) % 1000 else set()
    return tuple(
        sorted(
            (name, amount)
            for name, amount in asked.items()
            if amount and (is_extended(name) or (exact and name not in shared and name != "ephemeral-storage"))
        )
    )


def _decode_term(requirements: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    return tuple(
        dict.fromkeys(
            Requirement(key=entry["key"], operator=entry["operator"], values=tuple(entry.get("values") or ()))
            for entry in requirements
        )
    )


def decode_toleration(entry: Mapping[str, Any]) -> Toleration:
    """Decode a toleration from JSON."""
    return Toleration(
        key=entry.get("key") or "",
        operator=entry.get("operator") or "Equal",
        value=entry.get("value") or "",
        effect=entry.get("effect") or "",
    )


def _image_names(spec: Mapping[str, Any]) -> set[str]:
    """Return image names as nodes report them: without a tag or a digest, the tag is `latest`, as in kube-scheduler."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    images = (container["image"] for container in containers if container.get("image"))
    return {image if ":" in image.rpartition("/")[2] else f"{image}:latest" for image in images}
