"""A tenant's control plane that serves, and the gateway's way into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from vkgateway.controlplane.pki import KeyPair
from vkgateway.controlplane.plane import ControlPlaneSpec
from vkgateway.controlplane.record_store import ControlPlaneRecord
from vkgateway.kube.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A tenant's control plane that serves, and the gateway's way in as its administrator."""

    tenant: str
    url: str
    address: str
    port: int
    ca: bytes
    identity: KeyPair
    kubelet_clients: frozenset[str]
    """Fingerprints of the certificates by which its API server calls the kubelet endpoint."""
    front_proxy_ca: bytes = b""
    """The authority (PEM) of the certificate by which its API server proves itself to aggregated APIs."""
    service_range: str = ""
    """The range of its Services' addresses, if that is its own alone in the platform."""

    @classmethod
    def from_record(cls, plane: ControlPlaneSpec, record: ControlPlaneRecord, kubelet_clients: frozenset[str]) -> Self:
        """The one that was made so."""
        return cls(
            tenant=plane.cluster,
            url=plane.server_url,
            address=plane.address,
            port=plane.port,
            ca=record.credentials.ca.cert_pem,
            identity=record.credentials.issue_gateway_pair(),
            kubelet_clients=kubelet_clients,
            front_proxy_ca=record.credentials.front_proxy_ca.cert_pem,
            service_range=record.service_range,
        )

    def create_client(self, *, max_connections: int = 64) -> Client:
        """Make a client with the gateway's own certificate; the caller closes it."""
        return Client.from_pem(
            self.url,
            ca=self.ca,
            cert=self.identity.cert_pem,
            key=self.identity.key_pem,
            name=self.tenant,
            max_connections=max_connections,
            # Its API server was started without them, and each try to have one costs a connection.
            streaming_lists=False,
            single_server=True,
        )
