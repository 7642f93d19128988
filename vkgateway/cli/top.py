"""`vkgateway top`: usage of pools and tenants, once or live."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import data_dir_option, run_async, watch_options
from vkgateway.cli.output import Column, output_option_of, print_table, serialize

if TYPE_CHECKING:
    from rich.console import Group

    from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, PoolReport, TenantReport

EPILOG = """\b
Examples:
  vkgateway top
  vkgateway top --watch
  vkgateway top -o json
"""

POOLS: tuple[Column[PoolReport], ...] = (
    Column("pool", lambda pool: pool.node),
    Column("nodes", lambda pool: format_nodes(pool), "right"),  # noqa: PLW0108 - defined below
    Column("resource", lambda pool: pool.resource),
    Column("units", lambda pool: format_amount(pool.allocatable), "right"),
    Column("guaranteed", lambda pool: format_amount(pool.guaranteed), "right"),
    Column("used", lambda pool: format_amount(pool.used), "right"),
    Column("borrowed", lambda pool: format_amount(pool.borrowed), "right"),
    Column("lent", lambda pool: format_amount(pool.lent), "right"),
    Column("others", lambda pool: format_amount(pool.others), "right"),
    Column("free", lambda pool: format_amount(pool.free), "right"),
    Column("largest", lambda pool: format_amount(pool.largest), "right"),
    Column("spare nodes", lambda pool: f"{pool.spare_nodes_in_use}/{pool.spare_nodes}", "right"),
    Column("fragmented", lambda pool: f"{pool.fragmentation:.0%}", "right"),
    Column("waiting", lambda pool: format_amount(pool.waiting), "right"),
    Column("gangs", lambda pool: f"{pool.gangs_running}+{pool.gangs_waiting}", "right"),
)
TENANTS: tuple[Column[TenantReport], ...] = (
    Column("tenant", lambda tenant: tenant.tenant),
    Column("pool", lambda tenant: f"{tenant.pool}.{tenant.compute_cluster}"),
    Column("guarantee", lambda tenant: format_amount(tenant.guarantee), "right"),
    Column("kept", lambda tenant: format_guarantee(tenant), "right"),  # noqa: PLW0108 - defined below
    Column("limit", lambda tenant: "-" if tenant.limit is None else format_amount(tenant.limit), "right"),
    Column("used", lambda tenant: format_amount(tenant.used), "right"),
    Column("borrowed", lambda tenant: format_amount(tenant.borrowed), "right"),
    Column("waiting", lambda tenant: format_amount(tenant.waiting), "right"),
    Column("gangs", lambda tenant: f"{tenant.gangs_running}+{tenant.gangs_waiting}", "right"),
)


@click.command(short_help="Show the usage of pools and tenants.", epilog=EPILOG)
@watch_options
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def top(*, watch: bool, interval: float, output: str, gateway: GatewayEndpoint, data_dir: Path) -> None:
    """Show the guaranteed, used, borrowed, lent, free and pending capacity of pools and tenants.

    KEPT is the part of a guarantee that the nodes can hold; it shrinks while nodes are missing. USED counts pods inside
    guarantees, BORROWED pods outside of them. LENT is the borrowed part that is guaranteed to other tenants. FRAGMENTED
    is the share of the free capacity on partly used nodes. GANGS counts running + waiting gangs.
    """
    from vkgateway.cli import gateway_state

    async def read() -> ArbiterReport:
        return await gateway_state.get_state(data_dir, gateway)

    await show_state(read, watch=watch, interval=interval, output=output)


async def show_state(
    read: Callable[[], Awaitable[ArbiterReport]], *, watch: bool, interval: float, output: str
) -> None:
    """Print the state that `read` returns, once or until interrupted."""
    if not watch:
        print_state(await read(), output=output)
    elif output == "table" and sys.stdout.isatty():
        await _watch_state(read, interval)
    else:
        while True:
            print_state(await read(), output=output)
            await asyncio.sleep(interval)


def print_state(state: ArbiterReport, *, output: str) -> None:
    """Print the state once. JSON and YAML leave out the gangs, which `queue` lists."""
    import msgspec

    if output != "table":
        plain = msgspec.to_builtins(state)
        del plain["gangs"]
        click.echo(serialize(plain, output=output), nl=False)
        return
    for number, (columns, rows) in enumerate(_state_tables(state)):
        if number:
            click.echo()
        print_table(rows, columns=columns)
    if not state.pools:
        click.echo("No pool has extended resources.", err=True)


def format_nodes(pool: PoolReport) -> str:
    """Return the usable nodes, all nodes, and those that are chosen last because several gangs failed there."""
    avoided = f" ({pool.avoided_nodes} avoided)" if pool.avoided_nodes else ""
    return f"{pool.usable_nodes}/{pool.nodes}{avoided}"


def format_guarantee(tenant: TenantReport) -> str:
    """Return the kept part of the guarantee, with reduced cells, such as `8 (2x8 -> 8)`."""
    return f"{format_amount(tenant.kept)} ({tenant.reduced})" if tenant.reduced else format_amount(tenant.kept)


def format_amount(value: float) -> str:
    """Return an amount without trailing zeros, such as `8` or `0.5`."""
    return f"{value:.10g}"


def _state_tables(state: ArbiterReport) -> Iterator[tuple[tuple[Column[Any], ...], list[list[str]]]]:
    if state.pools:
        yield POOLS, [[str(column.value(pool)) for column in POOLS] for pool in state.pools]
    if state.tenants:
        yield TENANTS, [[str(column.value(tenant)) for column in TENANTS] for tenant in state.tenants]


async def _watch_state(read: Callable[[], Awaitable[ArbiterReport]], interval: float) -> None:
    """Refresh the state in place; show errors while the gateway is unavailable."""
    from rich.live import Live
    from rich.text import Text

    from vkgateway.api.errors import UnavailableError

    state = await read()
    with Live(_render_live(state), auto_refresh=False, screen=True) as live:
        while True:
            await asyncio.sleep(interval)
            try:
                state = await read()
            except UnavailableError as error:
                live.update(_render_live(state, Text(str(error), style="red")), refresh=True)
                continue
            live.update(_render_live(state), refresh=True)


def _render_live(state: ArbiterReport, *more: Any) -> Group:
    from datetime import UTC, datetime

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = [Text(f"{datetime.fromtimestamp(state.time, UTC):%H:%M:%S} UTC", style="dim"), *more]
    for columns, rows in _state_tables(state):
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column.title.upper(), justify=column.justify, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), table]
    return Group(*parts)
