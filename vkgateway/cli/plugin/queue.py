"""`kubectl vkgateway queue`: pending gangs of a tenant, or of all tenants in queue order."""

from __future__ import annotations

import click

from vkgateway.cli.output import output_option
from vkgateway.cli.plugin import values
from vkgateway.cli.plugin.options import target_options
from vkgateway.cli.plugin.target import Target, run_async

EPILOG = """\b
Examples:
  kubectl vkgateway queue
  kubectl vkgateway queue -A --pool a100
  kubectl vkgateway queue --context management --tenant alpha -o json
"""


@click.command(short_help="List pending gangs in queue order.", epilog=EPILOG)
@click.option(
    "--tenant",
    metavar="NAME",
    shell_complete=values.tenants,
    help="In the management cluster: only gangs of this tenant.",
)
@click.option("--pool", metavar="NAME", help="Only gangs in the queue of this pool, such as a100 or a100.local.")
@output_option
@target_options
@run_async
async def queue(*, tenant: str | None, pool: str | None, output: str, target: Target) -> None:
    """List pending gangs and single pods with their queue position, expected start and pending reason.

    In a tenant's cluster: the gangs in the namespace of the context. The position counts gangs of all tenants. In the
    management cluster: the gangs of all tenants; -n selects a namespace of the tenants.
    """
    from vkgateway.cli import pending_gangs, tenant_pods
    from vkgateway.cli.plugin.connection import connect
    from vkgateway.cli.plugin.gateway import read_state, require_management
    from vkgateway.cli.queue import print_queue

    async with connect(target) as connection:
        require_management(connection, tenant)
        if connection.kind == "tenant":
            namespace = connection.namespace or ""
            found = await tenant_pods.read_pending_gangs(connection.client, namespace or None, pool=pool or "")
        else:
            namespace = connection.given_namespace or ""
            state = await read_state(connection)
            found = pending_gangs.pending_in_state(state, tenant=tenant or "", pool=pool or "", namespace=namespace)
    print_queue(found, output=output, of_tenant=connection.kind == "tenant", namespace=namespace)
