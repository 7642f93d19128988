"""`vkgateway tenant delete`: take tenants away with everything they had."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.progress import Progress

if TYPE_CHECKING:
    from vkgateway.kube.client import Client
    from vkgateway.model.api import Tenant

POLL_SECONDS = 0.2


@click.command(epilog="\b\nExample: vkgateway tenant delete alpha beta --yes")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until nothing of them is left.")
@click.option("--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds to wait.")
@cluster_options
@run_async
async def delete(
    *,
    names: tuple[str, ...],
    yes: bool,
    wait: bool,
    timeout: float,
    data_dir: Path,
    kubeconfig: Path | None,
) -> None:
    """Delete tenants: their control planes, their data, and all that runs for them in compute clusters."""
    from vkgateway.cli import cluster
    from vkgateway.kube.resources import TENANTS

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        doomed = [await cluster.get_tenant(client, name) for name in names]
        if not yes and sys.stdin.isatty():
            what = ", ".join(names)
            click.confirm(f"Delete {what} with all data and pods? This cannot be undone", abort=True)
        for tenant in doomed:
            await client.delete(TENANTS, tenant.metadata.name, uid=tenant.metadata.uid)
        if wait:
            await _wait_until_deleted(client, doomed, timeout=timeout)


async def _wait_until_deleted(client: Client, doomed: list[Tenant], *, timeout: float) -> None:
    from vkgateway.model.errors import UnavailableError

    left = {tenant.metadata.name: tenant.metadata.uid for tenant in doomed}
    with Progress() as progress:
        while left:
            waiting = ""
            for name, uid in list(left.items()):
                why = await _remaining_reason(client, name=name, uid=uid)
                if why is None:
                    del left[name]
                    progress.done(f"tenant {name} is gone")
                else:
                    waiting = waiting or f"tenant {name}: {why}"
            if left and progress.elapsed_seconds > timeout:
                raise UnavailableError(
                    f"after {timeout:.0f} s there is still something left of {', '.join(left)} ({waiting})",
                    hint="The gateway goes on; see `vkgateway tenant describe`.",
                )
            if left:
                progress(waiting)
                await asyncio.sleep(POLL_SECONDS)


async def _remaining_reason(client: Client, *, name: str, uid: str) -> str | None:
    """Say what the tenant's removal waits for; None if this very tenant is gone."""
    from vkgateway.cli import cluster
    from vkgateway.model.api import READY
    from vkgateway.model.errors import NotFoundError
    from vkgateway.model.objects import find_condition

    try:
        now = await cluster.get_tenant_with_retry(client, name)
    except NotFoundError:
        return None
    if now.metadata.uid != uid:
        return None
    ready = find_condition(now.status.conditions, READY)
    return ready.message if ready is not None and now.status.phase == "Deleting" else "waiting for the gateway"
