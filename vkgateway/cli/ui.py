"""`vkgateway ui`: open the page in a browser, signed in with a short-lived token."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import data_dir_option, run_async

if TYPE_CHECKING:
    from vkgateway.kube.client import Client

EPILOG = """\b
Examples:
  vkgateway ui
  vkgateway ui --tenant alpha --no-open
  vkgateway ui --kubeconfig alpha.kubeconfig --tenant alpha --url https://gpus.example.com
"""


@click.command(short_help="Open the page in a browser.", epilog=EPILOG)
@click.option(
    "--tenant",
    shell_complete=name_completion.tenants,
    help="The page of this tenant. [default: the page of the platform]",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the tenant; without it, operators use that of the management cluster.",
)
@click.option("--url", help="Address of the page, as your operators publish it.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Local port for a gateway in a cluster.")
@click.option("--token/--no-token", "signs_in", default=True, help="Whether to sign in with a new token.")
@click.option("--open/--no-open", "opens", default=True, help="Whether to open a browser, or only print the link.")
@gateway_option
@data_dir_option
@run_async
async def ui(
    *,
    tenant: str | None,
    kubeconfig: Path | None,
    url: str | None,
    port: int,
    signs_in: bool,
    opens: bool,
    gateway: GatewayEndpoint,
    data_dir: Path,
) -> None:
    """Open the page in a browser, signed in with a token for 8 hours.

    For a gateway that runs as a pod, the command forwards a local port to it until you interrupt it.
    """
    from vkgateway.cli.page_links import page_link

    if kubeconfig is not None and tenant is None:
        raise click.UsageError("give --tenant NAME with --kubeconfig: the gateway must know whose token it is")
    management = gateway.cluster_kubeconfig(data_dir)
    forwards = url is None and management is not None
    async with _page_address(url, port, management, data_dir) as address:
        token, reader = await _mint_token(tenant, kubeconfig, management, data_dir) if signs_in else ("", "")
        link = page_link(address, token=token, tenant=tenant or "", reader=reader)
        click.echo(link)
        if opens and not await asyncio.to_thread(webbrowser.open, link):
            click.echo("No browser was found. Open the link yourself.", err=True)
        if forwards:
            click.echo("Forwarding until you press Ctrl-C.", err=True)
            await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _page_address(url: str | None, port: int, management: Path | None, data_dir: Path) -> AsyncIterator[str]:
    """Yield the page's URL without its path, which is a local one for a gateway in a cluster."""
    from vkgateway.cli import page_links
    from vkgateway.cli.gateway_state import load_gateway_settings

    if url is not None:
        yield page_links.checked_url(url)
    elif management is None:
        yield page_links.local_page(load_gateway_settings(data_dir))
    else:
        from vkgateway.cli.page_proxy import PageProxy
        from vkgateway.page.local_host import local_address

        async with PageProxy(lambda: _forward_page(management, data_dir)).listen(port) as chosen:
            yield local_address(chosen)


@contextlib.asynccontextmanager
async def _forward_page(management: Path, data_dir: Path) -> AsyncIterator[str]:
    from vkgateway.cli.cluster_gateway import PAGE_PORT, forward_gateway

    async with forward_gateway(management, data_dir, port=PAGE_PORT) as forwarded:
        yield forwarded.url


async def _mint_token(
    tenant: str | None, kubeconfig: Path | None, management: Path | None, data_dir: Path
) -> tuple[str, str]:
    """Return a token for the page, and the name of the user who creates it; empty if unknown."""
    from vkgateway.cli import cluster, page_links, tenant_pods
    from vkgateway.cli.cluster_gateway import reader_token
    from vkgateway.cli.plugin.rights import UNKNOWN_USER, read_user

    client: Client
    if tenant is None:
        async with cluster.management_cluster(data_dir, management) as client:
            user = await read_user(client)
            token = await reader_token(client, seconds=page_links.TOKEN_SECONDS)
    else:
        async with tenant_pods.tenant_cluster(kubeconfig, tenant, data_dir, management=management) as client:
            user = await read_user(client)
            token = await page_links.tenant_token(client, tenant)
    return token, "" if user == UNKNOWN_USER else user
