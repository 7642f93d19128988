"""Narrow typed views of Kubernetes objects: only the fields that vkgateway reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from vkgateway.api import times

Object = dict[str, Any]
"""A whole Kubernetes object, decoded from JSON. Only objects that the gateway forwards are stored in this form."""


TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})
"""Phases of a pod that has ended."""


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """Return the merge patch (RFC 7386) from one object to another; it is empty if they are equal."""
    patch: Object = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif value != before:
            patch[key] = value
    return patch


class Meta(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """`metadata` of any object. Times are RFC 3339 strings as the server sent them."""

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
        """Namespace and name. The namespace of cluster-scoped objects is empty."""
        return self.namespace, self.name


class ObjectView(msgspec.Struct, kw_only=True, rename="camel"):
    """Any object, reduced to its metadata."""

    metadata: Meta


class Condition(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """One entry of `status.conditions`. `status` is `True`, `False` or `Unknown`."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    observed_generation: int = 0


def find_condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((found for found in conditions if found.type == kind), None)


def is_condition_true(conditions: Sequence[Condition], kind: str) -> bool:
    """Return whether the condition of a type exists and is `True`."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


def set_condition(conditions: Sequence[Condition], new: Condition, *, now: datetime) -> list[Condition]:
    """Return the conditions with `new` instead of the old condition of its type, or appended.

    The transition time is `now` only if the status changed, as the Kubernetes API conventions require
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
    """A taint of a node. `effect` is `NoSchedule`, `PreferNoSchedule` or `NoExecute`."""

    key: str
    value: str = ""
    effect: str = ""


class NodeAddress(msgspec.Struct, kw_only=True, frozen=True):
    """An address of a node. `type` is `InternalIP`, `Hostname`, …"""

    type: str
    address: str


class NodeRuntimeHandler(msgspec.Struct, kw_only=True, frozen=True):
    """A container runtime handler of a node, with its features (`recursiveReadOnlyMounts`, …)."""

    name: str = ""
    features: dict[str, bool] = {}


class NodeImage(msgspec.Struct, frozen=True, weakref=True):
    """A container image on a node, by its names with tags and with digests.

    Kubelets write null for an image whose last name moved to another image.
    """

    names: tuple[str, ...] | None = None


class NodeSpecView(msgspec.Struct, kw_only=True, rename="camel"):
    """Desired state of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")


class NodeStatusView(msgspec.Struct, kw_only=True, rename="camel"):
    """Observed state of a node. Resource lists map names to quantities."""

    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: dict[str, Any] = {}
    declared_features: tuple[str, ...] = ()
    runtime_handlers: tuple[NodeRuntimeHandler, ...] = ()
    features: dict[str, bool] = {}
    images: tuple[NodeImage, ...] = ()
    """Only the largest images: a kubelet reports 50 (`nodeStatusMaxImages`)."""


class NodeView(msgspec.Struct, kw_only=True, rename="camel"):
    """A compute cluster's node."""

    metadata: Meta
    spec: NodeSpecView = msgspec.field(default_factory=NodeSpecView)
    status: NodeStatusView = msgspec.field(default_factory=NodeStatusView)

    @property
    def is_usable(self) -> bool:
        """Whether the node is Ready and schedulable."""
        return not self.spec.unschedulable and is_condition_true(self.status.conditions, "Ready")


class NamespaceView(msgspec.Struct, kw_only=True, rename="camel"):
    """A namespace."""

    metadata: Meta


class SecretView(msgspec.Struct):
    """A Secret, with its values in base64."""

    metadata: Meta
    data: dict[str, str] = {}


decode_object: Final = msgspec.json.Decoder(ObjectView).decode
decode_namespace: Final = msgspec.json.Decoder(NamespaceView).decode
decode_secret: Final = msgspec.json.Decoder(SecretView).decode


class Waiting(msgspec.Struct):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, rename="camel"):
    """The end of a container; with `FallbackToLogsOnError`, the message is the end of its log."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct):
    """At most one of the states of a container; none of them while it runs."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    """Status of a container."""

    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)
