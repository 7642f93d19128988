"""`vkgateway tenant delete`: delete tenants with all their data."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.api.times import render_time
from vkgateway.cli import name_completion
from vkgateway.cli.options import Seconds, cluster_options, confirm_deletion, run_async, yes_option
from vkgateway.cli.progress import Progress, explain_interruption
from vkgateway.cli.tenant_options import wait_options

if TYPE_CHECKING:
    from vkgateway.api.types import Tenant
    from vkgateway.kube.client import Client

POLL_SECONDS = 0.2


EPILOG = """\b
Examples:
  vkgateway tenant delete alpha beta --yes
  vkgateway tenant delete alpha --keep 7d && vkgateway tenant restore alpha
"""


@click.command(short_help="Delete tenants.", epilog=EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=name_completion.tenants)
@yes_option
@click.option(
    "--keep",
    type=Seconds(),
    metavar="DURATION",
    help="Keep the data for this time, such as 7d, in which `tenant restore` brings the tenants back.",
)
@wait_options("the tenants are deleted")
@cluster_options
@run_async
async def delete(
    *,
    names: tuple[str, ...],
    yes: bool,
    keep: float | None,
    wait: bool,
    timeout: float,
    data_dir: Path,
    kubeconfig: Path | None,
) -> None:
    """Delete tenants with their control planes, their data, and their objects in compute clusters.

    With --keep, their pods are deleted and their control planes stopped at once, and the rest follows at the end of the
    time.
    """
    from vkgateway.cli import cluster
    from vkgateway.kube.resources import TENANTS

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        tenants = [await cluster.get_tenant(client, name) for name in names]
        _refuse_protected(tenants)
        if keep is not None:
            confirm_deletion(f"the pods of the tenants {', '.join(names)}", yes=yes)
            end = datetime.now(UTC) + timedelta(seconds=keep)
            kept = [await set_deletion(client, tenant, after=render_time(end)) for tenant in tenants]
            if wait:
                await _wait_until_kept(client, kept, timeout=timeout)
            return
        confirm_deletion(f"the tenants {', '.join(names)} with all their data and pods", yes=yes)
        for tenant in tenants:
            await client.delete(TENANTS, tenant.metadata.name, uid=tenant.metadata.uid)
        if wait:
            with explain_interruption("The gateway continues to delete. Follow it with `vkgateway tenant list`."):
                await wait_until_deleted(client, tenants, timeout=timeout)


def _refuse_protected(tenants: Sequence[Tenant]) -> None:
    """Raise ConflictError if any of the tenants is protected: none is deleted then."""
    from vkgateway.api.errors import ConflictError

    names = [tenant.metadata.name for tenant in tenants if tenant.spec.deletion_protection]
    if names:
        raise ConflictError(
            f"protected from deletion by spec.deletionProtection: {', '.join(names)}; no tenant was deleted",
            hint=f"To delete it with its data, first run `vkgateway tenant set {names[0]} --no-deletion-protection`.",
        )


async def set_deletion(client: Client, tenant: Tenant, *, after: str | None) -> Tenant:
    """Set the time of a tenant's deletion, or remove it; return the changed tenant. Raises ApiError."""
    import msgspec

    from vkgateway.api.types import Tenant as TenantObject
    from vkgateway.kube.resources import TENANTS

    change = {"metadata": {"uid": tenant.metadata.uid}, "spec": {"deleteAfter": after}}
    return msgspec.json.decode(await client.patch(TENANTS, tenant.metadata.name, change), type=TenantObject)


async def _wait_until_kept(client: Client, tenants: Sequence[Tenant], *, timeout: float) -> None:
    """Wait until only the data of the tenants is left. Raises UnavailableError after `timeout` seconds."""
    from vkgateway.api.errors import UnavailableError
    from vkgateway.api.objects import find_condition
    from vkgateway.api.types import DATA_KEPT, READY
    from vkgateway.cli import cluster

    with Progress() as progress:
        for tenant in tenants:
            name, current, message = tenant.metadata.name, tenant, "waiting for the gateway"
            while True:
                ready = find_condition(current.status.conditions, READY)
                if ready is not None and current.status.observed_generation == tenant.metadata.generation:
                    message = ready.message
                    if ready.reason == DATA_KEPT:
                        progress.done(f"tenant {name}: {message}")
                        break
                if progress.elapsed_seconds > timeout:
                    raise UnavailableError(
                        f"tenant {name!r} is not stopped after {timeout:.0f} s: {message}",
                        hint=f"The gateway continues. Check it with `vkgateway tenant describe {name}`.",
                    )
                progress(f"tenant {name}: {message}")
                await asyncio.sleep(POLL_SECONDS)
                current = await cluster.get_tenant_with_retry(client, name)


async def wait_until_deleted(client: Client, tenants: list[Tenant], *, timeout: float) -> None:
    """Wait until the tenants do not exist. Raises UnavailableError after `timeout` seconds."""
    from vkgateway.api.errors import UnavailableError

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
    from vkgateway.api.errors import NotFoundError
    from vkgateway.api.objects import find_condition
    from vkgateway.api.types import READY
    from vkgateway.cli import cluster

    try:
        current = await cluster.get_tenant_with_retry(client, name)
    except NotFoundError:
        return None
    if current.metadata.uid != uid:
        return None
    ready = find_condition(current.status.conditions, READY)
    return ready.message if ready is not None and current.status.phase == "Deleting" else "waiting for the gateway"
