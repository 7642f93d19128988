"""Shell completion of the names of tenants, compute clusters, pools and pods, from the clusters of a command's options.

The functions are values of click's `shell_complete`. They return nothing if a server does not answer in time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from vkgateway.cli.options import KUBECONFIG_VARIABLE, chosen_data_dir

if TYPE_CHECKING:
    from vkgateway.api.types import ComputeCluster

_SECONDS: Final = 2.0
"""How long servers may take to list names. Completion shows nothing rather than an error."""


def tenants(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the tenants, without those that the command has already."""
    return sorted(set(_collect(_tenant_names(ctx), incomplete)) - set(ctx.params.get("names") or ()))


def compute_clusters(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the compute clusters."""
    return _collect(_compute_names(ctx, lambda cluster: [cluster.metadata.name]), incomplete)


def pools(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the pools, those of other clusters than `local` with the cluster."""
    return _collect(_compute_names(ctx, _pool_names), incomplete)


def pods(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the pods of the tenant and namespace that the options select."""
    return _collect(_pod_names(ctx), incomplete)


async def _tenant_names(ctx: click.Context) -> AsyncIterator[str]:
    from vkgateway.cli import cluster

    async with cluster.management_cluster(chosen_data_dir(ctx), _management(ctx)) as client:
        for tenant in await cluster.list_tenants(client):
            yield tenant.metadata.name


async def _compute_names(ctx: click.Context, names_of: Callable[[ComputeCluster], list[str]]) -> AsyncIterator[str]:
    from vkgateway.cli import cluster

    async with cluster.management_cluster(chosen_data_dir(ctx), _management(ctx)) as client:
        for found in await cluster.list_compute_clusters(client):
            for name in names_of(found):
                yield name


async def _pod_names(ctx: click.Context) -> AsyncIterator[str]:
    from vkgateway.cli import tenant_pods
    from vkgateway.cli.plugin.values import names_of
    from vkgateway.kube.resources import PODS

    kubeconfig, tenant = ctx.params.get("kubeconfig"), ctx.params.get("tenant")
    async with tenant_pods.tenant_cluster(
        kubeconfig, tenant, chosen_data_dir(ctx), management=_management(ctx)
    ) as client:
        for name in await names_of(client, PODS, ctx.params.get("namespace") or "default"):
            yield name


def _pool_names(cluster: ComputeCluster) -> list[str]:
    from vkgateway.api.types import DEFAULT_COMPUTE_CLUSTER

    name = cluster.metadata.name
    suffix = "" if name == DEFAULT_COMPUTE_CLUSTER else f".{name}"
    return [f"{pool.name}{suffix}" for pool in cluster.spec.pools]


def _management(ctx: click.Context) -> Path | None:
    """Return the kubeconfig of the management cluster; None: the platform's."""
    of_cluster = any(option.name == "kubeconfig" and option.envvar for option in ctx.command.params)
    given: Path | None = ctx.params.get("kubeconfig" if of_cluster else "gateway_kubeconfig")
    variable = os.environ.get(KUBECONFIG_VARIABLE)
    if given is not None or not variable or (chosen_data_dir(ctx) / "gateway.yaml").exists():
        return given
    return Path(variable)


def _collect(names: AsyncIterator[str], incomplete: str) -> list[str]:
    from vkgateway.cli.plugin.values import begun, or_nothing

    async def read() -> list[str]:
        async with asyncio.timeout(_SECONDS):
            return [name async for name in names]

    return begun(or_nothing(lambda: asyncio.run(read())), incomplete)
