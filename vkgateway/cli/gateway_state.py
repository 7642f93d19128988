"""Queries of the running gateway: settings, state of pools, tenants and gangs, usage, and what-if answers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from vkgateway.api.errors import ConflictError, InputError, NotFoundError, UnavailableError, VkgatewayError
from vkgateway.cli.options import KUBECONFIG_VARIABLE

if TYPE_CHECKING:
    from aiohttp import BaseConnector

    from vkgateway.cli.cluster_gateway import ForwardedGateway
    from vkgateway.kube.client import Client
    from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
    from vkgateway.scheduler.core.whatif.answers import Answer
    from vkgateway.scheduler.core.whatif.questions import Question
    from vkgateway.settings.config import Config
    from vkgateway.tenants.usage.budgets import UsageReport

F = TypeVar("F", bound=Callable[..., Any])

_STATE_TIMEOUT: Final = 30.0
"""Timeout of a state request in seconds."""
_WHAT_IF_TIMEOUT: Final = 180.0
"""Timeout of a what-if question in seconds: the gateway answers questions one at a time."""
_SETTINGS_FILE: Final = "gateway.yaml"
_NO_GATEWAY_HINT: Final = (
    "Start an embedded platform with `vkgateway up`, or set --gateway-kubeconfig FILE for a gateway in a cluster."
)
_FORWARD_HINT: Final = "Check the pod with kubectl; the user needs the Role vkgateway-state-reader."
_VERSION_HINT: Final = "The gateway may have another version. Restart it with `vkgateway up`."
_REFUSED_STATUS: Final = 422
_UNAVAILABLE_STATUS: Final = 503
_STANDBY_HINT: Final = "Only the leading gateway answers. Ask again, or use --gateway-kubeconfig, which finds it."
_UNIX_SCHEME: Final = "unix://"
_HTTPS_SCHEME: Final = "https://"


@dataclass(frozen=True, slots=True)
class GatewayEndpoint:
    """Address of the gateway from the options; by default the Unix socket in the data directory."""

    url: str | None = None
    token_file: Path | None = None
    ca: Path | None = None
    kubeconfig: Path | None = None
    """Kubeconfig of the management cluster in which the gateway runs as a pod."""
    client: Client | None = None
    """Client of this cluster, instead of its kubeconfig."""

    def cluster_kubeconfig(self, data_dir: Path) -> Path | None:
        """Return the kubeconfig through which to reach the gateway; None if a URL or the socket leads to it.

        The environment counts only if the data directory has no settings of a gateway.
        """
        if self.url is not None or self.kubeconfig is not None:
            return None if self.url is not None else self.kubeconfig
        from_environment = os.environ.get(KUBECONFIG_VARIABLE, "")
        return Path(from_environment) if from_environment and not has_gateway_settings(data_dir) else None

    def or_cluster(self, data_dir: Path, kubeconfig: Path | None) -> GatewayEndpoint:
        """Return the gateway in the cluster of `kubeconfig`, unless the options or the platform have another."""
        if self.url or self.kubeconfig or has_gateway_settings(data_dir):
            return self
        return replace(self, kubeconfig=kubeconfig)


def gateway_option(command: F) -> F:
    """Add `--gateway` and its credentials; the command gets `gateway: GatewayEndpoint`."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        gateway: str | None,
        gateway_token_file: Path | None,
        gateway_ca: Path | None,
        gateway_kubeconfig: Path | None,
        **options: Any,
    ) -> Any:
        endpoint = GatewayEndpoint(gateway, gateway_token_file, gateway_ca, gateway_kubeconfig)
        return command(*args, gateway=endpoint, **options)

    readable = click.Path(path_type=Path, dir_okay=False, exists=True)
    for option in (
        click.option(
            "--gateway-kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Kubeconfig of the management cluster, to reach a gateway that runs there as a pod. "
            f"[env: {KUBECONFIG_VARIABLE}, if DATA_DIR has no gateway.yaml]",
        ),
        click.option(
            "--gateway-ca",
            type=readable,
            envvar="VKGATEWAY_GATEWAY_CA",
            show_envvar=True,
            help="CA certificate file for https://. [default: the system's CAs]",
        ),
        click.option(
            "--gateway-token-file",
            type=readable,
            envvar="VKGATEWAY_GATEWAY_TOKEN_FILE",
            show_envvar=True,
            help="File with a bearer token of the management cluster, for https://.",
        ),
        click.option(
            "--gateway",
            metavar="URL",
            envvar="VKGATEWAY_GATEWAY",
            show_envvar=True,
            help="Address of the gateway: unix:///PATH or https://HOST:PORT. "
            "[default: the Unix socket from DATA_DIR/gateway.yaml]",
        ),
    ):
        wrapped = option(wrapped)
    return cast("F", wrapped)


