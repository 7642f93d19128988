"""The state of the compute cluster that determines the kernel's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from vkgateway.api.objects import Meta
from vkgateway.kinds.policies.translation import NetworkPolicyView


class ContainerPort(msgspec.Struct, rename="camel"):
    """A container port; policies may refer to it by name."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"


class ContainerView(msgspec.Struct, rename="camel"):
    """A container's ports."""

    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str = ""


class PodSpecView(msgspec.Struct, rename="camel"):
    """The part of a pod's spec about its network."""

    containers: tuple[ContainerView, ...] = ()
    init_containers: tuple[ContainerView, ...] | None = None
    host_network: bool = False

    @property
    def container_ports(self) -> tuple[ContainerPort, ...]:
        """Ports of containers and of sidecars."""
        sidecars = [container for container in self.init_containers or () if container.restart_policy == "Always"]
        return tuple(port for container in (*self.containers, *sidecars) for port in container.ports or ())


class PodStatusView(msgspec.Struct, rename="camel"):
    """A pod's phase and address."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class PodView(msgspec.Struct, kw_only=True, rename="camel"):
    """A pod of the node."""

    metadata: Meta
    spec: PodSpecView = msgspec.field(default_factory=PodSpecView)
    status: PodStatusView = msgspec.field(default_factory=PodStatusView)


decode_pod: Final = msgspec.json.Decoder(PodView).decode


class Server(NamedTuple):
    """Address and port of a server of the platform."""

    address: str
    port: int
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of the node with an address."""

    address: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[ContainerPort] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Everything that changes while the node runs.

    Pods of other nodes are left out: hollow nodes run nothing, and the addresses of their pods are unreachable.
    """

    pods: Sequence[Pod] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of each namespace."""
    policies: Sequence[NetworkPolicyView] = ()
    servers: Mapping[str, Sequence[Server]] = field(default_factory=dict)
    """API server and name servers of each tenant."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of a node; the process that enforces policies reads them from a file."""

    node: str
    """Name of the Node object."""
    uplink: str
    """The interface to the machine; every other one belongs to a pod."""
    machine: tuple[str, ...]
    """Addresses of the machine. Callers there, such as API servers, always reach pods, like a kubelet."""
    pods: str
    """Addresses of the node's pods."""
    closed: tuple[str, ...]
    """Ranges of platforms and their pods. A tenant's pod reaches only its tenant's pods and servers there."""
    all_pods: str
    """Range of the pods of all platforms on the machine."""
    open: tuple[Server, ...] = ()
    """Servers in closed ranges that every pod may reach."""
