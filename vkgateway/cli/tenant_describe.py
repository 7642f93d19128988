"""`vkgateway tenant describe`: details of one tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.age import format_age
from vkgateway.cli.description import describe_object, object_lines, resource_list, table_lines
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import output_option

if TYPE_CHECKING:
    from vkgateway.api.types import ApiServerExposure, Tenant, TenantBudget, TenantPool


@click.command(short_help="Show the details of a tenant.", epilog="\b\nExample: vkgateway tenant describe alpha")
@click.argument("name", shell_complete=name_completion.tenants)
@output_option
@cluster_options
@run_async
async def describe(*, name: str, output: str, data_dir: Path, kubeconfig: Path | None) -> None:
    """Show tenant NAME: its conditions, pools, guarantees and events."""
    from vkgateway.cli import cluster

    await describe_object(
        name, output, get=cluster.get_tenant, describe=description_lines, data_dir=data_dir, kubeconfig=kubeconfig
    )


def description_lines(tenant: Tenant) -> Iterator[str]:
    """Return the lines of the description without events."""
    spec, status = tenant.spec, tenant.status
    policy = spec.policy
    facts = {
        "Name": tenant.metadata.name,
        "Phase": status.phase,
        "Age": format_age(tenant.metadata.creation_timestamp),
        "Template": spec.template,
        "Kubernetes": spec.kubernetes_version,
        "API server": status.api_server.url if status.api_server else "",
        "Exposure": _format_exposure(spec.api_server.exposure),
        "Driver": spec.control_plane.driver,
        "Pod security": policy.pod_security,
        "Runtime classes": _format_classes(policy.runtime_classes, policy.runtime_class_names),
        "Storage classes": _format_classes(policy.storage_classes, policy.storage_class_names),
        "Image pull secrets": ", ".join(policy.image_pull_secrets),
        "Plugin annotations": ", ".join(policy.plugin_annotations),
        "User namespaces": "allowed" if policy.user_namespaces else "",
        "Load balancers": policy.load_balancers,
        "Node ports": policy.node_ports,
        "Preemption": spec.preemption.within_tenant,
        "Deletion": "protected" if spec.deletion_protection else spec.delete_after and f"after {spec.delete_after}",
        "Monthly budget": ", ".join(map(_format_budget, spec.budget)),
    }
    pools = table_lines(_POOL_TITLES, (_pool_row(pool, tenant) for pool in spec.pools))
    return object_lines(facts, pools=pools, conditions=status.conditions)


def _format_exposure(exposure: ApiServerExposure) -> str:
    if exposure.type == "ClusterIP":
        return ""
    return " ".join(filter(None, (exposure.type, exposure.hostname)))


def _format_budget(budget: TenantBudget) -> str:
    return f"{budget.hours:.15g} hours of {budget.resource}" + (f" in pool {budget.pool}" if budget.pool else "")


def _format_classes(names: Sequence[str], renamed: Mapping[str, str]) -> str:
    return ", ".join(
        (*names, *(f"{name} ({compute_name} in compute clusters)" for name, compute_name in renamed.items()))
    )


_POOL_TITLES = ("pool", "virtual node", "ready", "guarantee", "cells", "limit", "weight", "capacity")


def _pool_row(pool: TenantPool, tenant: Tenant) -> tuple[str, ...]:
    status = next(
        (
            pool_status
            for pool_status in tenant.status.pools
            if (pool_status.name, pool_status.compute_cluster) == (pool.name, pool.compute_cluster)
        ),
        None,
    )
    return (
        f"{pool.name} of {pool.compute_cluster}",
        status.node_name if status else "-",
        "yes" if status and status.ready else "no",
        resource_list(pool.guarantee),
        _format_cells(pool.cells),
        resource_list(pool.limit),
        f"{pool.weight:g}",
        resource_list(status.capacity) if status else "-",
    )


def _format_cells(sizes: Sequence[int]) -> str:
    """Return cells as `2x8+1`; a dash if they are derived from the guarantee."""
    counts = Counter(sizes)
    return "+".join(f"{number}x{size}" if number > 1 else str(size) for size, number in counts.items()) or "-"