def has_gateway_settings(data_dir: Path) -> bool:
    """Return whether the data directory has the settings of a gateway on this machine."""
    return (data_dir / _SETTINGS_FILE).exists()


def load_gateway_settings(data_dir: Path) -> Config:
    """Return the settings of a platform's gateway. Raises UnavailableError if there is no platform."""
    from vkgateway.settings import file as settingsfile

    file = data_dir / _SETTINGS_FILE
    if not file.exists():
        raise UnavailableError(f"no platform in {data_dir}: {file} does not exist", hint=_NO_GATEWAY_HINT)
    return settingsfile.load_settings(file, environment={})


async def get_state(data_dir: Path, gateway: GatewayEndpoint) -> ArbiterReport:
    """Return the gateway's state of pools, tenants and gangs.

    Raises InputError for an invalid address, UnavailableError if the gateway does not answer.
    """
    import msgspec

    from vkgateway.scheduler.core.reasons.report_types import ArbiterReport

    body = await _get_answer("arbiter/state", {}, data_dir, gateway, timeout=_STATE_TIMEOUT)
    try:
        return msgspec.json.decode(body, type=ArbiterReport)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"cannot decode the gateway's state: {error}", hint=_VERSION_HINT) from error


async def get_usage(data_dir: Path, gateway: GatewayEndpoint, *, days: int) -> UsageReport:
    """Return the gateway's usage of the last UTC days, and the budgets.

    Raises InputError for an invalid address, UnavailableError if the gateway does not answer.
    """
    import msgspec

    from vkgateway.tenants.usage.budgets import UsageReport

    body = await _get_answer("arbiter/usage", {"days": str(days)}, data_dir, gateway, timeout=_STATE_TIMEOUT)
    try:
        return msgspec.json.decode(body, type=UsageReport)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"cannot decode the gateway's usage: {error}", hint=_VERSION_HINT) from error


async def ask_what_if(question: Question, data_dir: Path, gateway: GatewayEndpoint) -> Answer:
    """Return the arbiter's answer to a what-if question.

    Raises InputError or NotFoundError for an invalid question, UnavailableError if the gateway does not answer.
    """
    import msgspec

    from vkgateway.scheduler.core.whatif.answers import Answer

    query = {"question": msgspec.json.encode(question).decode()}
    body = await _get_answer("arbiter/what-if", query, data_dir, gateway, timeout=_WHAT_IF_TIMEOUT)
    try:
        return msgspec.json.decode(body, type=Answer)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"cannot decode the gateway's answer: {error}", hint=_VERSION_HINT) from error


async def _get_answer(
    path: str, query: Mapping[str, str], data_dir: Path, gateway: GatewayEndpoint, *, timeout: float
) -> bytes:
    """Return the body of the gateway's answer. Raises InputError, NotFoundError, UnavailableError."""
    url, status, body = await request_answer(path, query, data_dir, gateway, timeout=timeout)
    if status in (401, 403):
        message = body.decode(errors="replace").strip()
        raise UnavailableError(
            f"the gateway at {url} refuses the request: {message}",
            hint="Set --gateway-token-file; the user of the token needs the ClusterRole vkgateway-state-reader.",
        )
    if status == _REFUSED_STATUS:
        raise _decode_refusal(body)
    if status == _UNAVAILABLE_STATUS:
        raise UnavailableError(f"the gateway at {url}: {body.decode(errors='replace').strip()}", hint=_STANDBY_HINT)
    if status != 200:
        raise UnavailableError(f"the gateway at {url} answers with HTTP status {status}", hint=_VERSION_HINT)
    return body


