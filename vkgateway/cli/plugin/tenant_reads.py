"""Reads of a tenant's cluster that fall back to what the user may read, and say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkgateway.cli import tenant_pods
from vkgateway.cli.plugin.connection import Connection
from vkgateway.cli.plugin.rights import RefusedRequestError, Right, read_user, refusal_hint, refusal_message
from vkgateway.kube.resources import NODES

if TYPE_CHECKING:
    from vkgateway.api.objects import Object


@dataclass(frozen=True, slots=True)
class PodList:
    """Pods, and the namespace to which they are limited; None: all namespaces. `refused` is the missing right."""

    pods: list[Object]
    namespace: str | None
    refused: Right | None = None


async def list_widest(connection: Connection) -> PodList:
    """Return the pods of all namespaces, or only those of `-n`, or of the context's if the user may not list all."""
    chosen = connection.given_namespace
    if chosen is not None:
        return PodList(await tenant_pods.list_pods(connection.client, chosen), chosen)
    try:
        return PodList(await tenant_pods.list_pods(connection.client), None)
    except RefusedRequestError as error:
        if connection.target.all_namespaces:
            raise
        namespace = connection.config.namespace
        return PodList(await tenant_pods.list_pods(connection.client, namespace), namespace, error.right)


async def list_nodes(connection: Connection) -> tuple[list[Object] | None, Right | None]:
    """Return the nodes; None, and the missing right, if the user may not list them."""
    import msgspec

    try:
        page = await connection.client.list_all(NODES)
    except RefusedRequestError as error:
        return None, error.right
    return [msgspec.json.decode(item) for item in page.items], None


async def refusal_note(connection: Connection, what: str, rights: list[Right]) -> str:
    """Return the note that something is left out, because the user lacks rights."""
    user = await read_user(connection.client)
    hint = refusal_hint(user, rights, options=connection.target.kubectl_options)
    return f"{what}: {refusal_message(user, rights, server=connection.client.server)}.\n       {hint}"
