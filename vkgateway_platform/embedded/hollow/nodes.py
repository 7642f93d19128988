"""The Node objects that KWOK simulates: GPU machines that do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MANAGED_ANNOTATION: Final = ("kwok.x-k8s.io/node", "fake")
"""Annotation of the nodes that KWOK manages."""

POOL_LABEL: Final = "platform.vkgateway.io/pool"
DOMAIN_LABEL: Final = "network.vkgateway.io/domain"
"""Label with the fast network of a node."""
ZONE_LABEL: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowMachine:
    """A kind of machine: its resources, and the number of network domains over which its nodes are spread."""

    product: str
    domains: int = 1
    capacity: Mapping[str, str] = field(
        default_factory=lambda: {
            "cpu": "96",
            "memory": "1Ti",
            "ephemeral-storage": "2Ti",
            "pods": "110",
            "nvidia.com/gpu": "8",
        }
    )


MACHINES: Final[Mapping[str, HollowMachine]] = {
    "a100": HollowMachine(product="NVIDIA-A100-SXM4-80GB", domains=2),
    "v100": HollowMachine(product="Tesla-V100-SXM2-32GB"),
}
"""The hollow pools and their machines."""


def hollow_nodes(counts: Mapping[str, int], *, version: str) -> Iterator[dict[str, Any]]:
    """Yield the Node objects of each pool in `counts`, which has the number of each; `version` is the cluster's."""
    for pool, count in counts.items():
        machine = MACHINES[pool]
        for index in range(count):
            yield make_node(pool, index=index, count=count, machine=machine, version=version)


def make_node(pool: str, *, index: int, count: int, machine: HollowMachine, version: str) -> dict[str, Any]:
    """Return the Node object number `index` of the `count` nodes of a pool."""
    name = f"{pool}-{index}"
    domain = index * machine.domains // count
    key, value = MANAGED_ANNOTATION
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {key: value},
            "labels": {
                POOL_LABEL: pool,
                DOMAIN_LABEL: f"{pool}-{domain}",
                ZONE_LABEL: f"zone-{domain}",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": f"hollow-{pool}",
                "nvidia.com/gpu.product": machine.product,
                "nvidia.com/gpu.count": machine.capacity["nvidia.com/gpu"],
            },
        },
        "status": {
            "capacity": dict(machine.capacity),
            "allocatable": dict(machine.capacity),
            "nodeInfo": _node_info(version),
        },
    }


def _node_info(version: str) -> dict[str, str]:
    """Return the required node information; ids are empty, since there is no machine."""
    return {
        "architecture": "amd64",
        "operatingSystem": "linux",
        "osImage": "hollow",
        "kernelVersion": "hollow",
        "containerRuntimeVersion": "kwok://hollow",
        "kubeletVersion": f"v{version}",
        "kubeProxyVersion": "",
        "bootID": "",
        "machineID": "",
        "systemUUID": "",
    }
