"""Access of the commands to the management cluster, with errors for people."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from vkgateway.api.errors import InputError, NotFoundError, UnavailableError
from vkgateway.api.names import GROUP, POOL_LABEL, SYSTEM_NAMESPACE, tenant_secret_name
from vkgateway.api.types import ComputeCluster, Tenant
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.kubeconfig import Document, has_service_account
from vkgateway.kube.resources import COMPUTE_CLUSTERS, EVENTS, NODES, SECRETS, TENANTS, Resource

T = TypeVar("T")

RETRY_SECONDS = 10.0
"""How long a command retries server errors while it waits for a tenant."""
KUBECONFIG_HINT = "Set --kubeconfig, or start an embedded platform with `vkgateway up`."


class _EventMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = "0"

    @property
    def version_number(self) -> int:
        """Number that orders events of the same second."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0


class Event(msgspec.Struct, rename="camel"):
    """Kubernetes event."""

    metadata: _EventMetadata = msgspec.field(default_factory=_EventMetadata)
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def last_seen(self) -> str:
        """Time of the last occurrence, RFC 3339; empty if unknown."""
        return self.last_timestamp or self.event_time or self.first_timestamp or ""


@contextlib.asynccontextmanager
async def management_cluster(data_dir: Path, kubeconfig: Path | None) -> AsyncIterator[Client]:
    """Connect to the cluster of `kubeconfig`, of the platform in `data_dir`, or of this process' pod.

    Raises UnavailableError if the file does not exist, is not usable, or its server is unreachable.
    """
    file = kubeconfig or data_dir / "compute.kubeconfig"
    client = _connect_cluster(file, is_given=kubeconfig is not None)
    origin = file if file.exists() else "the pod's service account"
    async with client:
        try:
            yield client
        except errors.Unreachable as error:
            why = str(error.__cause__ or error)
            message = f"the management cluster at {client.server} ({origin}) is unreachable: {why}"
            raise UnavailableError(message, hint=KUBECONFIG_HINT) from error
        except errors.Unauthorized as error:
            raise UnavailableError(
                f"the management cluster at {client.server} rejects the credentials in {origin}"
            ) from error


def _connect_cluster(file: Path, *, is_given: bool) -> Client:
    name = "the management cluster"
    if not file.exists():
        if not is_given and has_service_account():
            return Client.in_cluster(name=name)
        what = f"kubeconfig {file} does not exist"
        raise UnavailableError(what if is_given else f"no platform in {file.parent}: {what}", hint=KUBECONFIG_HINT)
    try:
        return Client.from_kubeconfig(file, name=name)
    except InputError as error:
        raise UnavailableError(
            f"kubeconfig {file} is not usable: {error}", hint=error.hint or KUBECONFIG_HINT
        ) from error


async def require_tenant(client: Client) -> None:
    """Raise InputError if a cluster is the management cluster instead of a tenant's."""
    try:
        await client.request("GET", f"/apis/{GROUP}", timeout=10)
    except errors.ApiError:
        return
    raise InputError(
        f"the cluster at {client.server} is the management cluster, not a tenant's",
        hint="Give the kubeconfig of a tenant (`vkgateway tenant kubeconfig NAME -f FILE`), or --tenant NAME instead.",
    )


async def _is_tenant(client: Client) -> bool:
    """Return whether a cluster has virtual nodes, as far as the user may see."""
    try:
        page = await client.list_all(NODES, label_selector=POOL_LABEL)
    except errors.ApiError:
        return False
    return bool(page.items)


async def list_tenants(client: Client) -> list[Tenant]:
    """Return all tenants."""
    return await _list_objects(client, TENANTS, Tenant)


async def list_compute_clusters(client: Client) -> list[ComputeCluster]:
    """Return all compute clusters."""
    return await _list_objects(client, COMPUTE_CLUSTERS, ComputeCluster)


