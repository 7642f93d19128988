"""A tenant's own pods as the commands read them, with the tenant's kubeconfig; nothing is ever written."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vkgateway.model.errors import InputError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from vkgateway.kube.client import Client
    from vkgateway.model.objects import Object
    from vkgateway.translate.gangs import Kind, Reference


@contextlib.asynccontextmanager
async def tenant_cluster(kubeconfig: Path | None, tenant: str | None, data_dir: Path) -> AsyncIterator[Client]:
    """Connect to the tenant of a kubeconfig, or to one by name with the platform's help.

    Raises:
        InputError: neither is given, or the file cannot be used.
        NotFoundError: there is no tenant of that name.
        UnavailableError: it does not answer, or does not let the user of the file in.
    """
    from vkgateway.kube import errors

    async with await _connect_tenant(kubeconfig, tenant, data_dir) as client:
        try:
            yield client
        except errors.Unreachable as error:
            why = str(error.__cause__ or error)
            raise UnavailableError(f"the tenant's API server at {client.server} does not answer: {why}") from error
        except errors.Unauthorized as error:
            message = f"the tenant's API server at {client.server} does not know the user of {kubeconfig or tenant}"
            raise UnavailableError(message) from error
        except errors.Forbidden as error:
            message = f"the user of {kubeconfig or tenant} may not read pods there: {error.message}"
            raise UnavailableError(message, hint="Name a namespace in which it may with -n NAMESPACE.") from error


async def _connect_tenant(kubeconfig: Path | None, tenant: str | None, data_dir: Path) -> Client:
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_kubeconfig import fetch_kubeconfig
    from vkgateway.kube.client import Client
    from vkgateway.kube.kubeconfig import Kubeconfig

    if kubeconfig is not None:
        return Client.from_kubeconfig(kubeconfig, name="the tenant")
    if not tenant:
        raise InputError("no tenant named", hint="Name it with --tenant, or its kubeconfig with --kubeconfig FILE.")
    async with cluster.management_cluster(data_dir, None) as management:
        document = await fetch_kubeconfig(management, tenant)
    connection = Kubeconfig(document=document, path=data_dir).client_config()
    return Client(
        connection.server,
        ssl=connection.ssl_context(),
        token=connection.token_source(),
        name=f"tenant {tenant}",
        server_hostname=connection.tls_server_name or None,
    )


async def list_pods(client: Client, namespace: str | None = None, *, phase: str = "") -> list[Object]:
    """All pods, of one namespace or all of them; `phase`: those alone that are in it."""
    import msgspec

    from vkgateway.kube.resources import PODS

    found: list[Object] = []
    selector = f"status.phase={phase}" if phase else ""
    async for page in client.list_pages(PODS, namespace=namespace, field_selector=selector):
        found += [msgspec.json.decode(item) for item in page.items]
    return found


async def get_pod(client: Client, namespace: str, name: str) -> Object:
    """One pod. Raises NotFoundError."""
    import msgspec

    from vkgateway.kube import errors
    from vkgateway.kube.resources import PODS

    try:
        answer = await client.get(PODS, name, namespace=namespace)
    except errors.NotFound as error:
        message = f"there is no pod {name!r} in namespace {namespace!r}"
        raise NotFoundError(message, hint="Name its namespace with -n NAMESPACE.") from error
    found: Object = msgspec.json.decode(answer)
    return found


async def companion_objects(
    client: Client, pods: Iterable[Object], *, among: Iterable[Object] = ()
) -> dict[Reference, Object]:
    """The objects that say more about the gangs of these pods, as far as they are there and may be read.

    Of the pods that these are `among`, those count that refer to the same objects: they may be of the same gangs.
    """
    import msgspec

    from vkgateway.kube import errors
    from vkgateway.kube.apply import Discovery
    from vkgateway.sync.admission.kinds import find_kind
    from vkgateway.translate.gangs import gang_references

    discovery = Discovery(client)
    found: dict[Reference, Object] = {}
    own = dict.fromkeys(reference for pod in pods for reference in gang_references(pod))
    others = (gang_references(pod) for pod in among if own)
    theirs = (reference for refers in others if not own.keys().isdisjoint(refers) for reference in refers)
    for reference in own | dict.fromkeys(theirs):
        with contextlib.suppress(errors.NotFound, errors.Forbidden, msgspec.DecodeError):
            kind = await find_kind(reference.object_kind, client, discovery)
            if kind is not None:
                answer = await client.get(kind, reference.name, namespace=reference.namespace)
                found[reference] = msgspec.json.decode(answer)
    return found


async def unserved_kinds(client: Client, pod: Object) -> frozenset[Kind]:
    """The kinds that a pod's marks of a gang need and that the tenant's API server does not serve, as far as it tells
    the user."""
    import msgspec

    from vkgateway.kube import errors
    from vkgateway.sync.admission.kinds import served_kind
    from vkgateway.translate.gangs.mark_detection import mark_kinds

    found = set()
    for kind in mark_kinds(pod):
        with contextlib.suppress(errors.NotFound, errors.Forbidden, errors.ServerError, msgspec.DecodeError):
            if await served_kind(kind, client) is None:
                found.add(kind)
    return frozenset(found)
