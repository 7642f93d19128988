"""`vkgateway tenant set`: change fields of a Tenant object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vkgateway.cli import name_completion
from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import FORMATS, serialize
from vkgateway.cli.progress import explain_interruption
from vkgateway.cli.tenant_options import POOL_METAVAR, spec_options, wait_options

if TYPE_CHECKING:
    from vkgateway.api.types import Tenant, TenantSpec
    from vkgateway.kube.client import Client

EPILOG = """\b
Examples:
  vkgateway tenant set alpha --pool a100:guarantee=nvidia.com/gpu=16
  vkgateway tenant set alpha --pool v100 --pool a100:limit=none,weight=2 --remove-pool h100
  vkgateway tenant set alpha --preemption Never --budget none
  vkgateway tenant set alpha --pool a100:guarantee=nvidia.com/gpu=16 --dry-run
"""


@click.command("set", short_help="Change a tenant.", epilog=EPILOG)
@click.argument("name", shell_complete=name_completion.tenants)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar=POOL_METAVAR,
    shell_complete=name_completion.pools,
    help="A pool to change or to add; parts that you do not name stay, and none removes one; repeatable.",
)
@click.option(
    "--remove-pool", "removed_pools", multiple=True, metavar="POOL[.CLUSTER]", help="A pool to remove; repeatable."
)
@spec_options(has_defaults=False)
@wait_options("the tenant is ready")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Validate the change, print the object and the effect of changed guarantees; change nothing.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS[1:]), help="Print the object when done.")
@gateway_option
@cluster_options
@run_async
async def set_fields(
    *,
    name: str,
    pools: tuple[str, ...],
    removed_pools: tuple[str, ...],
    wait: bool,
    timeout: float,
    dry_run: bool,
    output: str | None,
    gateway: GatewayEndpoint,
    data_dir: Path,
    kubeconfig: Path | None,
    **options: Any,
) -> None:
    """Change tenant NAME while it runs, and wait until the change is in force.

    Fields without an option stay. Options with a list replace the list, and the value none empties it. If the gateway
    does not accept the change, it is withdrawn.
    """
    import msgspec

    from vkgateway.cli import cluster, tenant_spec
    from vkgateway.cli.tenant_create import validate_tenant, wait_until_accepted, wait_until_ready

    _require_change([*options.values(), pools, removed_pools])
    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        tenants = await cluster.list_tenants(client)
        before = _find_changeable(name, tenants)
        wanted = tenant_spec.apply_options(msgspec.structs.replace(before), **options)
        wanted.spec = msgspec.structs.replace(
            wanted.spec, pools=tenant_spec.change_pools(wanted.spec.pools, changes=pools, removed=removed_pools)
        )
        others = [tenant for tenant in tenants if tenant is not before]
        await validate_tenant(client, wanted, others=others, previous=_spec_in_force(before))
        fields = ", ".join(f"spec.{field}" for field in sorted(tenant_spec.spec_patch(before.spec, wanted.spec)))
        if dry_run:
            await _print_dry_run(before, wanted, output, data_dir, gateway.or_cluster(data_dir, kubeconfig))
            return
        if not fields:
            click.echo(f"tenant {name} has these values already", err=True)
            _print_object(before, output)
            return
        changed = await _write_spec(client, before, wanted.spec)
        click.echo(f"tenant {name}: {fields} changed", err=True)

        async def withdraw(_current: Tenant) -> str:
            await _write_spec(client, changed, before.spec)
            return "The change was withdrawn. Correct the options and retry."

        if changed.spec.delete_after:
            click.echo(
                f"tenant {name} is deleted; the change is in force after `vkgateway tenant restore {name}`", err=True
            )
        elif wait:
            with explain_interruption(f"The change stays. Follow it with `vkgateway tenant wait {name}`."):
                changed = await wait_until_ready(client, changed, timeout=timeout, withdraw=withdraw)
        else:
            changed = await wait_until_accepted(client, changed, withdraw=withdraw)
        _print_object(changed, output)


def _require_change(values: Sequence[object]) -> None:
    """Raise InputError if no option gives a value."""
    from vkgateway.api.errors import InputError

    if all(value is None or value == () for value in values):
        raise InputError("no change is given", hint="Example: vkgateway tenant set alpha --pool a100:weight=2")


def _find_changeable(name: str, tenants: Sequence[Tenant]) -> Tenant:
    """Return a tenant. Raises NotFoundError, or ConflictError if it is being deleted."""
    from vkgateway.api.errors import ConflictError
    from vkgateway.cli import cluster

    found = cluster.pick_tenant(name, tenants)
    if found.metadata.deletion_timestamp is not None:
        raise ConflictError(
            f"tenant {name!r} is being deleted", hint=f"Check it with `vkgateway tenant describe {name}`."
        )
    return found


def _spec_in_force(tenant: Tenant) -> TenantSpec:
    """Return the spec that the gateway accepted last, or else the current one."""
    from vkgateway.tenants.accepted_specs import read_accepted_spec

    return read_accepted_spec(tenant) or tenant.spec


async def _write_spec(client: Client, tenant: Tenant, spec: TenantSpec) -> Tenant:
    """Change the object's spec. Raises ConflictError if its spec is not that of `tenant` any more."""
    import msgspec

    from vkgateway.api.errors import ConflictError
    from vkgateway.api.types import Tenant
    from vkgateway.cli import cluster, tenant_spec
    from vkgateway.kube import errors
    from vkgateway.kube.resources import TENANTS

    name, known = tenant.metadata.name, tenant.metadata
    patch = {"spec": tenant_spec.spec_patch(tenant.spec, spec)}
    current = tenant
    while True:
        version = {"resourceVersion": current.metadata.resource_version}
        try:
            return msgspec.json.decode(await client.patch(TENANTS, name, {"metadata": version, **patch}), type=Tenant)
        except errors.Conflict:
            # Usually, the gateway has written the status.
            current = await cluster.get_tenant(client, name)
        if (current.metadata.uid, current.metadata.generation) != (known.uid, known.generation):
            raise ConflictError(
                f"tenant {name!r} was changed by another client at the same time",
                hint=f"Check it with `vkgateway tenant describe {name}`, and repeat the command.",
            )


async def _print_dry_run(
    before: Tenant, wanted: Tenant, output: str | None, data_dir: Path, gateway: GatewayEndpoint
) -> None:
    """Print the object as it would be, and on standard error the effect of pools that change."""
    import msgspec

    from vkgateway.api.objects import Meta
    from vkgateway.api.types import Tenant
    from vkgateway.cli import tenant_spec, whatif_tenant

    metadata = Meta(name=wanted.metadata.name)
    manifest = tenant_spec.to_manifest(Tenant(metadata=metadata, spec=wanted.spec))
    click.echo(serialize(manifest, output=output or "yaml"), nl=False)
    changed = tuple(pool for pool in wanted.spec.pools if pool not in before.spec.pools)
    asked = Tenant(metadata=metadata, spec=msgspec.structs.replace(wanted.spec, pools=changed))
    await whatif_tenant.print_what_if(asked, data_dir, gateway)


def _print_object(tenant: Tenant, output: str | None) -> None:
    import msgspec

    if output == "name":
        click.echo(tenant.metadata.name)
    elif output:
        click.echo(serialize(msgspec.to_builtins(tenant), output=output), nl=False)
