"""Connection to the management cluster, and the machine's primary address."""

from __future__ import annotations

import socket
from pathlib import Path

from vkgateway.api.errors import InputError
from vkgateway.kube.client import Client
from vkgateway.settings.config import Config
from vkgateway.tenants.metrics import TRAFFIC

# A documentation address (RFC 5737). Nothing is sent: connecting a UDP socket only selects the route.
_PROBE_ADDRESS = ("192.0.2.1", 9)


def connect_management(settings: Config, *, name: str) -> Client:
    """Return a client of the management cluster. Raises InputError if no connection is configured."""
    management = settings.management_cluster
    connections = settings.sync.connections
    file = Path(management.kubeconfig).expanduser() if management.kubeconfig else None
    if file is None and settings.data_dir:
        platform = Path(settings.data_dir) / "compute.kubeconfig"
        file = platform if platform.exists() else None
    if file is None:
        try:
            client = Client.in_cluster(name=name, max_connections=connections)
        except InputError as error:
            hint = "Set managementCluster.kubeconfig, or start an embedded platform with `vkgateway up`."
            raise InputError(f"no connection to {name}: {error}", hint=hint) from error
    else:
        client = Client.from_kubeconfig(
            file, context=management.context or None, name=name, max_connections=connections
        )
    client.traffic = TRAFFIC["management"]
    return client


def primary_address() -> str:
    """Return the source address of this machine's default route. Raises InputError if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_PROBE_ADDRESS)
        except OSError as error:
            raise InputError(
                f"this machine has no primary address: {error.strerror}",
                hint="Set `address` to an address of this machine.",
            ) from error
        address: str = probe.getsockname()[0]
    return address
