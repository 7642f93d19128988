"""Connection to a gateway that runs as a pod, through the API server of its cluster.

The pod is the one that holds the gateway's Lease. The command authenticates to it as the service account
`vkgateway-state-reader`, with a token for a few minutes. So the gateway never sees the user's own credentials.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.cli import cluster
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.port_forward import PortForward
from vkgateway.kube.resources import LEASES, PODS

LEASE_NAME: Final = "gateway"
READER_ACCOUNT: Final = "vkgateway-state-reader"
_TOKEN_SECONDS: Final = 600
"""The shortest lifetime that API servers allow."""
STATE_PORT: Final = "metrics"
"""Name of the container port of metrics and state."""
PAGE_PORT: Final = "page"
_SETTINGS: Final = {STATE_PORT: "observability.securePort", PAGE_PORT: "page.port"}
_RBAC_HINT: Final = "The user needs the Role vkgateway-state-reader; see deploy/rbac/state-reader.yaml."


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None


class _Lease(msgspec.Struct):
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    ports: list[_Port] = []


class _PodSpec(msgspec.Struct):
    containers: list[_Container] = []


class _Pod(msgspec.Struct):
    spec: _PodSpec


@dataclass(frozen=True, slots=True)
class ForwardedGateway:
    """Loopback URL of the gateway's HTTPS port, and a token for it."""

    url: str
    token: str
    forward: PortForward


@contextlib.asynccontextmanager
async def forward_gateway(
    kubeconfig: Path | None, data_dir: Path, *, port: str = STATE_PORT, token_seconds: int = _TOKEN_SECONDS
) -> AsyncIterator[ForwardedGateway]:
    """Forward a loopback port to a named port of the gateway's pod in the management cluster.

    Raises UnavailableError if no pod holds the gateway's Lease, or the user may not reach it.
    """
    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        try:
            async with forward_from(client, port=port, token_seconds=token_seconds) as forwarded:
                yield forwarded
        except errors.Forbidden as error:
            raise UnavailableError(str(error), hint=_RBAC_HINT) from error


@contextlib.asynccontextmanager
async def forward_from(
    client: Client, *, port: str = STATE_PORT, token_seconds: int = _TOKEN_SECONDS
) -> AsyncIterator[ForwardedGateway]:
    """Forward a loopback port to a named port of the gateway's pod in the cluster of a client.

    Raises UnavailableError if no pod holds the gateway's Lease, Forbidden if the user may not reach it.
    """
    pod = await _leading_pod(client)
    found = await _container_port(client, pod, port)
    token = await reader_token(client, seconds=token_seconds)
    forward = PortForward(client, pod, namespace=SYSTEM_NAMESPACE, port=found)
    async with forward.listen() as local_port:
        yield ForwardedGateway(f"https://127.0.0.1:{local_port}", token, forward)


async def _leading_pod(client: Client) -> str:
    """Return the name of the pod that holds the gateway's Lease."""
    try:
        answer = await client.get(LEASES, LEASE_NAME, namespace=SYSTEM_NAMESPACE)
    except errors.NotFound as error:
        raise UnavailableError(
            f"no gateway has served the cluster at {client.server}",
            hint="Check that the kubeconfig is that of the management cluster.",
        ) from error
    holder = msgspec.json.decode(answer, type=_Lease).spec.holder_identity or ""
    if not holder:
        raise UnavailableError(
            f"no gateway serves the cluster at {client.server} now",
            hint=f"Check its pods: kubectl get pods --namespace {SYSTEM_NAMESPACE}",
        )
    return holder.partition("/")[0]


async def _container_port(client: Client, pod: str, name: str) -> int:
    """Return a named container port of the gateway's pod."""
    try:
        answer = await client.get(PODS, pod, namespace=SYSTEM_NAMESPACE)
    except errors.NotFound as error:
        raise UnavailableError(
            f"the gateway runs at {pod!r}, which is not a pod in the namespace {SYSTEM_NAMESPACE}",
            hint="Run the command on that machine, or set --gateway URL.",
        ) from error
    containers = msgspec.json.decode(answer, type=_Pod).spec.containers
    ports = [port.container_port for container in containers for port in container.ports if port.name == name]
    if not ports:
        raise UnavailableError(
            f"pod {pod} has no container port named {name!r}",
            hint=f"Name the gateway's {_SETTINGS[name]} so in the pod.",
        )
    return ports[0]


async def reader_token(client: Client, *, seconds: int) -> str:
    """Return a token of the service account that may read the gateway's state. Raises UnavailableError, Forbidden."""
    hint = "Apply deploy/rbac/state-reader.yaml, or upgrade the chart."
    return await request_token(client, READER_ACCOUNT, namespace=SYSTEM_NAMESPACE, seconds=seconds, hint=hint)


class _TokenStatus(msgspec.Struct):
    token: str


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus


async def request_token(client: Client, account: str, *, namespace: str, seconds: int, hint: str) -> str:
    """Return a token of a service account that is valid for this many seconds.

    Raises:
        UnavailableError: the account does not exist; `hint` is the way out.
        Forbidden: the user may not create tokens of it.
    """
    from vkgateway.kube import errors
    from vkgateway.kube.resources import SERVICE_ACCOUNTS

    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    try:
        answer = await client.create(SERVICE_ACCOUNTS, request, namespace=namespace, name=account, subresource="token")
    except errors.NotFound as error:
        raise UnavailableError(f"service account {namespace}/{account} does not exist", hint=hint) from error
    return msgspec.json.decode(answer, type=_TokenRequest).status.token
