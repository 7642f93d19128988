"""What every way of running a control plane can do."""

from __future__ import annotations

from typing import Protocol

from vkgateway.controlplane.credentials import Credentials
from vkgateway.controlplane.plane import ControlPlaneSpec


class Driver(Protocol):
    """Runs tenants' control planes. Each call may be repeated; nothing is done twice."""

    async def prepare(self, version: str) -> None:
        """Fetch what is needed to run that Kubernetes version; may take minutes the first time."""

    async def start(self, plane: ControlPlaneSpec, *, credentials: Credentials, version: str) -> frozenset[str]:
        """Bring the components to what `plane` says and return before they serve.

        Returns the fingerprints (SHA-256, hexadecimal) of the certificates by which the API server calls kubelets:
        around a renewal the old one and the new one.

        Raises:
            ConflictError: another program listens on the API server's port.
            InputError: that version cannot be run.
        """

    def kubelet_clients(self, tenant: str) -> frozenset[str]:
        """Return the fingerprints that `start` returned last; none where it was never called for that tenant."""

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        """Say in one sentence what keeps a component from running; empty where none is in trouble."""

    async def remove(self, tenant: str) -> None:
        """Stop a tenant's components and remove whatever they were given; nothing happens where there is none."""
