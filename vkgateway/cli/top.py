"""`vkgateway top`: pools and tenants at a glance, once or live."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vkgateway.cli.gateway_state import Gateway, gateway_option
from vkgateway.cli.options import asynchronous, data_dir_option
from vkgateway.cli.output import Column, output_option_of, print_table, serialise

if TYPE_CHECKING:
    from rich.console import Group

    from vkgateway.arbiter.state import PoolState, State, TenantState

EPILOG = """\b
Examples:
  vkgateway top
  vkgateway top --watch
  vkgateway top -o json
"""

POOLS: tuple[Column[PoolState], ...] = (
    Column("pool", lambda pool: pool.node),
    Column("nodes", lambda pool: f"{pool.usable_nodes}/{pool.nodes}", "right"),
    Column("resource", lambda pool: pool.resource),
    Column("units", lambda pool: amount(pool.allocatable), "right"),
    Column("guaranteed", lambda pool: amount(pool.guaranteed), "right"),
    Column("used", lambda pool: amount(pool.used), "right"),
    Column("borrowed", lambda pool: amount(pool.borrowed), "right"),
    Column("lent", lambda pool: amount(pool.lent), "right"),
    Column("others", lambda pool: amount(pool.others), "right"),
    Column("free", lambda pool: amount(pool.free), "right"),
    Column("largest", lambda pool: amount(pool.largest), "right"),
    Column("fragmented", lambda pool: f"{pool.fragmentation:.0%}", "right"),
    Column("waiting", lambda pool: amount(pool.waiting), "right"),
    Column("gangs", lambda pool: f"{pool.gangs_running}+{pool.gangs_waiting}", "right"),
)
TENANTS: tuple[Column[TenantState], ...] = (
    Column("tenant", lambda tenant: tenant.tenant),
    Column("pool", lambda tenant: f"{tenant.pool}.{tenant.compute_cluster}"),
    Column("guarantee", lambda tenant: amount(tenant.guarantee), "right"),
    Column("kept", lambda tenant: kept(tenant), "right"),  # noqa: PLW0108 - defined below
    Column("limit", lambda tenant: "-" if tenant.limit is None else amount(tenant.limit), "right"),
    Column("used", lambda tenant: amount(tenant.used), "right"),
    Column("borrowed", lambda tenant: amount(tenant.borrowed), "right"),
    Column("waiting", lambda tenant: amount(tenant.waiting), "right"),
    Column("gangs", lambda tenant: f"{tenant.gangs_running}+{tenant.gangs_waiting}", "right"),
)


@click.command(epilog=EPILOG)
@click.option("-w", "--watch", is_flag=True, help="Go on until interrupted.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds, with --watch."
)
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@asynchronous
async def top(*, watch: bool, interval: float, output: str, gateway: Gateway, data_dir: Path) -> None:
    """Show pools and tenants: what is guaranteed, used, borrowed, lent, free and waited for.

    Kept is how much of a guarantee the nodes hold, less while some are missing. Used is inside guarantees, borrowed
    outside of them; lent is what of it is guaranteed to tenants who do not use it
    now. Fragmented is the share of what is free that lies on nodes in part use. Gangs: running + waiting.
    """
    from vkgateway.cli import gateway_state

    if not watch:
        show(await gateway_state.state(data_dir, gateway), output=output)
    elif output == "table" and sys.stdout.isatty():
        await _live(data_dir, gateway, interval)
    else:
        while True:
            show(await gateway_state.state(data_dir, gateway), output=output)
            await asyncio.sleep(interval)


def show(state: State, *, output: str) -> None:
    """Print it once; for programs without the gangs, which `queue` tells."""
    import msgspec

    if output != "table":
        plain = msgspec.to_builtins(state)
        del plain["gangs"]
        click.echo(serialise(plain, output=output), nl=False)
        return
    for number, (columns, rows) in enumerate(_tables(state)):
        if number:
            click.echo()
        print_table(rows, columns=columns)
    if not state.pools:
        click.echo("No pool offers anything that is handed out.", err=True)


def kept(tenant: TenantState) -> str:
    """How much of the guarantee the nodes hold; where cells were reduced, how: `8 (2x8 -> 8)`."""
    return f"{amount(tenant.kept)} ({tenant.reduced})" if tenant.reduced else amount(tenant.kept)


def amount(value: float) -> str:
    """`8`, `0.5`."""
    return f"{value:.10g}"


def _tables(state: State) -> Iterator[tuple[tuple[Column[Any], ...], list[list[str]]]]:
    if state.pools:
        yield POOLS, [[str(column.value(pool)) for column in POOLS] for pool in state.pools]
    if state.tenants:
        yield TENANTS, [[str(column.value(tenant)) for column in TENANTS] for tenant in state.tenants]


async def _live(data_dir: Path, gateway: Gateway, interval: float) -> None:
    """Draw it in place. A gateway that does not answer for a while is told, and waited for."""
    from rich.live import Live
    from rich.text import Text

    from vkgateway.cli import gateway_state
    from vkgateway.model.errors import UnavailableError

    seen: State = await gateway_state.state(data_dir, gateway)
    with Live(_drawing(seen), auto_refresh=False, screen=True) as live:
        while True:
            await asyncio.sleep(interval)
            try:
                seen = await gateway_state.state(data_dir, gateway)
            except UnavailableError as error:
                live.update(_drawing(seen, Text(str(error), style="red")), refresh=True)
                continue
            live.update(_drawing(seen), refresh=True)


def _drawing(state: State, *more: Any) -> Group:
    from datetime import UTC, datetime

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = [Text(f"{datetime.fromtimestamp(state.time, UTC):%H:%M:%S} UTC", style="dim"), *more]
    for columns, rows in _tables(state):
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column.title.upper(), justify=column.justify, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), table]
    return Group(*parts)
