"""`kubectl vkgateway top`: usage of a tenant's virtual nodes, or of all pools and tenants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from vkgateway.cli.options import watch_options
from vkgateway.cli.output import Column, output_option_of, print_objects
from vkgateway.cli.plugin import values
from vkgateway.cli.plugin.options import target_options
from vkgateway.cli.plugin.target import Target, run_async

if TYPE_CHECKING:
    from vkgateway.cli.plugin.connection import Connection
    from vkgateway.cli.plugin.tenant_quota import NodeUsage
    from vkgateway.scheduler.core.reasons.report_types import ArbiterReport

EPILOG = """\b
Examples:
  kubectl vkgateway top
  kubectl vkgateway top -w
  kubectl vkgateway top --context management --tenant alpha -o json
"""


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"


COLUMNS: tuple[Column[NodeUsage], ...] = (
    Column("node", lambda row: row.node),
    Column("ready", lambda row: row.ready),
    Column("resource", lambda row: row.resource),
    Column("capacity", lambda row: _amount(row.capacity), "right"),
    Column("used", lambda row: _amount(row.used), "right"),
    Column("waiting", lambda row: _amount(row.waiting), "right"),
    Column("gangs", lambda row: f"{row.gangs_running}+{row.gangs_waiting}", "right"),
)


@click.command(short_help="Show the usage of pools.", epilog=EPILOG)
@watch_options
@click.option(
    "--tenant",
    metavar="NAME",
    shell_complete=values.tenants,
    help="In the management cluster: only the rows of this tenant.",
)
@output_option_of("table", "json", "yaml")
@target_options
@run_async
async def top(*, watch: bool, interval: float, tenant: str | None, output: str, target: Target) -> None:
    """Show the capacity and usage of pools.

    In a tenant's cluster: each virtual node, for the pods of all namespaces, or of that of -n. CAPACITY is the limit
    of the tenant, or what the pool has if that is less. GANGS counts running + waiting gangs. Guarantees and borrowing
    are not in a tenant's cluster; platform ops see them.

    In the management cluster: guaranteed, used, borrowed and free capacity of pools and tenants, as `vkgateway top`.
    """
    from vkgateway.cli.plugin.connection import connect
    from vkgateway.cli.plugin.gateway import require_management
    from vkgateway.cli.top import show_state

    async with connect(target) as connection:
        require_management(connection, tenant)
        if connection.kind == "management":

            async def read() -> ArbiterReport:
                return await _read_state(connection, tenant)

            await show_state(read, watch=watch, interval=interval, output=output)
            return
        while True:
            if watch:
                click.clear()  # only on a terminal
            await _show_tenant(connection, output=output)
            if not watch:
                return
            await asyncio.sleep(interval)


async def _read_state(connection: Connection, tenant: str | None) -> ArbiterReport:
    import msgspec

    from vkgateway.api.errors import NotFoundError
    from vkgateway.cli.plugin.gateway import read_state

    state = await read_state(connection)
    if not tenant:
        return state
    rows = tuple(row for row in state.tenants if row.tenant == tenant)
    if not rows:
        known = ", ".join(sorted({row.tenant for row in state.tenants})) or "none"
        raise NotFoundError(
            f"tenant {tenant!r} does not exist or has no extended resources", hint=f"Available tenants: {known}."
        )
    nodes = {(row.pool, row.compute_cluster) for row in rows}
    pools = tuple(pool for pool in state.pools if (pool.pool, pool.compute_cluster) in nodes)
    return msgspec.structs.replace(state, tenants=rows, pools=pools)


async def _show_tenant(connection: Connection, *, output: str) -> None:
    from vkgateway.cli.plugin.tenant_quota import node_usages
    from vkgateway.cli.plugin.tenant_reads import list_nodes, list_widest, refusal_note

    (nodes, refused), pods = await asyncio.gather(list_nodes(connection), list_widest(connection))
    print_objects(
        node_usages(nodes, pods.pods),
        output=output,
        columns=COLUMNS,
        name=lambda row: row.node,
        empty="No virtual node has extended resources, and no pod waits for the arbiter.",
    )
    if pods.refused is not None:
        what = f"Only pods of namespace {pods.namespace} are counted"
        click.echo(await refusal_note(connection, what, [pods.refused]), err=True)
    if refused is not None:
        click.echo(await refusal_note(connection, "Capacity is not shown", [refused]), err=True)
