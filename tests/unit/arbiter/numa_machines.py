"""Simulated nodes with NUMA zones, and kubelets that place each container in one zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from tests.unit.arbiter.simulated_cluster import GPU
from vkgateway.scheduler.core.capacity.free_vectors import ContainerRequest, zone_requests
from vkgateway.scheduler.core.snapshot import Node, Shape, Topology, Zone


class NumaMachine:
    """Node whose kubelet chooses zones at random, and publishes free amounts only on demand."""

    def __init__(
        self, name: str, zones: Iterable[Mapping[str, int]], *, scope: str = "container", random: Random
    ) -> None:
        self.name = name
        self.scope = scope
        self.zones = [dict(zone) for zone in zones]
        self.pods: dict[str, list[tuple[int, ContainerRequest]]] = {}
        """Zone and amounts of each container, by pod uid."""
        self.unmanaged: Counter[str] = Counter()
        self._random = random
        self.topology = self.publish_topology()

    def free_by_zone(self) -> list[dict[str, int]]:
        free = [dict(zone) for zone in self.zones]
        for held in self.pods.values():
            for zone, part in held:
                for name, amount in part:
                    free[zone][name] -= amount
        return free

    def start_pod(self, uid: str, shape: Shape, *, stranger: bool = False) -> bool:
        """Start a pod; return whether the kubelet admits it."""
        held: list[tuple[int, ContainerRequest]] = []
        self.pods[uid] = held
        for part in self._zone_requests(shape):
            free = self.free_by_zone()
            fits = [at for at, zone in enumerate(free) if all(zone.get(name, 0) >= amount for name, amount in part)]
            if not fits:
                del self.pods[uid]
                return False
            held.append((self._random.choice(fits), part))
        if stranger:
            for name, amount in shape.requests:
                self.unmanaged[name] += amount
        return True

    def _zone_requests(self, shape: Shape) -> list[ContainerRequest]:
        known = {name for zone in self.zones for name in zone}
        parts = [[(name, amount) for name, amount in part if name in known] for part in zone_requests(shape)]
        if self.scope == "pod":
            total: Counter[str] = Counter()
            for part in parts:
                total.update(dict(part))
            return [tuple(total.items())]
        return [tuple(part) for part in parts if part]

    def end_pod(self, uid: str, shape: Shape) -> None:
        self.pods.pop(uid, None)
        if uid in self.topology.counted:
            self.topology = replace(self.topology, gone={**self.topology.gone, uid: shape})

    def publish_topology(self) -> Topology:
        """Publish the current free amounts, as the updater does."""
        self.topology = Topology(
            zones=tuple(
                Zone(name=f"node-{at}", allocatable=dict(whole), available=free)
                for at, (whole, free) in enumerate(zip(self.zones, self.free_by_zone(), strict=True))
            ),
            scope=self.scope,
            counted=frozenset(self.pods),
            used=dict(self.unmanaged),
        )
        return self.topology

    def arbiter_node(self, *, cpu: int = 64) -> Node:
        """Return the node as the arbiter sees it: with the amounts published last."""
        total: Counter[str] = Counter()
        for zone in self.zones:
            total.update(zone)
        return Node(
            name=self.name,
            allocatable={"cpu": cpu * 1000, **total},
            used=dict(self.unmanaged),
            labels={"rack": "r0"},
            topology=self.topology,
        )


def zoned_node(name: str, *sizes: int, scope: str = "container", **fields: object) -> Node:
    """Return a node whose zones have these numbers of GPUs, all free."""
    zones = [{GPU: size * 1000} for size in sizes]
    return replace(NumaMachine(name, zones, scope=scope, random=Random(0)).arbiter_node(), **fields)  # type: ignore[arg-type]


def container_shape(*sizes: int) -> Shape:
    """Return a pod's shape with these numbers of GPUs in its containers."""
    whole = Shape.from_requests({GPU: sum(sizes) * 1000})
    return replace(whole, parts=tuple(((GPU, size * 1000),) for size in sizes))
