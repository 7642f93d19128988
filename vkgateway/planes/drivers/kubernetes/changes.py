"""Changes of control planes in the management cluster, passed on to the gateway while the driver runs."""

from __future__ import annotations

from vkgateway.planes.drivers.base import DriverListener
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE
from vkgateway.planes.drivers.kubernetes.repairs import RepairThrottle


class Changes:
    """Passes changes on to the listener; none while there is no listener."""

    def __init__(self) -> None:
        self.listener: DriverListener | None = None
        self._repairs = RepairThrottle()

    def addresses_changed(self, tenant: str) -> None:
        """See `DriverListener`."""
        if self.listener is not None:
            self.listener.addresses_changed(tenant)

    def object_changed(self, tenant: str, component: str, subject: str) -> None:
        """Report that another client changed or deleted an object `subject` of a control plane or of a name server."""
        if self.listener is None:
            return
        repair = self._repair_control_plane if component == CONTROL_PLANE else self.addresses_changed
        self._repairs.request(subject, lambda: repair(tenant))

    def stop(self) -> None:
        """Pass nothing on from now on."""
        self.listener = None
        self._repairs.close()

    def _repair_control_plane(self, tenant: str) -> None:
        if self.listener is not None:
            self.listener.control_plane_changed(tenant)
