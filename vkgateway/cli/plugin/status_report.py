"""What `kubectl vkgateway status` shows, as data: of a tenant's cluster, and of the management cluster (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from vkgateway.api.names import EVICTION_DEADLINE_ANNOTATION, POOL_LABEL
from vkgateway.api.objects import TERMINAL_PHASES, Condition, Object, find_condition
from vkgateway.api.types import CONNECTED, READY, ComputeCluster, Tenant
from vkgateway.cli.pending_gangs import pending_condition
from vkgateway.cli.plugin.tenant_quota import is_ready
from vkgateway.kinds.pods.translation.conditions import FORWARDED_CONDITION, POOL_SCHEDULED_CONDITION
from vkgateway.nodes.virtual_nodes import COMPUTE_CONNECTED
from vkgateway.scheduler.governed import has_gate, is_governed


class _Data(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the data."""


class ClusterFacts(_Data, frozen=True):
    """The cluster and the caller."""

    kind: str
    """tenant or management."""
    server: str
    context: str
    namespace: str
    user: str
    version: str
    """Release of Kubernetes."""


class ObjectState(_Data, frozen=True):
    """A named object that is ready or not, and why not."""

    name: str
    ready: bool
    phase: str = ""
    connected: bool | None = None
    reason: str = ""
    message: str = ""
    since: str = ""


class EvictionNotice(_Data, frozen=True):
    """A pod that the arbiter evicts."""

    namespace: str
    pod: str
    deadline: str


class ClusterStatus(_Data, frozen=True):
    """Status of the cluster. Lists are None if the user may not read them, and then `problems` says so."""

    cluster: ClusterFacts
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""
    nodes: tuple[ObjectState, ...] | None = None
    pods: dict[str, int] | None = None
    """Number of governed pods by state."""
    evictions: tuple[EvictionNotice, ...] = ()
    gateway: str = ""
    """The leading gateway, and the age of its last renewal."""
    checks: tuple[str, ...] = ()
    """Lines of the gateway's /readyz."""
    tenants: tuple[ObjectState, ...] | None = None
    compute_clusters: tuple[ObjectState, ...] | None = None

    @property
    def is_well(self) -> bool:
        """Whether everything was read, and everything is ready."""
        states = (*(self.nodes or ()), *(self.tenants or ()), *(self.compute_clusters or ()))
        return not self.problems and all(state.ready for state in states) and not failed_checks(self.checks)


def failed_checks(checks: Iterable[str]) -> list[str]:
    """Return the lines of failed checks."""
    return [line for line in checks if line.startswith("[-]")]


def virtual_node_state(node: Object) -> ObjectState:
    """Return the state of a virtual node."""
    conditions = {entry["type"]: entry for entry in (node.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    connected = conditions.get(COMPUTE_CONNECTED)
    return ObjectState(
        name=node["metadata"]["name"],
        ready=is_ready(node),
        connected=None if connected is None else connected["status"] == "True",
        reason=ready.get("reason") or "",
        message=ready.get("message") or "",
        since=ready.get("lastTransitionTime") or "",
    )


def virtual_nodes(nodes: Iterable[Object]) -> Iterator[Object]:
    """Yield the virtual nodes among the nodes of a tenant."""
    return (node for node in nodes if POOL_LABEL in (node["metadata"].get("labels") or {}))


def tenant_state(tenant: Tenant) -> ObjectState:
    """Return the state of a Tenant. The message is of the first condition that is not True."""
    return _condition_state(tenant.metadata.name, tenant.status.conditions, phase=tenant.status.phase)


def compute_state(compute: ComputeCluster) -> ObjectState:
    """Return the state of a ComputeCluster."""
    connected = find_condition(compute.status.conditions, CONNECTED)
    state = _condition_state(compute.metadata.name, compute.status.conditions)
    return msgspec.structs.replace(state, connected=None if connected is None else connected.status == "True")


def _condition_state(name: str, conditions: Sequence[Condition], *, phase: str = "") -> ObjectState:
    ready = find_condition(conditions, READY)
    if ready is None:
        return ObjectState(
            name=name, ready=False, phase=phase, reason="NotReconciled", message="no condition Ready yet"
        )
    broken = next((found for found in conditions if found.status != "True"), ready)
    return ObjectState(
        name=name,
        ready=ready.status == "True",
        phase=phase,
        reason=broken.reason,
        message=broken.message if broken.status != "True" else "",
        since=ready.last_transition_time or "",
    )


def count_states(pods: Iterable[Object]) -> dict[str, int]:
    """Return the number of governed pods by state: waiting, starting, blocked, running, leaving."""
    return dict(Counter(_pod_state(pod) for pod in pods if is_governed(pod) and not _has_ended(pod)))


def _pod_state(pod: Object) -> str:
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata.get("deletionTimestamp") or (metadata.get("annotations") or {}).get(EVICTION_DEADLINE_ANNOTATION):
        return "leaving"
    if pending_condition(pod) is not None or has_gate(pod):
        return "waiting"
    if status.get("phase") == "Running":
        return "running"
    blocking = (FORWARDED_CONDITION, POOL_SCHEDULED_CONDITION)
    is_blocked = any(c["type"] in blocking and c["status"] == "False" for c in status.get("conditions") or ())
    return "blocked" if is_blocked else "starting"


def eviction_notices(pods: Iterable[Object]) -> tuple[EvictionNotice, ...]:
    """Return the pods that the arbiter evicts, the earliest deadline first."""
    found = [
        EvictionNotice(namespace=pod["metadata"]["namespace"], pod=pod["metadata"]["name"], deadline=deadline)
        for pod in pods
        if (deadline := (pod["metadata"].get("annotations") or {}).get(EVICTION_DEADLINE_ANNOTATION))
        and not _has_ended(pod)
    ]
    return tuple(sorted(found, key=lambda notice: (notice.deadline, notice.namespace, notice.pod)))


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES
