"""Read access of the commands to a tenant's pods and companion objects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vkgateway.api.errors import InputError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from vkgateway.api.objects import Object
    from vkgateway.cli.explanation import PodExplanation
    from vkgateway.cli.pending_gangs import PendingGang
    from vkgateway.kube.client import Client
    from vkgateway.kube.kubeconfig import Document
    from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
    from vkgateway.scheduler.gangs import Kind, Reference


@contextlib.asynccontextmanager
async def tenant_cluster(
    kubeconfig: Path | None, tenant: str | None, data_dir: Path, *, management: Path | None = None
) -> AsyncIterator[Client]:
    """Connect to the tenant of a kubeconfig, or to a tenant by name through the management cluster.

    `management` is the kubeconfig of the management cluster; by default that of the platform in `data_dir`.

    Raises:
        InputError: neither is given, the file is not usable, or it is that of the management cluster.
        NotFoundError: the tenant does not exist.
        UnavailableError: the tenant's API server is unreachable or refuses the user.
    """
    from vkgateway.cli.cluster import require_tenant

    async with await _connect_tenant(kubeconfig, tenant, data_dir, management) as client:
        with tenant_errors(client, user=str(kubeconfig or tenant)):
            if kubeconfig is not None:
                await require_tenant(client)
            yield client


@contextlib.contextmanager
def tenant_errors(client: Client, *, user: str) -> Iterator[None]:
    """Convert errors of the tenant's API server to UnavailableError. `user` names whose credentials the client has."""
    from vkgateway.kube import errors

    try:
        yield
    except errors.Unreachable as error:
        why = str(error.__cause__ or error)
        raise UnavailableError(f"the tenant's API server at {client.server} is unreachable: {why}") from error
    except errors.Unauthorized as error:
        message = f"the tenant's API server at {client.server} rejects the credentials of {user}"
        raise UnavailableError(message) from error
    except errors.Forbidden as error:
        message = f"the user of {user} may not read pods: {error.message}"
        raise UnavailableError(message, hint="Select a readable namespace with -n NAMESPACE.") from error


async def _connect_tenant(
    kubeconfig: Path | None, tenant: str | None, data_dir: Path, management_kubeconfig: Path | None
) -> Client:
    from vkgateway.cli import cluster
    from vkgateway.cli.cluster import fetch_kubeconfig
    from vkgateway.kube.client import Client

    if kubeconfig is not None:
        return Client.from_kubeconfig(kubeconfig, name="the tenant")
    if not tenant:
        raise InputError("no tenant given", hint="Give --tenant NAME or --kubeconfig FILE.")
    async with cluster.management_cluster(data_dir, management_kubeconfig) as management:
        document = await fetch_kubeconfig(management, tenant)
    return tenant_client(document, tenant)


def tenant_client(document: Document, tenant: str) -> Client:
    """Return a client for the current context of a tenant's kubeconfig."""
    from vkgateway.kube.client import Client
    from vkgateway.kube.kubeconfig import Kubeconfig

    connection = Kubeconfig(document=document, path=Path()).client_config()
    return Client(
        connection.server,
        ssl=connection.ssl_context(),
        token=connection.token_source(),
        name=f"tenant {tenant}",
        server_hostname=connection.tls_server_name or None,
    )


async def list_pods(client: Client, namespace: str | None = None, *, phase: str = "") -> list[Object]:
    """Return the pods of one namespace or of all, optionally only those in `phase`."""
    import msgspec

    from vkgateway.kube.resources import PODS

    found: list[Object] = []
    selector = f"status.phase={phase}" if phase else ""
    async for page in client.list_pages(PODS, namespace=namespace, field_selector=selector):
        found += [msgspec.json.decode(item) for item in page.items]
    return found


async def get_pod(client: Client, namespace: str, name: str) -> Object:
    """Return one pod. Raises NotFoundError."""
    import msgspec

    from vkgateway.kube import errors
    from vkgateway.kube.resources import PODS

    try:
        answer = await client.get(PODS, name, namespace=namespace)
    except errors.NotFound as error:
        message = f"pod {name!r} does not exist in namespace {namespace!r}"
        raise NotFoundError(message, hint="Select the pod's namespace with -n NAMESPACE.") from error
    found: Object = msgspec.json.decode(answer)
    return found


async def list_events(client: Client, pod: Object) -> list[Object]:
    """Return the events about a pod; none if the user may not list events."""
    import msgspec

    from vkgateway.kube import errors
    from vkgateway.kube.resources import EVENTS

    metadata = pod["metadata"]
    found: list[Object] = []
    with contextlib.suppress(errors.Forbidden):
        pages = client.list_pages(
            EVENTS, namespace=metadata["namespace"], field_selector=f"involvedObject.uid={metadata['uid']}"
        )
        async for page in pages:
            found += [msgspec.json.decode(item) for item in page.items]
    return found


async def companion_objects(
    client: Client, pods: Iterable[Object], *, among: Iterable[Object] = ()
) -> dict[Reference, Object]:
    """Return the companion objects of these pods' gangs, except missing and unreadable ones.

    Pods in `among` that refer to the same objects are included: they may belong to the same gangs.
    """
    import msgspec

    from vkgateway.kube import errors
    from vkgateway.kube.apply import Discovery
    from vkgateway.scheduler.gangs import gang_references
    from vkgateway.scheduler.service.companion_objects import find_kind

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
    """Return the kinds that a pod's gang marks need and that the tenant's API server does not serve.

    Kinds that the user may not discover are left out.
    """
    import msgspec

    from vkgateway.kube import errors
    from vkgateway.scheduler.gangs.mark_detection import mark_kinds
    from vkgateway.scheduler.service.companion_objects import served_kind

    found = set()
    for kind in mark_kinds(pod):
        with contextlib.suppress(errors.NotFound, errors.Forbidden, errors.ServerError, msgspec.DecodeError):
            if await served_kind(kind, client) is None:
                found.add(kind)
    return frozenset(found)


async def read_pending_gangs(client: Client, namespace: str | None, *, pool: str = "") -> list[PendingGang]:
    """Return the pending gangs of a tenant, in one namespace or in all."""
    from vkgateway.cli import pending_gangs

    pods = await list_pods(client, namespace, phase="Pending")
    for gang_namespace in sorted(pending_gangs.namespaces_with_gangs(pods)):
        pods += await list_pods(client, gang_namespace, phase="Running")
    waiting = (pod for pod in pods if pending_gangs.pending_condition(pod) is not None)
    companions = await companion_objects(client, waiting, among=pods)
    return pending_gangs.pending_from_pods(pods, companions=companions, pool=pool)


async def read_explanation(
    client: Client, namespace: str, name: str, *, state: ArbiterReport | None = None, tenant: str = ""
) -> PodExplanation:
    """Return the explanation of a pod; `state` and `tenant` add facts for admins. Raises NotFoundError."""
    from vkgateway.cli import explanation, start_times

    pod = await get_pod(client, namespace, name)
    siblings = await list_pods(client, namespace)
    companions = await companion_objects(client, [pod], among=siblings)
    unserved = await unserved_kinds(client, pod)
    start = start_times.describe_start(pod, await list_events(client, pod), now=time.time())
    return explanation.explain_pod(
        pod, siblings, companions=companions, unserved=unserved, state=state, tenant=tenant, start=start
    )
