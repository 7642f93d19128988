"""`vkgateway tenant restore`: bring back tenants whose data is kept after their deletion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.progress import explain_interruption
from vkgateway.cli.tenant_options import wait_options

if TYPE_CHECKING:
    from vkgateway.api.types import Tenant
    from vkgateway.kube.client import Client


@click.command(short_help="Bring back deleted tenants.", epilog="\b\nExample: vkgateway tenant restore alpha")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=name_completion.tenants)
@wait_options("the tenants are ready")
@cluster_options
@run_async
async def restore(
    *, names: tuple[str, ...], wait: bool, timeout: float, data_dir: Path, kubeconfig: Path | None
) -> None:
    """Bring back tenants that were deleted with `tenant delete --keep`, while their data is kept.

    Their objects, users, addresses and volumes are those of the deletion. Pods that ran then have failed, and their
    controllers replace them. If other tenants have got a guarantee meanwhile, no tenant is brought back.
    """
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_create import wait_until_ready
    from vkgateway.cli.tenant_delete import set_deletion

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        tenants = [await cluster.get_tenant(client, name) for name in names]
        for tenant in tenants:
            _require_kept(tenant)
        await _require_guarantees(client, tenants)
        restored = [await set_deletion(client, tenant, after=None) for tenant in tenants]
        if wait:
            with explain_interruption("The gateway continues. Follow it with `vkgateway tenant wait NAME`."):
                for tenant in restored:
                    await wait_until_ready(client, tenant, timeout=timeout)


def _require_kept(tenant: Tenant) -> None:
    """Raise ConflictError if a tenant is not one of which only the data is kept."""
    from vkgateway.api.errors import ConflictError

    name = tenant.metadata.name
    if tenant.metadata.deletion_timestamp is not None:
        raise ConflictError(
            f"tenant {name!r} is being deleted with its data", hint="It cannot be brought back any more."
        )
    if not tenant.spec.delete_after:
        raise ConflictError(
            f"tenant {name!r} is not deleted", hint=f"See its state with `vkgateway tenant describe {name}`."
        )


async def _require_guarantees(client: Client, tenants: Sequence[Tenant]) -> None:
    """Check that the pools still hold the guarantees of the tenants, beside those of all others.

    Raises InputError with the pool, what it has left, and the way out; the tenants stay as they are.
    """
    import msgspec

    from vkgateway.api.errors import InputError
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_create import validate_tenant

    others = await cluster.list_tenants(client)
    for tenant in tenants:
        name, end = tenant.metadata.name, tenant.spec.delete_after
        try:
            await validate_tenant(client, tenant, others=others)
        except InputError as error:
            way_out = (
                f"Change it with `vkgateway tenant set {name}`, such as to a lower guarantee, and restore again. Its "
                f"data is kept until {end}."
            )
            raise InputError(str(error), hint="\n       ".join(filter(None, (error.hint, way_out)))) from error
        others.append(msgspec.structs.replace(tenant, spec=msgspec.structs.replace(tenant.spec, delete_after="")))