async def request_answer(
    path: str, query: Mapping[str, str], data_dir: Path, gateway: GatewayEndpoint, *, timeout: float = _STATE_TIMEOUT
) -> tuple[str, int, bytes]:
    """Return the gateway's address, and the HTTP status and body of its answer. Raises InputError, UnavailableError."""
    kubeconfig = gateway.cluster_kubeconfig(data_dir)
    if gateway.client is None and kubeconfig is None:
        url = gateway.url if gateway.url is not None else f"{_UNIX_SCHEME}{_socket_path(data_dir)}"
        return url, *await _send_request(url, gateway, path, query, timeout=timeout)
    async with _forward(kubeconfig, data_dir, gateway) as forwarded:
        try:
            answer = await _send_request(forwarded.url, gateway, path, query, token=forwarded.token, timeout=timeout)
        except UnavailableError as error:
            raise UnavailableError(
                f"the gateway's pod is unreachable: {forwarded.forward.problem or error}", hint=_FORWARD_HINT
            ) from error
        return f"the cluster of {kubeconfig or (gateway.client and gateway.client.server)}", *answer


def _forward(
    kubeconfig: Path | None, data_dir: Path, gateway: GatewayEndpoint
) -> AbstractAsyncContextManager[ForwardedGateway]:
    from vkgateway.cli import cluster_gateway

    if gateway.client is not None:
        return cluster_gateway.forward_from(gateway.client)
    return cluster_gateway.forward_gateway(kubeconfig, data_dir)


def _decode_refusal(body: bytes) -> VkgatewayError:
    """Return the error that the gateway sent instead of an answer."""
    import msgspec

    from vkgateway.serve.arbiter_observer import Refusal

    try:
        refusal = msgspec.json.decode(body, type=Refusal)
    except msgspec.DecodeError as error:
        return UnavailableError(f"cannot decode the gateway's answer: {error}", hint=_VERSION_HINT)
    kinds = {kind.exit_code: kind for kind in (InputError, NotFoundError, ConflictError, UnavailableError)}
    return kinds.get(refusal.exit_code, VkgatewayError)(refusal.message, hint=refusal.hint)


def _socket_path(data_dir: Path) -> Path:
    from vkgateway.settings.config import gateway_socket

    return gateway_socket(load_gateway_settings(data_dir).observability, data_dir=data_dir)


async def _send_request(
    url: str, gateway: GatewayEndpoint, path: str, query: Mapping[str, str], *, timeout: float, token: str = ""
) -> tuple[int, bytes]:
    """Return the HTTP status and body of the gateway's answer. Raises InputError, UnavailableError.

    `token` is for a forwarded port, whose tunnel the API server secures.
    """
    import aiohttp

    limits = aiohttp.ClientTimeout(total=timeout)
    try:
        with _open_connector(url, gateway, token=token) as (base_url, connector, headers):
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limits, headers=headers) as session,
                session.get(f"{base_url}/{path}", params=query) as answer,
            ):
                return answer.status, await answer.read()
    except (aiohttp.ClientError, OSError) as error:  # includes timeouts
        reason = str(error) or type(error).__name__
        raise UnavailableError(
            f"the gateway at {url} is unreachable: {reason}", hint="Check it with `vkgateway status`."
        ) from error


@contextmanager
def _open_connector(
    url: str, gateway: GatewayEndpoint, *, token: str = ""
) -> Iterator[tuple[str, BaseConnector, dict[str, str]]]:
    """Yield base URL, connector and headers for requests to the gateway."""
    import aiohttp

    from vkgateway.kube.tls import client_context
    from vkgateway.runtime.socket_paths import short_socket_path

    if url.startswith(_UNIX_SCHEME):
        with short_socket_path(Path(url.removeprefix(_UNIX_SCHEME))) as path:
            yield "http://gateway", aiohttp.UnixConnector(path), {}
    elif url.startswith(_HTTPS_SCHEME):
        context = client_context(ca=gateway.ca.read_bytes() if gateway.ca else None, insecure=bool(token))
        token = token or (gateway.token_file.read_text().strip() if gateway.token_file else "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        yield url.rstrip("/"), aiohttp.TCPConnector(ssl=context), headers
    else:
        raise InputError(f"--gateway {url!r} is not a valid address", hint="Use unix:///PATH or https://HOST:9632.")
