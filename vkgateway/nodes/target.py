"""Compute pods of tenant pods, and the functions by which the endpoint finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from vkgateway.api.errors import NotFoundError
from vkgateway.kinds.pods.translation.own_containers import EVERY_CONTAINER
from vkgateway.kube.requests import Params
from vkgateway.kube.upgrade import Dialable
from vkgateway.nodes.absentpod import AbsentPod


class NoComputePodError(NotFoundError):
    """The tenant pod exists, but has no compute pod that could answer."""

    def __init__(self, pod: AbsentPod) -> None:
        super().__init__(pod.describe_state())
        self.pod = pod


def _always_alive() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PodTarget:
    """The compute pod of a tenant pod, with the client of its cluster.

    `uid` is the UID of the compute pod, `tenant_uid` the UID of the tenant pod. `is_alive` returns whether the compute
    pod exists and has not ended.
    """

    client: Dialable
    namespace: str
    name: str
    uid: str = ""
    tenant_uid: str = ""
    is_alive: Callable[[], bool] = _always_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """KWOK's simulation of a running pod: its containers, its start, and the usage of each container."""

    containers: tuple[str, ...]
    started: datetime
    cpu: float = 0.0
    """Cores."""
    memory: int = 0
    """Bytes."""


class NodeProxy(Protocol):
    """A client for requests to compute nodes. `vkgateway.kube.client.Client` implements this protocol."""

    @property
    def name(self) -> str:
        """Name of the cluster, for logs."""

    async def request(
        self, method: str, path: str, *, params: Params | None = None, body: bytes | None = None, timeout: float = 30
    ) -> bytes:
        """Send a request and return the body of the response. Raises ApiError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPod:
    """A compute pod with a node, and its tenant pod.

    `cluster`, `node`, `namespace`, `name` and `uid` belong to the compute pod. `tenant_...` and `virtual_node` belong
    to the tenant pod.
    """

    cluster: NodeProxy
    node: str
    namespace: str
    name: str
    uid: str
    tenant_namespace: str
    tenant_name: str
    tenant_uid: str
    virtual_node: str
    is_running: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the tenant pod."""
    containers: Container[str] = EVERY_CONTAINER
    """Names of the tenant pod's containers."""
    on_simulated_node: bool = False
    """Whether KWOK simulates the compute node, so that it has no kubelet."""
    simulation: Simulation | None = None
    """Simulation of a running pod on such a node."""


PodLocator = Callable[[str, str, str], "PodTarget | Awaitable[PodTarget]"]
"""Returns the compute pod of (tenant, namespace, pod) in the tenant's names. It must return pods of the tenant only.

Raises vkgateway.api.errors.NotFoundError with a message for the tenant if the tenant pod does not exist, and
NoComputePodError if it has no compute pod.
"""

PodLister = Callable[[str, str, str], Awaitable[Iterable[bytes]]]
"""Returns the tenant's pods of (tenant, node, phase) in JSON, as in the tenant's API server.

An empty node means all virtual nodes, an empty phase all phases. Raises vkgateway.api.errors.NotFoundError if the
node does not exist, and VkgatewayError if the pods cannot be listed now.
"""

PlacementLister = Callable[[str, str], tuple[str, list[PlacedPod]]]
"""Returns the name of the virtual node and the tenant's pods with a compute node for (tenant, virtual node).

An empty virtual node means the only one of the tenant. Raises vkgateway.api.errors.NotFoundError if the node does not
exist, and InputError if the tenant has several.
"""


VirtualNodeLister = Callable[[str], Mapping[str, Mapping[str, str]]]
"""Returns the labels of a tenant's virtual nodes, by node name.

Raises vkgateway.api.errors.NotFoundError if the tenant is not served.
"""


async def no_pods(_tenant: str, _node: str, _phase: str) -> Iterable[bytes]:
    """Return no pods."""
    return ()


def no_nodes(_tenant: str) -> Mapping[str, Mapping[str, str]]:
    """Return no virtual nodes."""
    return {}


def no_placements(_tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
    """Return a node without pods."""
    return node, []
