"""Free capacity of one pool's nodes during a cycle, and best-fit placement of whole gangs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vkgateway.scheduler.core.capacity.node_matching import has_untolerated_taint, matches_terms
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, Shape

_Amounts = NDArray[np.int64]
"""Thousandths, by node and resource."""


class PoolLayout:
    """Constant facts of a pool: its nodes, and which of them each shape may use."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.node_numbers = {node.name: number for number, node in enumerate(pool.nodes)}
        names = {name for node in pool.nodes for name in node.allocatable}
        self.resources = sorted(names, key=lambda name: (name != pool.loss_resource, name))
        """The pool's unit is the first."""
        free = [
            [node.allocatable.get(name, 0) - node.used.get(name, 0) for name in self.resources] for node in pool.nodes
        ]
        self.initial_free: _Amounts = np.array(free, dtype=np.int64).reshape(len(pool.nodes), len(self.resources))
        self._requests: dict[Shape, _Amounts | None] = {}
        self._allowed: dict[tuple[object, ...], NDArray[np.bool_]] = {}

    def request_vector(self, shape: Shape) -> _Amounts | None:
        """Return what a pod of this shape requests; None: a resource that no node has."""
        if shape not in self._requests:
            asked = dict(shape.requests)
            known = asked.keys() <= set(self.resources)
            vector = np.array([asked.get(name, 0) for name in self.resources], dtype=np.int64)
            self._requests[shape] = vector if known else None
        return self._requests[shape]

    def allowed_nodes(self, shape: Shape) -> NDArray[np.bool_]:
        """Return by node whether labels, taints and state let a pod of this shape run there."""
        key = shape.terms, shape.tolerations
        if key not in self._allowed:
            self._allowed[key] = np.array(
                [
                    node.usable
                    and matches_terms(shape.terms, node.labels)
                    and not has_untolerated_taint(shape.tolerations, node.taints)
                    for node in self.pool.nodes
                ],
                dtype=np.bool_,
            )
        return self._allowed[key]


class FreeCapacity:
    """Free capacity on the nodes of a pool, now or later."""

    def __init__(self, nodes: PoolLayout, free: _Amounts | None = None) -> None:
        self.layout = nodes
        self._free = nodes.initial_free.copy() if free is None else free

    def copy(self) -> FreeCapacity:
        """Return an independent copy."""
        return FreeCapacity(self.layout, self._free.copy())

    def allocate_pods(self, pods: Iterable[Pod], nodes: Mapping[str, str] | None = None) -> None:
        """Subtract what pods request, on the nodes given by uid or on their own."""
        self._change_usage(pods, nodes, -1)

    def release_pods(self, pods: Iterable[Pod]) -> None:
        """Add what pods request on their nodes."""
        self._change_usage(pods, None, 1)

    def _change_usage(self, pods: Iterable[Pod], nodes: Mapping[str, str] | None, sign: int) -> None:
        for pod in pods:
            request = self.layout.request_vector(pod.shape)
            name = pod.node if nodes is None else nodes[pod.uid]
            if request is not None and name in self.layout.node_numbers:
                self._free[self.layout.node_numbers[name]] += sign * request

    def place_pods(self, pods: Sequence[Pod], *, part: bool = False) -> dict[str, str] | None:
        """Place all of these pods, the largest first, each on the fullest node that fits.

        None: they do not all fit.

        Their requests are subtracted, with `part` also if they do not all fit.
        """
        trial, found = self._free.copy(), {}
        if part:
            self._free = trial
        for pod in sorted(pods, key=lambda pod: -pod.shape.amount_of(self.layout.pool.loss_resource)):
            request = self.layout.request_vector(pod.shape)
            if request is None:
                return None
            fits = (trial >= request).all(axis=1) & self.layout.allowed_nodes(pod.shape)
            if not fits.any():
                return None
            number = int(np.where(fits, trial[:, 0], np.iinfo(np.int64).max).argmin())
            trial[number] -= request
            found[pod.uid] = self.layout.pool.nodes[number].name
        self._free = trial
        return found


def pod_shapes(gang: Gang) -> tuple[Shape, ...]:
    """Return the shapes of a pending gang's pods, by which equal gangs are recognized."""
    return tuple(pod.shape for pod in gang.pods)
