"""The kinds of a scheduler's objects, and how the gateway reads and writes them: one value for each scheduling mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from vkgateway.api.names import GATEWAY_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.kube.resources import Resource
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.names import MODE_LABEL


class AttemptView(Protocol):
    """An object that represents an attempt."""

    metadata: Meta


View = TypeVar("View", bound=AttemptView)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeKinds(Generic[View]):
    """Kinds of one scheduler."""

    mode: str
    title: str
    """Name of the scheduler in messages."""
    attempts: Resource
    namespace: str
    """Namespace of all attempts; empty: an attempt is in the namespace of its pods."""
    pool_kinds: tuple[Resource, ...]
    """Kinds of pool objects. An object is deleted after the objects that refer to it, so those come first."""
    decode: Callable[[bytes], View]
    read: Callable[[View, str, Callable[[str], str]], Attempt]
    """Returns the attempt of an object in a compute cluster; the function returns the node with a host name."""
    ready_status: Callable[[datetime], Object] | None = None
    """Returns the status by which the scheduler learns at a time that all pods run; None: it knows without."""
    returned_status: Callable[[Mapping[str, int]], Object] | None = None
    """Returns the status by which the scheduler gets slots back, by pod set; None: it takes none back."""

    def own_selector(self, gateway: str) -> str:
        """Return the label selector of the objects of a gateway, by its ID. Other gateways may use the cluster."""
        return f"{MODE_LABEL}={self.mode},{GATEWAY_LABEL}={gateway}"

    def find_kind(self, name: str) -> Resource:
        """Return the kind of a pool object."""
        return next(kind for kind in self.pool_kinds if kind.kind == name)


def with_owner(document: Object, gateway: str) -> Object:
    """Return an object that names the gateway to which it belongs."""
    metadata = document["metadata"]
    return {**document, "metadata": {**metadata, "labels": {**metadata["labels"], GATEWAY_LABEL: gateway}}}
