"""How the daemon reaches the management cluster, and at which address others reach the daemon."""

from __future__ import annotations

import socket
from pathlib import Path

from vkgateway.gateway.config import Config
from vkgateway.kube.client import Client
from vkgateway.model.errors import InputError

# An address for documentation (RFC 5737): nothing is sent there, the system only says which way it would go.
_PROBE_ADDRESS = ("192.0.2.1", 9)


def connect_management(settings: Config, *, name: str) -> Client:
    """Make a client of the management cluster. Raises InputError where there is no way to it."""
    chosen = settings.management_cluster
    connections = settings.sync.connections
    file = Path(chosen.kubeconfig).expanduser() if chosen.kubeconfig else None
    if file is None and settings.data_dir:
        platform = Path(settings.data_dir) / "compute.kubeconfig"
        file = platform if platform.exists() else None
    if file is None:
        try:
            return Client.in_cluster(name=name, max_connections=connections)
        except InputError as error:
            hint = "Set managementCluster.kubeconfig, or let `vkgateway up` make a platform with all that it needs."
            raise InputError(f"there is no way to {name}: {error}", hint=hint) from error
    return Client.from_kubeconfig(file, context=chosen.context or None, name=name, max_connections=connections)


def primary_address() -> str:
    """Return the address by which this machine reaches others. Raises InputError where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_PROBE_ADDRESS)
        except OSError as error:
            raise InputError(
                f"this machine has no primary address: {error.strerror}", hint="Set `address` to one of its own."
            ) from error
        address: str = probe.getsockname()[0]
    return address
