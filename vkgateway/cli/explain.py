"""`vkgateway explain`: why a pod waits and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import output_option_of, serialize

if TYPE_CHECKING:
    from vkgateway.cli.explanation import PodExplanation
    from vkgateway.scheduler.core.reasons.report_types import ArbiterReport

EPILOG = """\b
Examples:
  vkgateway explain train-0 -n research --kubeconfig alpha.kubeconfig
  vkgateway explain train-0 --tenant alpha
"""


@click.command(short_help="Explain why a pod waits.", epilog=EPILOG)
@click.argument("pod", shell_complete=name_completion.pods)
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the pod in the tenant.")
@click.option(
    "--tenant", shell_complete=name_completion.tenants, help="Tenant of the pod, by name; for admins of the platform."
)
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="Kubeconfig of the tenant.")
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def explain(
    *,
    pod: str,
    namespace: str,
    tenant: str | None,
    kubeconfig: Path | None,
    output: str,
    gateway: GatewayEndpoint,
    data_dir: Path,
) -> None:
    """Explain why POD (a pod of a tenant) waits, its position in the queue, and what helps; and how long each phase of
    its start took.

    Reads only. With --tenant, the gateway adds facts that the tenant cannot read.
    """
    from vkgateway.cli import tenant_pods

    if (tenant is None) == (kubeconfig is None):
        raise click.UsageError("give either --tenant NAME or --kubeconfig FILE")
    management = gateway.cluster_kubeconfig(data_dir)
    async with tenant_pods.tenant_cluster(kubeconfig, tenant, data_dir, management=management) as client:
        state = await gateway_state_if_any(data_dir, gateway) if tenant is not None else None
        found = await tenant_pods.read_explanation(client, namespace, pod, state=state, tenant=tenant or "")
    print_explanation(found, output=output)


def print_explanation(pod_explanation: PodExplanation, *, output: str) -> None:
    """Print an explanation as lines for people, or as data."""
    import msgspec

    if output == "table":
        for line in explanation_lines(pod_explanation):
            click.echo(line)
    else:
        click.echo(serialize(msgspec.to_builtins(pod_explanation), output=output), nl=False)


def explanation_lines(explanation: PodExplanation) -> Iterator[str]:
    """Yield the lines of the explanation; empty facts are left out."""
    position = f"{explanation.place} in {explanation.pool}" if explanation.place else ""
    facts = {
        "Pod": f"{explanation.namespace}/{explanation.name}",
        "State": explanation.state,
        "": explanation.summary,
        "Requests": explanation.asks,
        "Band": explanation.band,
        "Node": explanation.node,
        "Gang": _format_gang(explanation),
        "Start": explanation.start,
        "Reason": explanation.code,
        "Message": explanation.message,
        "Queue position": position,
        "Expected start": explanation.expected,
        "Deleted at": explanation.deadline if explanation.state == "leaving" else "",
        "Fair share": explanation.share,
        "Capacity": explanation.holds,
        "Reserved for": explanation.behind,
        "Pool": explanation.room,
        "What helps": explanation.help,
    }
    for title, value in facts.items():
        if value:
            yield f"{title + ':' if title else '':<16}{value}"


def _format_gang(explanation: PodExplanation) -> str:
    gang = explanation.gang
    if gang is None:
        return ""
    minimum = f", at least {gang.minimum} start together" if gang.minimum is not None else ""
    return f"{gang.name} ({gang.way}): {gang.pods} pods, {gang.waiting} waiting, {gang.running} running{minimum}"


async def gateway_state_if_any(data_dir: Path, gateway: GatewayEndpoint) -> ArbiterReport | None:
    """Return the gateway's state; None if the gateway is unavailable, because the pods suffice."""
    from vkgateway.api.errors import UnavailableError
    from vkgateway.cli import gateway_state

    try:
        return await gateway_state.get_state(data_dir, gateway)
    except UnavailableError as error:
        click.echo(f"Explained without the gateway: {error}", err=True)
        return None
