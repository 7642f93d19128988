"""Options of `vkgateway up`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION

RealNodeChoice = Literal["auto", "yes", "no"]

PORTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "etcd": 2379,
        "etcd-peer": 2380,
        "compute-api": 6443,
        "hollow-kubelet": 10247,
        "gateway-kubelet": 10352,
        "gateway-health": 9631,
        "gateway-metrics": 9632,
        "gateway-page": 9633,
    }
)
"""Preferred number of each port of the platform."""

HOLLOW_NODES: Final[Mapping[str, int]] = MappingProxyType({"a100": 4, "v100": 2})
"""Default number of nodes of each hollow pool."""

HOLLOW_NODES_MAX: Final = 5000
"""Maximum nodes in a hollow pool, the limit of Kubernetes
(https://kubernetes.io/docs/setup/best-practices/cluster-large/).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Options of one `up`; None keeps the current choice, or the default of a new platform."""

    kubernetes_version: str | None = None
    real_node: RealNodeChoice | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    port_range: tuple[int, int] | None = None
    hollow_nodes: Mapping[str, int] = field(default_factory=dict)
    durable: bool | None = None
    templates_dir: Path | None = None
    program_dirs: tuple[Path, ...] = ()
    cache_dir: Path | None = None
    webhook_ranges: tuple[str, ...] | None = None
    gateway: bool = True
    cluster_only: bool = False
    """Start an ordinary cluster without vkgateway's API types, roles and gateway, to install the chart into."""


DEFAULT_VERSION: Final = DEFAULT_KUBERNETES_VERSION
