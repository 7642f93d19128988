"""`kubectl vkgateway status`: whether the cluster's nodes, or the platform, are well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vkgateway.cli.age import format_age
from vkgateway.cli.output import Column, output_option_of, print_table, serialize
from vkgateway.cli.plugin.options import target_options
from vkgateway.cli.plugin.target import Target, run_async

if TYPE_CHECKING:
    from vkgateway.cli.plugin.connection import Connection
    from vkgateway.cli.plugin.status_report import ClusterFacts, ClusterStatus, ObjectState

T = TypeVar("T")

NOT_WELL = 5
"""Exit code if something is not ready, or could not be read."""
EPILOG = "\b\nExample: kubectl vkgateway status; kubectl vkgateway status --context management -o json"
_STATES = ("running", "starting", "blocked", "waiting", "leaving")


@click.command(short_help="Show whether the cluster is well.", epilog=EPILOG)
@output_option_of("table", "json", "yaml")
@target_options
@click.pass_context
@run_async
async def status(ctx: click.Context, *, output: str, target: Target) -> None:
    """Show whether the cluster is well. Exit code 5 if something is not ready or could not be read.

    In a tenant's cluster: virtual nodes, governed pods by state, eviction notices. In the management cluster: the
    gateway and its checks, tenants, compute clusters.
    """
    import msgspec

    from vkgateway.cli.plugin.connection import connect

    async with connect(target) as connection:
        is_tenant = connection.kind == "tenant"
        found = await (tenant_status(connection) if is_tenant else management_status(connection))
    if output == "table":
        _print_status(found)
    else:
        click.echo(serialize(msgspec.to_builtins(found), output=output), nl=False)
    if not found.is_well:
        ctx.exit(NOT_WELL)


async def cluster_facts(connection: Connection) -> ClusterFacts:
    """Return what the cluster is, and who the caller is."""
    import msgspec

    from vkgateway.cli.plugin.rights import read_user
    from vkgateway.cli.plugin.status_report import ClusterFacts

    user, version = await asyncio.gather(read_user(connection.client), connection.client.request("GET", "/version"))
    return ClusterFacts(
        kind=connection.kind,
        server=connection.client.server,
        context=connection.config.context,
        namespace=connection.target.namespace or connection.config.namespace,
        user=user,
        version=str(msgspec.json.decode(version).get("gitVersion", "")),
    )


async def tenant_status(connection: Connection) -> ClusterStatus:
    """Return the status of a tenant's cluster, as far as the user may read it."""
    from vkgateway.cli.plugin import status_report
    from vkgateway.cli.plugin.rights import refusal_message
    from vkgateway.cli.plugin.tenant_reads import list_nodes, list_widest

    facts, (nodes, refused) = await asyncio.gather(cluster_facts(connection), list_nodes(connection))
    problems = [refusal_message(facts.user, [refused], server=facts.server)] if refused is not None else []
    pods, problem = await _or_problem(list_widest(connection), facts)
    if problem:
        problems.append(problem)
    elif pods is not None and pods.refused is not None:
        problems.append(refusal_message(facts.user, [pods.refused], server=facts.server))
    return status_report.ClusterStatus(
        cluster=facts,
        problems=tuple(problems),
        nodes=None
        if nodes is None
        else tuple(map(status_report.virtual_node_state, status_report.virtual_nodes(nodes))),
        pods=None if pods is None else status_report.count_states(pods.pods),
        evictions=() if pods is None else status_report.eviction_notices(pods.pods),
    )


async def management_status(connection: Connection) -> ClusterStatus:
    """Return the status of the platform, as far as the user may read it."""
    from vkgateway.cli import cluster
    from vkgateway.cli.plugin import status_report

    facts = await cluster_facts(connection)
    client = connection.client
    (tenants, no_tenants), (computes, no_computes), (leader, no_leader), (checks, no_checks) = await asyncio.gather(
        _or_problem(cluster.list_tenants(client), facts),
        _or_problem(cluster.list_compute_clusters(client), facts),
        _or_problem(_leader(connection), facts),
        _or_problem(_checks(connection), facts),
    )
    return status_report.ClusterStatus(
        cluster=facts,
        problems=tuple(filter(None, (no_leader, no_checks, no_tenants, no_computes))),
        gateway=leader or "",
        checks=checks or (),
        tenants=None if tenants is None else tuple(map(status_report.tenant_state, tenants)),
        compute_clusters=None if computes is None else tuple(map(status_report.compute_state, computes)),
    )


