"""What the parts of a running gateway share."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube.client import Client
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.plane_files import Authorities
from vkgateway.serve.addresses import GatewayAddress
from vkgateway.serve.datastore import LazyDatastore
from vkgateway.serve.health import HealthServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Clients, authorities and limits of a gateway. `files` is its open-file limit; `gate` permits changes.

    `identity` names the gateway in owner records of compute clusters.
    """

    management: Client
    datastore: LazyDatastore
    authorities: Authorities
    address: GatewayAddress
    identity: GatewayIdentity
    health: HealthServer
    gate: WriteGate
    files: int
