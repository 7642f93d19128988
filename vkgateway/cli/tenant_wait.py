"""`vkgateway tenant wait`: wait until a tenant is ready."""

from __future__ import annotations

from pathlib import Path

import click

from vkgateway.cli import name_completion
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.tenant_options import timeout_option


@click.command(
    short_help="Wait until tenants are ready.", epilog="\b\nExample: vkgateway tenant wait alpha --timeout 60"
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=name_completion.tenants)
@timeout_option
@cluster_options
@run_async
async def wait(*, names: tuple[str, ...], timeout: float, data_dir: Path, kubeconfig: Path | None) -> None:
    """Wait until tenants are ready, for example after an interrupted `tenant create` or after `kubectl apply`.

    The waiting changes nothing.
    """
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_create import wait_until_ready

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        for name in names:
            tenant = await cluster.get_tenant(client, name)
            await wait_until_ready(client, tenant, timeout=timeout)