async def get_tenant(client: Client, name: str) -> Tenant:
    """Return one tenant. Raises NotFoundError that lists the existing tenants."""
    try:
        return msgspec.json.decode(await client.get(TENANTS, name), type=Tenant)
    except errors.NotFound:
        return pick_tenant(name, await list_tenants(client))


def pick_tenant(name: str, tenants: Sequence[Tenant]) -> Tenant:
    """Return one of the tenants. Raises NotFoundError that lists the existing tenants."""
    for tenant in tenants:
        if tenant.metadata.name == name:
            return tenant
    names = [tenant.metadata.name for tenant in tenants]
    hint = _available_hint("tenants", names, "Create one with `vkgateway tenant create NAME`.")
    raise NotFoundError(f"tenant {name!r} does not exist", hint=hint)


async def get_tenant_with_retry(client: Client, name: str) -> Tenant:
    """Return one tenant, retrying server errors for `RETRY_SECONDS`.

    For example, etcd rejects requests while a user is created, and older API servers return this error.
    """
    until = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return await get_tenant(client, name)
        except errors.ServerError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.2)


async def get_compute_cluster(client: Client, name: str) -> ComputeCluster:
    """Return one compute cluster. Raises NotFoundError that lists the existing clusters."""
    try:
        return msgspec.json.decode(await client.get(COMPUTE_CLUSTERS, name), type=ComputeCluster)
    except errors.NotFound as error:
        names = [compute.metadata.name for compute in await list_compute_clusters(client)]
        hint = _available_hint("compute clusters", names, "Apply a ComputeCluster object to attach one.")
        raise NotFoundError(f"compute cluster {name!r} does not exist", hint=hint) from error


async def list_events(client: Client, *, kind: str, uid: str) -> list[Event]:
    """Return the events of a cluster-scoped object (in the namespace default), oldest first.

    Those of an earlier object of the same name are not among them.
    """
    selector = f"involvedObject.kind={kind},involvedObject.uid={uid}"
    page = await client.list_all(EVENTS, namespace="default", field_selector=selector)
    found = [msgspec.json.decode(item, type=Event) for item in page.items]
    return sorted(found, key=lambda event: (event.last_seen, event.metadata.version_number))


async def _list_objects(client: Client, resource: Resource, kind: type[T]) -> list[T]:
    try:
        page = await client.list_all(resource)
    except errors.NotFound as error:
        if await _is_tenant(client):
            raise InputError(
                f"the cluster at {client.server} is a tenant's, and has no {resource.plural}",
                hint="Give the kubeconfig of the management cluster with --kubeconfig or VKGATEWAY_KUBECONFIG. "
                "`vkgateway queue`, `explain` and `ui` read a tenant's cluster.",
            ) from error
        raise UnavailableError(
            f"the management cluster at {client.server} does not serve {resource.plural}",
            hint="Install the CustomResourceDefinitions with `vkgateway up`, or run `vkgateway serve` once.",
        ) from error
    return [msgspec.json.decode(item, type=kind) for item in page.items]


def _available_hint(kind: str, names: list[str], way_out: str) -> str:
    return f"Available {kind}: {', '.join(names)}." if names else f"There are no {kind}. {way_out}"


async def fetch_kubeconfig(client: Client, name: str) -> Document:
    """Return the tenant's kubeconfig from its Secret.

    Raises NotFoundError for an unknown tenant, UnavailableError if it has no kubeconfig yet.
    """
    await get_tenant(client, name)
    not_yet = UnavailableError(
        f"tenant {name!r} has no kubeconfig yet: its control plane is being created",
        hint=f"Check it with `vkgateway tenant describe {name}`.",
    )
    try:
        answer = await client.get(SECRETS, tenant_secret_name(name), namespace=SYSTEM_NAMESPACE)
    except errors.NotFound as error:
        raise not_yet from error
    data = msgspec.json.decode(answer).get("data") or {}
    if "kubeconfig" not in data:
        raise not_yet
    return kubeconfig.parse(base64.b64decode(data["kubeconfig"]).decode(), where=f"of tenant {name}")
