"""`kubectl vkgateway explain`: why a pod waits and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vkgateway.api.errors import InputError
from vkgateway.cli.output import output_option_of
from vkgateway.cli.plugin import values
from vkgateway.cli.plugin.options import target_options
from vkgateway.cli.plugin.target import Target, run_async

if TYPE_CHECKING:
    from vkgateway.cli.explanation import PodExplanation
    from vkgateway.cli.plugin.connection import Connection

EPILOG = """\b
Examples:
  kubectl vkgateway explain train-0 -n research
  kubectl vkgateway explain pod/train-0
  kubectl vkgateway explain train-0 -n research --context management --tenant alpha
"""
_POD_KINDS = ("pod", "pods", "po")


@click.command(short_help="Explain why a pod waits.", epilog=EPILOG)
@click.argument("pod", shell_complete=values.pods)
@click.option(
    "--tenant",
    metavar="NAME",
    shell_complete=values.tenants,
    help="In the management cluster: the tenant of the pod.",
)
@output_option_of("table", "json", "yaml")
@target_options
@run_async
async def explain(*, pod: str, tenant: str | None, output: str, target: Target) -> None:
    """Explain why POD waits, its position in the queue, and what helps.

    Reads only. In the management cluster, --tenant names the tenant. The command reads the pod with the admin
    kubeconfig of the tenant, and the gateway adds facts that the tenant cannot read.
    """
    from vkgateway.cli import tenant_pods
    from vkgateway.cli.explain import print_explanation
    from vkgateway.cli.plugin.connection import connect
    from vkgateway.cli.plugin.gateway import require_management

    name = pod_name(pod)
    async with connect(target) as connection:
        require_management(connection, tenant)
        if connection.kind == "management":
            found = await _explain_for_ops(connection, name, tenant)
        elif connection.namespace is None:
            raise InputError("a pod is in one namespace", hint="Give -n NAMESPACE instead of -A.")
        else:
            found = await tenant_pods.read_explanation(connection.client, connection.namespace, name)
    print_explanation(found, output=output)


def pod_name(argument: str) -> str:
    """Return the name in `NAME` or `pod/NAME`. Raises InputError for another kind."""
    kind, slash, name = argument.rpartition("/")
    if slash and kind.lower() not in _POD_KINDS:
        raise InputError(f"{argument!r} is not a pod", hint="Give the name of a pod, such as pod/train-0.")
    return name


async def _explain_for_ops(connection: Connection, name: str, tenant: str | None) -> PodExplanation:
    from vkgateway.cli import tenant_pods
    from vkgateway.cli.cluster import fetch_kubeconfig
    from vkgateway.cli.plugin.gateway import read_state_if_any

    if not tenant:
        raise InputError("this is the management cluster: no tenant is given", hint="Give --tenant NAME.")
    document = await fetch_kubeconfig(connection.client, tenant)
    state = await read_state_if_any(connection)
    async with tenant_pods.tenant_client(document, tenant) as client:
        with tenant_pods.tenant_errors(client, user=tenant):
            namespace = connection.given_namespace or "default"
            return await tenant_pods.read_explanation(client, namespace, name, state=state, tenant=tenant)
