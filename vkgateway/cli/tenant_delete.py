"""`vkgateway tenant delete`: delete tenants with all their data."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.confirmation import confirm_deletion, yes_option
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.progress import Progress, explain_interruption

if TYPE_CHECKING:
    from vkgateway.kube.client import Client
    from vkgateway.model.api import Tenant

POLL_SECONDS = 0.2


@click.command(short_help="Delete tenants.", epilog="\b\nExample: vkgateway tenant delete alpha beta --yes")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the tenants are deleted.")
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
    """Delete tenants with their control planes, their data, and their objects in compute clusters."""
    from vkgateway.cli import cluster
    from vkgateway.kube.resources import TENANTS

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        tenants = [await cluster.get_tenant(client, name) for name in names]
        confirm_deletion(f"the tenants {', '.join(names)} with all their data and pods", yes=yes)
        for tenant in tenants:
            await client.delete(TENANTS, tenant.metadata.name, uid=tenant.metadata.uid)
        if wait:
            with explain_interruption("The gateway continues to delete. Follow it with `vkgateway tenant list`."):
                await wait_until_deleted(client, tenants, timeout=timeout)


async def wait_until_deleted(client: Client, tenants: list[Tenant], *, timeout: float) -> None:
    """Wait until the tenants do not exist. Raises UnavailableError after `timeout` seconds."""
    from vkgateway.model.errors import UnavailableError

    remaining = {tenant.metadata.name: tenant.metadata.uid for tenant in tenants}
    with Progress() as progress:
        while remaining:
            status = ""
            for name, uid in list(remaining.items()):
                reason = await _remaining_reason(client, name=name, uid=uid)
                if reason is None:
                    del remaining[name]
                    progress.done(f"tenant {name} is deleted")
                else:
                    status = status or f"tenant {name}: {reason}"
            if remaining and progress.elapsed_seconds > timeout:
                raise UnavailableError(
                    f"not deleted after {timeout:.0f} s: {', '.join(remaining)} ({status})",
                    hint="The gateway continues the deletion. Check it with `vkgateway tenant describe NAME`.",
                )
            if remaining:
                progress(status)
                await asyncio.sleep(POLL_SECONDS)


async def _remaining_reason(client: Client, *, name: str, uid: str) -> str | None:
    """Return what the deletion waits for; None if the tenant with this UID is deleted."""
    from vkgateway.cli import cluster
    from vkgateway.model.api import READY
    from vkgateway.model.errors import NotFoundError
    from vkgateway.model.objects import find_condition

    try:
        current = await cluster.get_tenant_with_retry(client, name)
    except NotFoundError:
        return None
    if current.metadata.uid != uid:
        return None
    ready = find_condition(current.status.conditions, READY)
    return ready.message if ready is not None and current.status.phase == "Deleting" else "waiting for the gateway"
