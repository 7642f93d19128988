"""`vkgateway tenant`: create, change, show, access, delete and restore tenants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.age import format_age
from vkgateway.cli.lazy_group import LazyGroup
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import Column, output_option, print_objects

if TYPE_CHECKING:
    from vkgateway.api.types import Tenant


def _not_ready_message(tenant: Tenant) -> str:
    """Return why a tenant is not ready, or ""."""
    from vkgateway.api.objects import find_condition
    from vkgateway.api.types import READY

    if tenant.status.observed_generation == 0:
        return "not reconciled by the gateway yet"
    found = find_condition(tenant.status.conditions, READY)
    return "" if found is None or found.status == "True" else found.message or found.reason


COLUMNS: tuple[Column[Tenant], ...] = (
    Column("name", lambda tenant: tenant.metadata.name),
    Column("phase", lambda tenant: tenant.status.phase),
    Column("version", lambda tenant: tenant.spec.kubernetes_version),
    Column("pools", lambda tenant: ",".join(f"{pool.name}.{pool.compute_cluster}" for pool in tenant.spec.pools)),
    Column("server", lambda tenant: tenant.status.api_server.url if tenant.status.api_server else ""),
    Column("age", lambda tenant: format_age(tenant.metadata.creation_timestamp)),
    Column("message", _not_ready_message),
)


@click.group(
    cls=LazyGroup,
    lazy={
        "create": "vkgateway.cli.tenant_create:create",
        "set": "vkgateway.cli.tenant_set:set_fields",
        "list": "vkgateway.cli.tenant:list_tenants",
        "describe": "vkgateway.cli.tenant_describe:describe",
        "kubeconfig": "vkgateway.cli.tenant_kubeconfig:kubeconfig",
        "wait": "vkgateway.cli.tenant_wait:wait",
        "delete": "vkgateway.cli.tenant_delete:delete",
        "restore": "vkgateway.cli.tenant_restore:restore",
    },
    epilog="\b\nExample: vkgateway tenant create alpha --pool a100:guarantee=nvidia.com/gpu=8",
)
def tenant() -> None:
    """Create, change, show, access, delete and restore tenants."""


@click.command("list", epilog="\b\nExample: vkgateway tenant list -o json")
@output_option
@cluster_options
@run_async
async def list_tenants(output: str, data_dir: Path, kubeconfig: Path | None) -> None:
    """List all tenants."""
    from vkgateway.cli import cluster

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        found = await cluster.list_tenants(client)
    print_objects(
        found,
        output=output,
        columns=COLUMNS,
        name=lambda tenant: tenant.metadata.name,
        empty="There are no tenants. Create one with `vkgateway tenant create NAME`.",
    )
