"""Narrow typed views of Kubernetes objects: what vkgateway looks at, and nothing else of them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from vkgateway.model import times

Object = dict[str, Any]
"""A whole Kubernetes object as decoded from JSON; kept only where it is forwarded."""


class Meta(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """`metadata` of any object. Times are RFC 3339 texts as the server sent them."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name; the namespace is empty for cluster-scoped objects."""
        return self.namespace, self.name


class ObjectView(msgspec.Struct, kw_only=True, rename="camel"):
    """Any object of which only the metadata matters."""

    metadata: Meta


class Condition(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """One entry of `status.conditions`; status is `True`, `False` or `Unknown`."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    observed_generation: int = 0


def find_condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """Find the condition of a type, or None."""
    return next((found for found in conditions if found.type == kind), None)


def is_condition_true(conditions: Sequence[Condition], kind: str) -> bool:
    """Tell whether the condition of a type is there and `True`."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


def set_condition(conditions: Sequence[Condition], new: Condition, *, now: datetime) -> list[Condition]:
    """Return the conditions with `new` in the place of its type, or at the end.

    The transition time is `now` only if the status changed, as the Kubernetes API conventions ask
    (https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md).
    """
    old = find_condition(conditions, new.type)
    unchanged = old is not None and old.status == new.status and old.last_transition_time is not None
    since = old.last_transition_time if old is not None and unchanged else times.render_time(now)
    placed = msgspec.structs.replace(new, last_transition_time=since)
    if old is None:
        return [*conditions, placed]
    return [placed if entry.type == new.type else entry for entry in conditions]


class Taint(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """A node's taint; effect is `NoSchedule`, `PreferNoSchedule` or `NoExecute`."""

    key: str
    value: str = ""
    effect: str = ""


class NodeAddress(msgspec.Struct, kw_only=True, frozen=True):
    """One of a node's addresses; type is `InternalIP`, `Hostname`, …"""

    type: str
    address: str


class NodeRuntimeHandler(msgspec.Struct, kw_only=True, frozen=True):
    """A container runtime handler that a node offers, with its features (`recursiveReadOnlyMounts`, …)."""

    name: str = ""
    features: dict[str, bool] = {}


class NodeImage(msgspec.Struct, frozen=True, weakref=True):
    """A container image on a node, by its names: with tags, with digests.

    Kubelets write null for one whose last name went to another image.
    """

    names: tuple[str, ...] | None = None


class NodeSpecView(msgspec.Struct, kw_only=True, rename="camel"):
    """What is wanted of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")


class NodeStatusView(msgspec.Struct, kw_only=True, rename="camel"):
    """What a node offers. Resource lists map names to quantities."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: dict[str, Any] = {}
    declared_features: tuple[str, ...] = ()
    runtime_handlers: tuple[NodeRuntimeHandler, ...] = ()
    features: dict[str, bool] = {}
    images: tuple[NodeImage, ...] = ()
    """The largest alone: a kubelet tells 50 (`nodeStatusMaxImages`)."""


class NodeView(msgspec.Struct, kw_only=True, rename="camel"):
    """A compute cluster's node."""

    metadata: Meta
    spec: NodeSpecView = msgspec.field(default_factory=NodeSpecView)
    status: NodeStatusView = msgspec.field(default_factory=NodeStatusView)

    @property
    def is_usable(self) -> bool:
        """Ready, and open for new pods."""
        return not self.spec.unschedulable and is_condition_true(self.status.conditions, "Ready")


class NamespaceStatusView(msgspec.Struct, kw_only=True):
    """A namespace's phase: `Active` or `Terminating`."""

    phase: str = "Active"


class NamespaceView(msgspec.Struct, kw_only=True, rename="camel"):
    """A namespace."""

    metadata: Meta
    status: NamespaceStatusView = msgspec.field(default_factory=NamespaceStatusView)


decode_object: Final = msgspec.json.Decoder(ObjectView).decode
decode_namespace: Final = msgspec.json.Decoder(NamespaceView).decode
