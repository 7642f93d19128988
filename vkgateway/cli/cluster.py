"""The management cluster as the commands see it: connect, read Tenants and ComputeClusters, say plainly what fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, EVENTS, TENANTS, Resource
from vkgateway.model.api import ComputeCluster, Tenant
from vkgateway.model.errors import InputError, NotFoundError, UnavailableError

T = TypeVar("T")

RETRY_SECONDS = 10.0
"""How long a server may fail while somebody waits for a tenant."""
KUBECONFIG_HINT = "Name another one with --kubeconfig, or start a platform with `vkgateway up`."


class _EventMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = "0"

    @property
    def version_number(self) -> int:
        """Orders what was written within one second."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0


class Event(msgspec.Struct, rename="camel"):
    """What a Kubernetes event tells people."""

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
        """When it was seen last, RFC 3339; empty if the event does not say."""
        return self.last_timestamp or self.event_time or self.first_timestamp or ""


@contextlib.asynccontextmanager
async def management_cluster(data_dir: Path, kubeconfig: Path | None) -> AsyncIterator[Client]:
    """Connect to the cluster of `kubeconfig`, or of the platform in `data_dir`.

    Raises UnavailableError where the file points nowhere or the server behind it does not answer.
    """
    file = kubeconfig or data_dir / "compute.kubeconfig"
    if not file.exists():
        what = f"kubeconfig {file} does not exist"
        raise UnavailableError(what if kubeconfig else f"no platform in {data_dir}: {what}", hint=KUBECONFIG_HINT)
    try:
        client = Client.from_kubeconfig(file, name="the management cluster")
    except InputError as error:
        raise UnavailableError(
            f"kubeconfig {file} cannot be used: {error}", hint=error.hint or KUBECONFIG_HINT
        ) from error
    async with client:
        try:
            yield client
        except errors.Unreachable as error:
            why = str(error.__cause__ or error)
            message = f"the management cluster at {client.server} ({file}) does not answer: {why}"
            raise UnavailableError(message, hint=KUBECONFIG_HINT) from error
        except errors.Unauthorized as error:
            raise UnavailableError(
                f"the management cluster at {client.server} does not know the user of {file}"
            ) from error


async def list_tenants(client: Client) -> list[Tenant]:
    """Return all tenants by name."""
    return await _list_objects(client, TENANTS, Tenant)


async def list_compute_clusters(client: Client) -> list[ComputeCluster]:
    """Return all compute clusters by name."""
    return await _list_objects(client, COMPUTE_CLUSTERS, ComputeCluster)


async def get_tenant(client: Client, name: str) -> Tenant:
    """Return one tenant. Raises NotFoundError that lists those there are."""
    try:
        return msgspec.json.decode(await client.get(TENANTS, name), type=Tenant)
    except errors.NotFound as error:
        there = [found.metadata.name for found in await list_tenants(client)]
        raise NotFoundError(f"there is no tenant {name!r}", hint=_available_hint(there, "tenant create")) from error


async def get_tenant_with_retry(client: Client, name: str, *, patience: float = RETRY_SECONDS) -> Tenant:
    """Return one tenant that is waited for: a server that fails is asked again, for `patience` seconds.

    etcd, for one, refuses what is under way while a user is made, and an older API server passes that on.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return await get_tenant(client, name)
        except errors.ServerError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.2)


async def get_compute_cluster(client: Client, name: str) -> ComputeCluster:
    """Return one compute cluster. Raises NotFoundError that lists those there are."""
    try:
        return msgspec.json.decode(await client.get(COMPUTE_CLUSTERS, name), type=ComputeCluster)
    except errors.NotFound as error:
        there = [found.metadata.name for found in await list_compute_clusters(client)]
        raise NotFoundError(f"there is no compute cluster {name!r}", hint=_available_hint(there, "up")) from error


async def list_events(client: Client, *, kind: str, name: str) -> list[Event]:
    """Return what happened to a cluster-scoped object, oldest first; such events live in namespace default."""
    selector = f"involvedObject.kind={kind},involvedObject.name={name}"
    page = await client.list_all(EVENTS, namespace="default", field_selector=selector)
    found = [msgspec.json.decode(item, type=Event) for item in page.items]
    return sorted(found, key=lambda event: (event.last_seen, event.metadata.version_number))


async def _list_objects(client: Client, resource: Resource, kind: type[T]) -> list[T]:
    try:
        page = await client.list_all(resource)
    except errors.NotFound as error:
        raise UnavailableError(
            f"the management cluster at {client.server} does not know {resource.plural}",
            hint="Install the definitions with `vkgateway up`, or start `vkgateway serve` there once.",
        ) from error
    return [msgspec.json.decode(item, type=kind) for item in page.items]


def _available_hint(names: list[str], command: str) -> str:
    return f"There are: {', '.join(names)}" if names else f"There are none; see `vkgateway {command} --help`."
