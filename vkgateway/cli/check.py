"""`vkgateway check`: whether an installation works, tried with a tenant and a pod."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.options import cluster_options, run_async

if TYPE_CHECKING:
    from vkgateway.api.types import Tenant
    from vkgateway.kube.client import Client

TENANT = "vkgateway-check"
IMAGE = "registry.k8s.io/pause:3.10.1"

EPILOG = """\b
Examples:
  vkgateway check
  vkgateway check --pool a100 --image registry.example.com/pause:3.10.1
"""


@click.command(short_help="Try the installation with a tenant and a pod.", epilog=EPILOG)
@click.option(
    "--pool",
    metavar="POOL[.CLUSTER]",
    shell_complete=name_completion.pools,
    default="",
    help="Pool of the tenant. [default: the first pool of the first compute cluster]",
)
@click.option("--image", default=IMAGE, show_default=True, help="Image of the pod; it must run without arguments.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds that a step may take."
)
@cluster_options
@run_async
async def check(*, pool: str, image: str, timeout: float, data_dir: Path, kubeconfig: Path | None) -> None:
    """Create a tenant, run a pod in it, read its log, and delete the tenant.

    The tenant's name is vkgateway-check. It is deleted after a failure, too.
    """
    from vkgateway.cli import cluster, tenant_spec
    from vkgateway.cli.check_pod import run_pod
    from vkgateway.cli.progress import Progress
    from vkgateway.cli.tenant_create import create_tenant, validate_tenant, wait_until_ready

    async with cluster.management_cluster(data_dir, kubeconfig) as management:
        chosen = pool or await _first_pool(management)
        await _delete_tenant(management, timeout=timeout)
        tenant = tenant_spec.apply_options(tenant_spec.with_name(None, TENANT), pools=[chosen])
        await validate_tenant(management, tenant, others=await cluster.list_tenants(management))
        with Progress() as progress:
            progress.done(f"pool {chosen} is available")
        created = await create_tenant(management, tenant)
        try:
            await wait_until_ready(management, created, timeout=timeout, withdraw=_explain_deletion)
            await run_pod(management, TENANT, image=image, timeout=timeout)
        finally:
            await _delete_tenant(management, timeout=timeout)
    click.echo("The check passed.")


async def _first_pool(management: Client) -> str:
    """Return `POOL.CLUSTER` of the first pool. Raises InputError if there is none."""
    from vkgateway.api.errors import InputError
    from vkgateway.cli import cluster

    computes = sorted(await cluster.list_compute_clusters(management), key=lambda compute: compute.metadata.name)
    for compute in computes:
        for pool in compute.spec.pools:
            return f"{pool.name}.{compute.metadata.name}"
    raise InputError(
        "no ComputeCluster has a pool",
        hint="Apply a ComputeCluster object with spec.pools, and check it with `kubectl get computeclusters`.",
    )


async def _explain_deletion(_current: Tenant) -> str:
    return "The tenant is deleted again. Correct --pool and retry."


async def _delete_tenant(management: Client, *, timeout: float) -> None:
    """Delete the tenant if it exists, and wait until it is deleted."""
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_delete import wait_until_deleted
    from vkgateway.kube import errors
    from vkgateway.kube.resources import TENANTS

    found: list[Tenant] = [one for one in await cluster.list_tenants(management) if one.metadata.name == TENANT]
    for tenant in found:
        try:
            await management.delete(TENANTS, TENANT, uid=tenant.metadata.uid)
        except errors.NotFound:
            return
    if found:
        await wait_until_deleted(management, found, timeout=timeout)
