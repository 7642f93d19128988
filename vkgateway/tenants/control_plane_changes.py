"""Changes that a driver reports, passed on to the tenants that they concern."""

from __future__ import annotations

from vkgateway.tenants.controller import TenantController
from vkgateway.tenants.running_tenants import RunningTenants


class ControlPlaneChanges:
    """Implementation of `controlplane.drivers.base.DriverListener`."""

    def __init__(self, running: RunningTenants, controller: TenantController) -> None:
        self._running = running
        self._controller = controller

    def addresses_changed(self, tenant: str) -> None:
        """See `DriverListener`; a tenant that does not run yet reads the addresses when it starts."""
        if (runtime := self._running.get(tenant)) is not None:
            runtime.servers_changed()

    def control_plane_changed(self, tenant: str) -> None:
        """See `DriverListener`."""
        self._controller.repair_control_plane(tenant)

    def owns_address(self, tenant: str, address: str) -> bool:
        """See `DriverListener`; the pods of a tenant that does not run yet are not known."""
        runtime = self._running.get(tenant)
        return runtime is not None and runtime.pods.owns_address(address)

    def is_of_other_tenant(self, tenant: str, address: str) -> bool:
        """See `DriverListener`; the pods of a tenant that does not run yet are not known."""
        return any(self.owns_address(other, address) for other in self._running if other != tenant)
