"""Connection to the cluster of the chosen context: a tenant's cluster or the management cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.api.names import POOL_LABEL
from vkgateway.cli.plugin.rights import (
    RefusedRequestError,
    Right,
    missing_rights,
    read_user,
    refusal_hint,
    refusal_message,
    right_of_request,
)
from vkgateway.cli.plugin.target import Target
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.kubeconfig import ClientConfig
from vkgateway.kube.kubectl_config import ConfigChoice, load_client_config
from vkgateway.kube.resources import NODES, TENANTS

FIRST_ANSWER_SECONDS: Final = 2.0
"""How long the first request may take, unless the user sets --request-timeout."""
_NO_LIMIT: Final = 86_400.0
_SERVER_HINT: Final = "Check the server and the certificate authority of the context: kubectl config view --minify."
_TIMEOUT_HINT: Final = "If the server is slow, set a longer --request-timeout, such as 30s."

Kind = Literal["tenant", "management"]


class CommandClient(Client):
    """Client of a command for people: it reports a silent server and a missing right at once.

    A request may take `limit` seconds. Without a limit, only the first answer must arrive within
    `FIRST_ANSWER_SECONDS`. A refused request raises RefusedRequestError.
    """

    def __init__(self, server: str, *, limit: float | None = None, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._limit = limit
        self._has_answered = False

    async def request(self, method: str, path: str, *, timeout: float = 30, **given: Any) -> bytes:
        """See Transport.request."""
        if self._limit is not None:
            timeout = self._limit or _NO_LIMIT
        elif not self._has_answered:
            timeout = min(timeout, FIRST_ANSWER_SECONDS)
        try:
            answer = await super().request(method, path, timeout=timeout, **given)
        except errors.Forbidden as error:
            self._has_answered = True
            raise RefusedRequestError(right_of_request(method, path, given.get("params")), error) from error
        except errors.Unreachable:
            raise
        except errors.ApiError:
            self._has_answered = True
            raise
        self._has_answered = True
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Client of a recognized cluster, with the context's namespace and what the options say."""

    client: Client
    kind: Kind
    config: ClientConfig
    target: Target

    @property
    def namespace(self) -> str | None:
        """The namespace of `-n`, or else of the context. None: all, with `-A`."""
        return None if self.target.all_namespaces else self.target.namespace or self.config.namespace

    @property
    def given_namespace(self) -> str | None:
        """The namespace of `-n`; None without the option: the context has no namespace for the question."""
        return None if self.target.all_namespaces else self.target.namespace or None


@contextlib.asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[tuple[Client, ClientConfig]]:
    """Yield a client of the chosen context, and its configuration. Raises InputError for an unusable kubeconfig."""
    config = load_client_config(
        ConfigChoice(kubeconfig=target.kubeconfig, context=target.context, cluster=target.cluster, user=target.user)
    )
    client = CommandClient(
        config.server,
        limit=target.request_timeout,
        ssl=config.ssl_context(),
        token=config.token_source(),
        name=config.server,
        server_hostname=config.tls_server_name or None,
    )
    async with client:
        yield client, config


@contextlib.asynccontextmanager
async def connect(target: Target, *, needs: Sequence[Right] = ()) -> AsyncIterator[Connection]:
    """Yield a connection to the chosen cluster, whose kind is recognized.

    `needs` are rights of the command: if a request is refused, the error names all of them that the user lacks.

    Raises:
        InputError: the kubeconfig is not usable, or the cluster has nothing of vkgateway.
        UnavailableError: the server does not answer, rejects the credentials, or refuses a request.
    """
    if target.all_namespaces and target.namespace:
        raise InputError("-n and -A exclude each other", hint="Give one of them.")
    async with open_client(target) as (client, config):
        with cluster_errors(client, config):
            try:
                yield Connection(client=client, kind=await recognize(client), config=config, target=target)
            except RefusedRequestError as error:
                raise await missing_right_error(client, target, error.right, needs) from error


@contextlib.contextmanager
def cluster_errors(client: Client, config: ClientConfig) -> Iterator[None]:
    """Convert errors of the API server to UnavailableError, with the way out."""
    try:
        yield
    except errors.Unreachable as error:
        hint = error.hint or (_TIMEOUT_HINT if isinstance(error.__cause__, TimeoutError) else _SERVER_HINT)
        where = f"the cluster at {client.server} (context {config.context!r})"
        raise UnavailableError(f"{where} does not answer: {_reason(error)}", hint=hint) from error
    except errors.Unauthorized as error:
        raise UnavailableError(
            f"the cluster at {client.server} rejects the credentials of context {config.context!r}",
            hint="Sign in again, or select another context with --context.",
        ) from error


def _reason(error: errors.Unreachable) -> str:
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return str(cause) if cause is not None and str(cause) else error.message


async def missing_right_error(
    client: Client, target: Target, refused: Right, needs: Sequence[Right] = ()
) -> UnavailableError:
    """Return the error for a refused request: user, all missing rights of `needs`, and how to get them."""
    user, lacking = await asyncio.gather(read_user(client), missing_rights(client, needs))
    rights = list(dict.fromkeys([refused, *lacking]))
    return UnavailableError(
        refusal_message(user, rights, server=client.server),
        hint=refusal_hint(user, rights, options=target.kubectl_options),
    )


async def recognize(client: Client) -> Kind:
    """Return what the cluster is, from what it has.

    The management cluster serves Tenants. A tenant's cluster has no nodes but virtual ones; a user who may not list
    nodes is one of a tenant. Raises InputError for another cluster.
    """
    (is_management, is_tenant) = await asyncio.gather(_serves_tenants(client), _has_only_virtual_nodes(client))
    if is_management:
        return "management"
    if is_tenant:
        return "tenant"
    raise InputError(
        f"the cluster at {client.server} is neither a tenant's cluster nor the management cluster of vkgateway: "
        f"it has no virtual nodes (label {POOL_LABEL}) and serves no tenants.vkgateway.io",
        hint="Select another cluster with --context NAME or --kubeconfig FILE.",
    )


async def _serves_tenants(client: Client) -> bool:
    try:
        await client.request("GET", f"/{TENANTS.prefix}")
    except (errors.NotFound, errors.Forbidden):
        return False
    return True


async def _has_only_virtual_nodes(client: Client) -> bool:
    """Return whether the cluster has virtual nodes, or no nodes at all, or does not show its nodes to the user."""
    try:
        if await _has_node(client, label_selector=POOL_LABEL):
            return True
        return not await _has_node(client)
    except errors.Forbidden:
        return True


async def _has_node(client: Client, *, label_selector: str = "") -> bool:
    async for page in client.list_pages(NODES, label_selector=label_selector, limit=1):
        return bool(page.items)
    return False


def local_data_dir(config: ClientConfig) -> Path | None:
    """Return the data directory of the platform on this machine if the cluster is its management cluster."""
    import os

    from vkgateway.cli.gateway_state import has_gateway_settings
    from vkgateway.cli.options import DATA_DIR_VARIABLE, default_data_dir
    from vkgateway.kube import kubeconfig

    try:
        folder = Path(os.environ.get(DATA_DIR_VARIABLE, "") or default_data_dir()).expanduser().resolve()
        file = folder / "compute.kubeconfig"
        if not has_gateway_settings(folder) or not os.access(file, os.R_OK):
            return None
        return folder if kubeconfig.load(file).client_config().is_same_server(config) else None
    except (InputError, OSError, RuntimeError):
        return None
