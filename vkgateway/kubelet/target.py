"""Where a tenant's pod really runs, and how the endpoint finds that out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from vkgateway.kube.requests import Params
from vkgateway.kube.upgrade import Dialable
from vkgateway.kubelet.absentpod import AbsentPod
from vkgateway.model.errors import NotFoundError


class NoComputePodError(NotFoundError):
    """No compute pod that could answer exists for a tenant's pod, which does exist."""

    def __init__(self, pod: AbsentPod) -> None:
        super().__init__(pod.describe_state())
        self.pod = pod


def _always_alive() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PodTarget:
    """The compute pod that stands for a tenant's pod: by which client, under which name. `uid` is its own.

    `tenant_uid` is that of the tenant's pod; `is_alive` tells, as often as it is asked, whether the compute pod still
    is there and has not ended.
    """

    client: Dialable
    namespace: str
    name: str
    uid: str = ""
    tenant_uid: str = ""
    is_alive: Callable[[], bool] = _always_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What KWOK plays of a running pod: its containers, since when, and what each of them uses."""

    containers: tuple[str, ...]
    started: datetime
    cpu: float = 0.0
    """Cores."""
    memory: int = 0
    """Bytes."""


class NodeProxy(Protocol):
    """The part of a compute cluster's client by which its nodes are asked: `vkgateway.kube.client.Client` is one."""

    @property
    def name(self) -> str:
        """Which cluster it is, for the log."""

    async def request(
        self, method: str, path: str, *, params: Params | None = None, body: bytes | None = None, timeout: float = 30
    ) -> bytes:
        """Send one request and return the whole answer. Raises ApiError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPod:
    """A compute pod that has a node, and the tenant's pod that it stands for.

    `cluster`, `node`, `namespace`, `name` and `uid` are the compute cluster's words; `tenant_...` and `virtual_node`
    the tenant's.
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
    """The tenant's."""
    on_simulated_node: bool = False
    """KWOK plays the compute node: it has no kubelet that could be asked."""
    simulation: Simulation | None = None
    """What is reported of a running pod on such a node."""


PodLocator = Callable[[str, str, str], "PodTarget | Awaitable[PodTarget]"]
"""(tenant, namespace, pod), all the tenant's words, to the compute pod.

Raises vkgateway.model.errors.NotFoundError with a message for the tenant where there is no such pod, and
NoComputePodError where nothing of it exists in the compute cluster. It must look among that tenant's pods only.
"""

PodLister = Callable[[str, str, str], Awaitable[Iterable[bytes]]]
"""(tenant, node, phase) to its own pods on virtual nodes, as the tenant's API server holds them: JSON objects.

Without a node those on all virtual nodes, without a phase all of them. Raises vkgateway.model.errors.NotFoundError
where there is no such node, VkgatewayError where they cannot be told now.
"""

PlacementLister = Callable[[str, str], tuple[str, list[PlacedPod]]]
"""(tenant, virtual node) to that node's name and that tenant's pods on it which have a node below.

Without a virtual node the tenant's only one. Raises vkgateway.model.errors.NotFoundError where there is no such node,
and InputError where there are several and none is named.
"""


VirtualNodeLister = Callable[[str], Mapping[str, Mapping[str, str]]]
"""(tenant) to its virtual nodes, by name, with the labels that they have there.

Raises vkgateway.model.errors.NotFoundError where the tenant is not served now.
"""


async def no_pods(_tenant: str, _node: str, _phase: str) -> Iterable[bytes]:
    """Tell of no pods."""
    return ()


def no_nodes(_tenant: str) -> Mapping[str, Mapping[str, str]]:
    """Tell of no virtual nodes."""
    return {}


def no_placements(_tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
    """Tell of a node without pods."""
    return node, []
