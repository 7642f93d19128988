"""What the parts of a running gateway share."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.controlplane.plane_files import Authorities
from vkgateway.gateway.addresses import GatewayAddress
from vkgateway.gateway.datastore import LazyDatastore
from vkgateway.gateway.health import HealthServer
from vkgateway.kube.client import Client
from vkgateway.kube.write_gate import WriteGate
from vkgateway.sync.compute.tenant_owners import GatewayIdentity


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
