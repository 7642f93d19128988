"""The platform as the arbiter sees it: compute clusters, pools, and the tenants whose pods it waits for."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.gateway.compute_controller import ComputeController
from vkgateway.gateway.tenant_controller import TenantController
from vkgateway.model.api import Pool
from vkgateway.sync.clock import SteadyClock
from vkgateway.sync.compute.link import ComputeLink


class ArbiterPlatform:
    """The compute clusters and tenants of one gateway process; see `Platform`."""

    def __init__(self, compute_controller: ComputeController, *, clock: SteadyClock) -> None:
        self._compute_controller = compute_controller
        self._clock = clock
        self.tenant_controller: TenantController | None = None
        """Set once it exists: it is created after the arbiter."""

    @property
    def links(self) -> Mapping[str, ComputeLink]:
        """The connected compute clusters by name."""
        return self._compute_controller.links

    def pool_specs(self) -> dict[str, tuple[Pool, ...]]:
        """Return the pools in the spec of each compute cluster."""
        clusters = self._compute_controller.clusters.store.values()
        return {found.metadata.name: found.spec.pools for found in clusters}

    def expected_tenants(self) -> list[str] | None:
        """Return the tenants whose pods must be known before the first cycle; None: not known yet."""
        tenants = self.tenant_controller
        if tenants is None or not tenants.tenants.is_complete or not self._compute_controller.clusters.is_complete:
            return None
        return tenants.tenant_names()

    def notices_ended(self) -> None:
        """Let the clock follow the machine's clock: no pod is under notice, so no deadline moves."""
        self._clock.follow_wall()
