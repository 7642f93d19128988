"""Compute clusters, pools and tenants of a gateway as input of the arbiter."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.api.types import Pool
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.link import ComputeLink
from vkgateway.kube.clock import SteadyClock
from vkgateway.scheduler.core.snapshot import PoolKey
from vkgateway.tenants.controller import TenantController


class ArbiterPlatform:
    """Implementation of the arbiter's `Platform`."""

    def __init__(self, clusters: ComputeClusters, *, clock: SteadyClock) -> None:
        self._clusters = clusters
        self._clock = clock
        self.tenant_controller: TenantController | None = None
        """Set when it is created, after the arbiter."""

    @property
    def links(self) -> Mapping[str, ComputeLink]:
        """The connected compute clusters by name."""
        return self._clusters.links

    def pool_specs(self) -> dict[str, tuple[Pool, ...]]:
        """Return the pools in the spec of each compute cluster."""
        return self._clusters.pool_specs()

    def divided_pools(self) -> dict[PoolKey, frozenset[str]]:
        """Return the labels that select the nodes of a part of each divided pool; called from other threads."""
        return {
            (cluster, pool.name): frozenset((*pool.node_selector, pool.virtual_nodes_by))
            for cluster, pools in self._clusters.pool_specs().items()
            for pool in pools
            if pool.virtual_nodes_by
        }

    def expected_tenants(self) -> list[str] | None:
        """Return the tenants whose pods must be known before the first cycle; None while unknown."""
        tenants = self.tenant_controller
        if tenants is None or not tenants.tenants.is_complete or not self._clusters.reflector.is_complete:
            return None
        return tenants.tenant_names()

    def notices_ended(self) -> None:
        """Synchronize the clock with the machine's clock: without notices, no deadline moves."""
        self._clock.follow_wall()