async def _or_problem(work: Awaitable[T], facts: ClusterFacts) -> tuple[T | None, str]:
    """Return the result, or None and why there is none."""
    from vkgateway.api.errors import VkgatewayError
    from vkgateway.cli.plugin.rights import RefusedRequestError, refusal_message
    from vkgateway.kube import errors

    try:
        return await work, ""
    except RefusedRequestError as error:
        return None, refusal_message(facts.user, [error.right], server=facts.server)
    except errors.Unauthorized:
        raise
    except VkgatewayError as error:
        return None, str(error)


async def _leader(connection: Connection) -> str:
    """Return who leads, such as `vkgateway-0/1a2b, renewed 3s ago`."""
    import msgspec

    from vkgateway.api.errors import UnavailableError
    from vkgateway.api.names import SYSTEM_NAMESPACE
    from vkgateway.cli.cluster_gateway import LEASE_NAME
    from vkgateway.kube import errors
    from vkgateway.kube.resources import LEASES

    try:
        answer = await connection.client.get(LEASES, LEASE_NAME, namespace=SYSTEM_NAMESPACE)
    except errors.NotFound as error:
        raise UnavailableError("no gateway has served this cluster") from error
    spec = msgspec.json.decode(answer).get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    if not holder:
        raise UnavailableError("no gateway leads now")
    return f"{holder.partition('/')[0]} leads, Lease renewed {format_age(spec.get('renewTime')) or '?'} ago"


async def _checks(connection: Connection) -> tuple[str, ...]:
    from vkgateway.cli.gateway_state import request_answer
    from vkgateway.cli.plugin.gateway import find_gateway

    endpoint, folder = find_gateway(connection)
    _, _, body = await request_answer("readyz", {}, folder, endpoint)
    return tuple(body.decode(errors="replace").splitlines())


def _print_status(found: ClusterStatus) -> None:
    facts = found.cluster
    name = "tenant cluster" if facts.kind == "tenant" else "management cluster"
    lines = {
        "cluster": f"{name} at {facts.server} (context {facts.context})",
        "kubernetes": facts.version,
        "user": facts.user,
        "gateway": found.gateway,
        "pods": _format_pods(found.pods),
    }
    for title, value in lines.items():
        if value:
            click.echo(f"{title:<12}{value}")
    for line in found.checks:
        click.echo(f"{'check':<12}{line}")
    for problem in found.problems:
        click.echo(f"{'problem':<12}{problem}")
    _print_states("node", found.nodes)
    _print_states("compute cluster", found.compute_clusters)
    _print_states("tenant", found.tenants)
    if found.evictions:
        click.echo()
        titles = ("namespace", "evicted pod", "deadline")
        rows = [[notice.namespace, notice.pod, notice.deadline] for notice in found.evictions]
        print_table(rows, columns=_columns(titles))


def _format_pods(pods: dict[str, int] | None) -> str:
    if pods is None:
        return ""
    return ", ".join(f"{pods[state]} {state}" for state in _STATES if pods.get(state)) or "none governed"


def _print_states(title: str, states: Sequence[ObjectState] | None) -> None:
    if not states:
        return
    click.echo()
    rows = [
        [
            state.name,
            state.phase or "-",
            "yes" if state.ready else "no",
            {True: "yes", False: "no", None: "-"}[state.connected],
            format_age(state.since) or "-",
            state.reason or "-",
            state.message or "-",
        ]
        for state in states
    ]
    print_table(rows, columns=_columns((title, "phase", "ready", "connected", "since", "reason", "message")))


def _columns(titles: Sequence[str]) -> list[Column[Any]]:
    return [Column(title, str) for title in titles]
