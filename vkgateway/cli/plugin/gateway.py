"""The gateway's state, as the commands of platform ops read it from the management cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.cli.gateway_state import GatewayEndpoint
from vkgateway.cli.plugin.connection import Connection, local_data_dir
from vkgateway.kube import errors

if TYPE_CHECKING:
    from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
    from vkgateway.tenants.usage.budgets import UsageReport

_NO_FOLDER = Path("/nonexistent")


def find_gateway(connection: Connection) -> tuple[GatewayEndpoint, Path]:
    """Return how to reach the gateway, and the data directory of its platform.

    `VKGATEWAY_GATEWAY` names a URL. Otherwise it is the gateway of a platform on this machine if the cluster is that of
    the platform, or the pod that holds the gateway's Lease.
    """
    url = os.environ.get("VKGATEWAY_GATEWAY", "")
    if url:
        files = (os.environ.get(f"VKGATEWAY_GATEWAY_{name}", "") for name in ("TOKEN_FILE", "CA"))
        token_file, ca = (Path(file) if file else None for file in files)
        return GatewayEndpoint(url, token_file, ca), _NO_FOLDER
    folder = local_data_dir(connection.config)
    if folder is not None:
        return GatewayEndpoint(), folder
    return GatewayEndpoint(client=connection.client), _NO_FOLDER


async def read_state(connection: Connection) -> ArbiterReport:
    """Return the state of pools, tenants and gangs. Raises UnavailableError if the gateway does not answer."""
    from vkgateway.cli import gateway_state

    endpoint, folder = find_gateway(connection)
    return await gateway_state.get_state(folder, endpoint)


async def read_usage_days(connection: Connection, *, days: int, tenant: str = "") -> UsageReport:
    """Return the usage of the last UTC days, and the budgets, of all tenants or one. Raises UnavailableError."""
    import msgspec

    from vkgateway.cli import gateway_state

    endpoint, folder = find_gateway(connection)
    report = await gateway_state.get_usage(folder, endpoint, days=days)
    return msgspec.structs.replace(
        report,
        days=[row for row in report.days if tenant in ("", row.tenant)],
        budgets=[row for row in report.budgets if tenant in ("", row.tenant)],
    )


async def read_state_if_any(connection: Connection) -> ArbiterReport | None:
    """Return the state; None, with a note on standard error, if the gateway or a right is missing."""
    try:
        return await read_state(connection)
    except (UnavailableError, errors.Forbidden) as error:
        click.echo(f"Explained without the gateway: {error}", err=True)
        return None


def require_management(connection: Connection, tenant: str | None) -> None:
    """Raise InputError if `--tenant` is given in a tenant's cluster."""
    if tenant and connection.kind == "tenant":
        raise InputError(
            f"--tenant {tenant} is for the management cluster, but context {connection.config.context!r} is a "
            "tenant's cluster",
            hint="Leave out --tenant, or select the management cluster with --context.",
        )
