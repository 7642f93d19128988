"""`vkgateway explain`: why one pod waits, what it waits for, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import output_option_of, serialize

if TYPE_CHECKING:
    from vkgateway.arbiter.reasons.report_types import ArbiterReport
    from vkgateway.cli.explanation import PodExplanation

EPILOG = """\b
Examples:
  vkgateway explain train-0 -n research --kubeconfig alpha.kubeconfig
  vkgateway explain train-0 --tenant alpha
"""


@click.command(epilog=EPILOG)
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True, help="The pod's, in the tenant.")
@click.option("--tenant", help="The tenant whose pod it is, by name: for whoever runs the platform.")
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="The tenant's own.")
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
    """Say of POD, by its name in the tenant, whether it waits, for what, with whom, and what would help.

    Nothing is changed. With --tenant the gateway is asked too, and tells more than the tenant may read.
    """
    import msgspec

    from vkgateway.cli import explanation, tenant_pods

    if (tenant is None) == (kubeconfig is None):
        raise click.UsageError("name the tenant: by --tenant NAME, or by --kubeconfig FILE")
    async with tenant_pods.tenant_cluster(kubeconfig, tenant, data_dir) as client:
        found = await tenant_pods.get_pod(client, namespace, pod)
        siblings = await tenant_pods.list_pods(client, namespace)
        beside = await tenant_pods.companion_objects(client, [found], among=siblings)
        unserved = await tenant_pods.unserved_kinds(client, found)
    state = await _gateway_state(data_dir, gateway) if tenant is not None else None
    explained = explanation.explain_pod(
        found, siblings, beside=beside, unserved=unserved, state=state, tenant=tenant or ""
    )
    if output == "table":
        for line in explanation_lines(explained):
            click.echo(line)
    else:
        click.echo(serialize(msgspec.to_builtins(explained), output=output), nl=False)


def explanation_lines(told: PodExplanation) -> Iterator[str]:
    """The text, line by line; what there is nothing to say of is left out."""
    facts = {
        "Pod": f"{told.namespace}/{told.name}",
        "State": told.state,
        "": told.summary,
        "Asks for": told.asks,
        "Band": told.band,
        "Node": told.node,
        "Gang": _format_gang(told),
        "Reason": told.code,
        "Message": told.message,
        "Place in line": f"{told.place} in {told.pool}" if told.place else "",
        "Expected start": told.expected,
        "Deleted at": told.deadline if told.state == "leaving" else "",
        "Holds": told.holds,
        "Kept for": told.behind,
        "Pool": told.room,
        "What helps": told.help,
    }
    for title, value in facts.items():
        if value:
            yield f"{title + ':' if title else '':<16}{value}"


def _format_gang(told: PodExplanation) -> str:
    gang = told.gang
    if gang is None:
        return ""
    minimum = f"at least {gang.minimum} start together; " if gang.minimum is not None else ""
    return f"{gang.name} ({gang.way}): {minimum}{gang.pods} there, {gang.waiting} waiting, {gang.running} running"


async def _gateway_state(data_dir: Path, gateway: GatewayEndpoint) -> ArbiterReport | None:
    """The gateway's word; without it the pods tell enough."""
    from vkgateway.cli import gateway_state
    from vkgateway.model.errors import UnavailableError

    try:
        return await gateway_state.get_state(data_dir, gateway)
    except UnavailableError as error:
        click.echo(f"Without the gateway's word: {error}", err=True)
        return None
