"""`vkgateway queue`: pending gangs with their queue order, reasons and expected starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.age import format_age
from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import Column, output_option, print_objects

if TYPE_CHECKING:
    from vkgateway.cli.pending_gangs import PendingGang

EPILOG = """\b
Examples:
  vkgateway queue
  vkgateway queue --pool a100 --tenant alpha
  vkgateway queue --kubeconfig alpha.kubeconfig -o json
"""


def _format_share(gang: PendingGang) -> str:
    from vkgateway.cli.pending_gangs import share_text

    return share_text(gang.share) if gang.share is not None else ""


COLUMNS: tuple[Column[PendingGang], ...] = (
    Column("pool", lambda gang: gang.pool),
    Column("position", lambda gang: gang.place or "", "right"),
    Column("tenant", lambda gang: gang.tenant),
    Column("namespace", lambda gang: gang.namespace),
    Column("name", lambda gang: gang.name),
    Column("band", lambda gang: gang.band),
    Column("pods", lambda gang: gang.pods or "", "right"),
    Column("running", lambda gang: gang.running or "", "right"),
    Column("requests", lambda gang: gang.asks),
    Column("waiting", lambda gang: format_age(gang.since)),
    Column("fair share", _format_share),
    Column("expected start", lambda gang: gang.expected),
    Column("reason", lambda gang: gang.code),
    Column("message", lambda gang: gang.message),
)


@click.command(short_help="List pending gangs in queue order.", epilog=EPILOG)
@click.option("--tenant", shell_complete=name_completion.tenants, help="Only gangs of this tenant.")
@click.option(
    "--pool",
    shell_complete=name_completion.pools,
    help="Only gangs in the queue of this pool, such as a100 or a100.local.",
)
@click.option("-n", "--namespace", help="Only gangs in this namespace of their tenant.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of a tenant: lists only its gangs, from the conditions of its pods.",
)
@output_option
@gateway_option
@data_dir_option
@run_async
async def queue(
    *,
    tenant: str | None,
    pool: str | None,
    namespace: str | None,
    kubeconfig: Path | None,
    output: str,
    gateway: GatewayEndpoint,
    data_dir: Path,
) -> None:
    """List pending gangs and single pods with their queue position, expected start and pending reason.

    RUNNING is the number of pods of the gang that run already while others wait. Running elastic gangs that can grow
    come last. FAIR SHARE shows both parts of the tenant's share beyond its guarantee, now and past, if the setting
    arbiter.halfLife is in force.

    With a tenant's kubeconfig, the command reads only the tenant's API server.
    """
    from vkgateway.cli import gateway_state, pending_gangs, tenant_pods

    if kubeconfig is not None:
        if tenant is not None:
            raise click.UsageError("give either --tenant or --kubeconfig: a kubeconfig belongs to one tenant")
        async with tenant_pods.tenant_cluster(kubeconfig, None, data_dir) as client:
            found = await tenant_pods.read_pending_gangs(client, namespace, pool=pool or "")
    else:
        state = await gateway_state.get_state(data_dir, gateway)
        found = pending_gangs.pending_in_state(state, tenant=tenant or "", pool=pool or "", namespace=namespace or "")
    print_queue(found, output=output, of_tenant=kubeconfig is not None)


def print_queue(gangs: Sequence[PendingGang], *, output: str, of_tenant: bool, namespace: str = "") -> None:
    """Print pending gangs, of one namespace if given. A list from a tenant's pods has no column for the tenant."""
    hidden = {"tenant"} if of_tenant else set()
    if not any(gang.share for gang in gangs):
        hidden.add("fair share")
    print_objects(
        gangs,
        output=output,
        columns=[column for column in COLUMNS if column.title not in hidden],
        name=lambda gang: f"{gang.namespace}/{gang.name}",
        empty=f"No gangs are pending in namespace {namespace}." if namespace else "No gangs are pending.",
    )
