"""Endpoints of API servers that are processes: ports at one address of this machine."""

from __future__ import annotations

from collections.abc import Collection

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import InputError
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.planes.drivers.base import AssignedPorts, ServerEndpoint
from vkgateway.planes.drivers.process.ports import PortCheck, choose_port
from vkgateway.planes.publication import Publication


class MachineEndpoints:
    """All API servers listen at `address`, each at another port; implements `ServerEndpoints`."""

    def __init__(self, address: str, *, can_bind: PortCheck) -> None:
        self._address = address
        self._can_bind = can_bind

    async def ensure(
        self, tenant: str, *, requested_port: int, recorded: ServerEndpoint | None, assigned_ports: AssignedPorts
    ) -> ServerEndpoint:
        """See `ServerEndpoints`: the recorded port stays until the spec requests another one."""
        if recorded is not None and requested_port in (0, recorded.port):
            return ServerEndpoint(self._address, recorded.port)
        port = choose_port(
            tenant,
            requested=requested_port,
            assigned=await assigned_ports(),
            address=self._address,
            can_bind=self._can_bind,
        )
        return ServerEndpoint(self._address, port)

    async def publish(
        self,
        tenant: str,  # noqa: ARG002 - the API server serves at the machine's address in any case
        exposure: ApiServerExposure,
        *,
        previous: ExposureType,  # noqa: ARG002 - nothing to delete
        endpoint: ServerEndpoint,  # noqa: ARG002 - as before
    ) -> Publication:
        """See `ServerEndpoints`. Raises InputError for every type but ClusterIP."""
        if exposure.type != "ClusterIP":
            raise InputError(
                f"spec.apiServer.exposure.type: the driver process has no exposure {exposure.type}",
                hint="API servers serve at the gateway's machine. Remove the exposure, or use the driver kubernetes.",
            )
        return Publication()

    async def find(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:  # noqa: ARG002 - all share an address
        """See `ServerEndpoints`."""
        return ServerEndpoint(self._address, recorded_port)

    async def reachable_from(
        self,
        tenant: str,  # noqa: ARG002 - the gateway and all pods use the same address
        cluster: ClusterIdentity,  # noqa: ARG002
        *,
        endpoint: ServerEndpoint,
    ) -> Collection[ServerEndpoint]:
        """See `ServerEndpoints`."""
        return (endpoint,)

    async def running(self, tenant: str, *, endpoint: ServerEndpoint) -> Collection[ServerEndpoint]:  # noqa: ARG002 - there is one
        """See `ServerEndpoints`."""
        return (endpoint,)
