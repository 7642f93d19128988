"""`vkgateway tenant restore`: bring back tenants whose data is kept after their deletion."""

from __future__ import annotations

from pathlib import Path

import click

from vkgateway.cli import name_completion
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.progress import explain_interruption
from vkgateway.cli.tenant_options import wait_options


@click.command(short_help="Bring back deleted tenants.", epilog="\b\nExample: vkgateway tenant restore alpha")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=name_completion.tenants)
@wait_options("the tenants are ready")
@cluster_options
@run_async
async def restore(
    *, names: tuple[str, ...], wait: bool, timeout: float, data_dir: Path, kubeconfig: Path | None
) -> None:
    """Bring back tenants that were deleted with `tenant delete --keep`, while their data is kept.

    Their objects, users and volumes are those of the deletion. Pods that ran then have failed, and their controllers
    replace them.
    """
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_create import wait_until_ready
    from vkgateway.cli.tenant_delete import set_deletion
    from vkgateway.model.errors import ConflictError

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        tenants = [await cluster.get_tenant(client, name) for name in names]
        for tenant in tenants:
            name = tenant.metadata.name
            if tenant.metadata.deletion_timestamp is not None:
                raise ConflictError(
                    f"tenant {name!r} is being deleted with its data", hint="It cannot be brought back any more."
                )
            if not tenant.spec.delete_after:
                raise ConflictError(
                    f"tenant {name!r} is not deleted", hint=f"See its state with `vkgateway tenant describe {name}`."
                )
        restored = [await set_deletion(client, tenant, after=None) for tenant in tenants]
        if wait:
            with explain_interruption("The gateway continues. Follow it with `vkgateway tenant wait NAME`."):
                for tenant in restored:
                    await wait_until_ready(client, tenant, timeout=timeout)
