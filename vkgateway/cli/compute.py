"""`vkgateway compute`: attached compute clusters and their pools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.age import format_age
from vkgateway.cli.description import describe_object, label_list, object_lines, resource_list, table_lines
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import Column, output_option, print_objects

if TYPE_CHECKING:
    from vkgateway.api.types import ComputeCluster, Pool


def _condition_status(compute: ComputeCluster, kind: str) -> str:
    return next((condition.status for condition in compute.status.conditions if condition.type == kind), "Unknown")


COLUMNS: tuple[Column[ComputeCluster], ...] = (
    Column("name", lambda compute: compute.metadata.name),
    Column("connected", lambda compute: _condition_status(compute, "Connected")),
    Column("ready", lambda compute: _condition_status(compute, "Ready")),
    Column("version", lambda compute: compute.status.version),
    Column("pools", lambda compute: ",".join(pool.name for pool in compute.spec.pools)),
    Column("age", lambda compute: format_age(compute.metadata.creation_timestamp)),
)


@click.group(short_help="Show compute clusters and their pools.", epilog="\b\nExample: vkgateway compute list")
def compute() -> None:
    """Show the compute clusters that run the tenants' pods."""


@compute.command("list", epilog="\b\nExample: vkgateway compute list -o json")
@output_option
@cluster_options
@run_async
async def list_compute(*, output: str, data_dir: Path, kubeconfig: Path | None) -> None:
    """List all compute clusters."""
    from vkgateway.cli import cluster

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        found = await cluster.list_compute_clusters(client)
    print_objects(
        found,
        output=output,
        columns=COLUMNS,
        name=lambda compute: compute.metadata.name,
        empty="There are no compute clusters. Apply a ComputeCluster object to attach one.",
    )


@compute.command(epilog="\b\nExample: vkgateway compute describe local")
@click.argument("name", shell_complete=name_completion.compute_clusters)
@output_option
@cluster_options
@run_async
async def describe(*, name: str, output: str, data_dir: Path, kubeconfig: Path | None) -> None:
    """Show compute cluster NAME: conditions, events, and the nodes, capacity and guarantees of each pool."""
    from vkgateway.cli import cluster

    await describe_object(
        name,
        output,
        get=cluster.get_compute_cluster,
        describe=description_lines,
        data_dir=data_dir,
        kubeconfig=kubeconfig,
    )


def description_lines(compute: ComputeCluster) -> Iterator[str]:
    """Return the lines of the description without events."""
    secret = compute.spec.connection.kubeconfig_secret
    facts = {
        "Name": compute.metadata.name,
        "Age": format_age(compute.metadata.creation_timestamp),
        "Kubernetes": compute.status.version,
        "Connection": f"Secret {secret.namespace}/{secret.name}" if secret else "the management cluster itself",
    }
    pools = table_lines(_POOL_TITLES, (_pool_row(pool, compute) for pool in compute.spec.pools))
    return object_lines(facts, pools=pools, conditions=compute.status.conditions)


_POOL_TITLES = (
    "pool",
    "nodes",
    "usable",
    "allocatable",
    "guaranteed",
    "reserve",
    "low yields to",
    "run limits",
    "selector",
    "levels",
    "notice",
    "grace",
)


def _pool_row(pool: Pool, compute: ComputeCluster) -> tuple[str, ...]:
    status = next((pool_status for pool_status in compute.status.pools if pool_status.name == pool.name), None)
    return (
        pool.name,
        str(status.nodes) if status else "-",
        str(status.usable_nodes) if status else "-",
        resource_list(status.allocatable) if status else "-",
        resource_list(status.guaranteed) if status else "-",
        str(pool.reserve or "-"),
        pool.low_yields_to,
        _format_run_limits(pool),
        label_list(pool.node_selector),
        ", ".join(pool.levels) or "-",
        _format_notice(pool),
        _format_seconds(pool.grace_seconds),
    )


def _format_notice(pool: Pool) -> str:
    brief = pool.brief_run_seconds, pool.brief_notice_seconds
    suffix = f", {brief[1]}s for runs under {brief[0]}s" if None not in brief else ""
    return _format_seconds(pool.notice_seconds) + suffix


def _format_run_limits(pool: Pool) -> str:
    """Return which run limits the pool enforces, and its defaults."""
    if not pool.enforce_run_limits:
        return "not enforced"
    limits = {"guaranteed": pool.default_run_limits.guaranteed, "low": pool.default_run_limits.low}
    return ", ".join(["enforced", *(f"{band} {limit}" for band, limit in limits.items() if limit)])


def _format_seconds(value: int | None) -> str:
    return "-" if value is None else f"{value}s"
