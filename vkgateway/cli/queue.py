"""`vkgateway queue`: what waits for GPUs, in which order, why, and until when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

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

COLUMNS: tuple[Column[PendingGang], ...] = (
    Column("pool", lambda one: one.pool),
    Column("place", lambda one: one.place or "", "right"),
    Column("tenant", lambda one: one.tenant),
    Column("namespace", lambda one: one.namespace),
    Column("name", lambda one: one.name),
    Column("band", lambda one: one.band),
    Column("pods", lambda one: one.pods or "", "right"),
    Column("running", lambda one: one.running or "", "right"),
    Column("asks for", lambda one: one.asks),
    Column("waits", lambda one: format_age(one.since)),
    Column("expected start", lambda one: one.expected),
    Column("reason", lambda one: one.code),
    Column("message", lambda one: one.message),
)


@click.command(epilog=EPILOG)
@click.option("--tenant", help="Only what is this tenant's.")
@click.option("--pool", help="Only what stands in line for this pool: a100, or a100.local.")
@click.option("-n", "--namespace", help="Only what is in this namespace of tenants.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A tenant's: its own gangs alone are listed, from what stands on its pods.",
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
    """List the gangs that wait, and pods that are in none: place in line, expected start, reason.

    Where RUNNING has a number, so many pods of the gang run already, and others of it wait. Gangs that run as they are
    and would take more room come last.

    With a tenant's kubeconfig the tenant's API server is asked, and nothing else is needed.
    """
    from vkgateway.cli import gateway_state, pending_gangs, tenant_pods

    if kubeconfig is not None:
        if tenant is not None:
            raise click.UsageError("--tenant and --kubeconfig do not go together: a kubeconfig is of one tenant")
        async with tenant_pods.tenant_cluster(kubeconfig, None, data_dir) as client:
            pods = await tenant_pods.list_pods(client, namespace, phase="Pending")
            for place in sorted(pending_gangs.namespaces_with_gangs(pods)):
                pods += await tenant_pods.list_pods(client, place, phase="Running")
            held = (pod for pod in pods if pending_gangs.pending_condition(pod) is not None)
            beside = await tenant_pods.companion_objects(client, held, among=pods)
        found = pending_gangs.pending_from_pods(pods, beside=beside, pool=pool or "")
    else:
        state = await gateway_state.get_state(data_dir, gateway)
        found = pending_gangs.pending_in_state(state, tenant=tenant or "", pool=pool or "", namespace=namespace or "")
    columns = [column for column in COLUMNS if kubeconfig is None or column.title != "tenant"]
    print_objects(
        found,
        output=output,
        columns=columns,
        name=lambda one: f"{one.namespace}/{one.name}",
        empty="Nothing waits.",
    )
