"""Access of the gateway to a running control plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from vkgateway.kube.client import Client
from vkgateway.kube.store_budget import StoreBudget
from vkgateway.kube.transport import Traffic
from vkgateway.planes.pki import KeyPair
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.publication import Publication
from vkgateway.planes.record_store import ControlPlaneRecord

OBJECTS_MAX: Final = 200_000
"""Objects of a tenant that the gateway keeps. Kubernetes is tested with up to 150,000 pods in a cluster."""
BYTES_MAX: Final = 512 << 20
"""Bound of their memory in bytes, see `StoreBudget`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A running control plane, with the gateway's admin certificate for it."""

    tenant: str
    url: str
    address: str
    port: int
    ca: bytes
    identity: KeyPair
    kubelet_clients: frozenset[str]
    """Fingerprints of the client certificates that its API server presents to the kubelet endpoint."""
    front_proxy_ca: bytes = b""
    """CA (PEM) of the certificate that its API server presents to aggregated APIs."""
    service_range: str = ""
    """Range of its Services, if no other tenant of the platform has it; else empty."""
    replicas: int = 1
    """Number of API servers. Their watch caches differ for moments."""
    publication: Publication = field(default_factory=Publication)
    """Where clients outside the management cluster connect."""

    @classmethod
    def from_record(cls, plane: ControlPlaneSpec, record: ControlPlaneRecord, kubelet_clients: frozenset[str]) -> Self:
        """Return the access to a control plane with this spec and record."""
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
            replicas=record.replicas,
            publication=plane.publication,
        )

    def create_client(self, *, max_connections: int = 64, traffic: Traffic | None = None) -> Client:
        """Return a client with the gateway's certificate; the caller closes it."""
        return Client.from_pem(
            self.url,
            ca=self.ca,
            cert=self.identity.cert_pem,
            key=self.identity.key_pem,
            name=self.tenant,
            max_connections=max_connections,
            # Tenants' API servers run without streaming lists, and each attempt to use one costs a connection.
            streaming_lists=False,
            single_server=self.replicas == 1,
            traffic=traffic,
            store_budget=StoreBudget(objects_max=OBJECTS_MAX, bytes_max=BYTES_MAX),
        )
