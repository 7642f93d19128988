"""What the commands learn from the running gateway: its settings, how pools, tenants and gangs stand, and what-ifs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from vkgateway.model.errors import ConflictError, InputError, NotFoundError, UnavailableError, VkgatewayError

if TYPE_CHECKING:
    from aiohttp import BaseConnector

    from vkgateway.arbiter.reasons.report_types import ArbiterReport
    from vkgateway.arbiter.whatif.answers import Answer
    from vkgateway.arbiter.whatif.questions import Question
    from vkgateway.gateway.config import Config

F = TypeVar("F", bound=Callable[..., Any])

_STATE_TIMEOUT: Final = 30.0
"""Seconds for the state."""
_WHAT_IF_TIMEOUT: Final = 180.0
"""Seconds for the answer to a question: the arbiter decides it first, after those that were asked before."""
_SETTINGS_FILE: Final = "gateway.yaml"
_NO_GATEWAY_HINT: Final = "Start a platform with `vkgateway up`, or name the gateway with --gateway URL."
_VERSION_HINT: Final = "Is it of another version? Restart it: vkgateway up"
_REFUSED_STATUS: Final = 422
_UNIX_SCHEME: Final = "unix://"
_HTTPS_SCHEME: Final = "https://"


@dataclass(frozen=True, slots=True)
class GatewayEndpoint:
    """Where to ask, as the options have it: by default at the Unix socket of the data directory's gateway."""

    url: str | None = None
    token_file: Path | None = None
    ca: Path | None = None


def gateway_option(command: F) -> F:
    """Adds `--gateway` and what goes with it; the command gets `gateway: Gateway`."""

    @functools.wraps(command)
    def wrapped(
        *args: Any, gateway: str | None, gateway_token_file: Path | None, gateway_ca: Path | None, **options: Any
    ) -> Any:
        return command(*args, gateway=GatewayEndpoint(gateway, gateway_token_file, gateway_ca), **options)

    readable = click.Path(path_type=Path, dir_okay=False, exists=True)
    for option in (
        click.option(
            "--gateway-ca",
            type=readable,
            envvar="VKGATEWAY_GATEWAY_CA",
            show_envvar=True,
            help="Certificate file of the authority of https://. [default: the system's]",
        ),
        click.option(
            "--gateway-token-file",
            type=readable,
            envvar="VKGATEWAY_GATEWAY_TOKEN_FILE",
            show_envvar=True,
            help="File with a token of the management cluster, for https://.",
        ),
        click.option(
            "--gateway",
            metavar="URL",
            envvar="VKGATEWAY_GATEWAY",
            show_envvar=True,
            help="Where the gateway answers: unix:///PATH or https://HOST:PORT. "
            "[default: its Unix socket, as DATA_DIR/gateway.yaml says]",
        ),
    ):
        wrapped = option(wrapped)
    return cast("F", wrapped)


def load_gateway_settings(data_dir: Path) -> Config:
    """The settings of the gateway of a platform. Raises UnavailableError where there is no platform."""
    from vkgateway.gateway import settingsfile

    file = data_dir / _SETTINGS_FILE
    if not file.exists():
        raise UnavailableError(f"no platform in {data_dir}: {file} does not exist", hint=_NO_GATEWAY_HINT)
    return settingsfile.load_settings(file, environment={})


async def get_state(data_dir: Path, gateway: GatewayEndpoint) -> ArbiterReport:
    """Return how everything stands, by the gateway's own word.

    Raises InputError for what is no address, UnavailableError where the gateway does not say.
    """
    import msgspec

    from vkgateway.arbiter.reasons.report_types import ArbiterReport

    body = await _get_answer("arbiter/state", {}, data_dir, gateway, patience=_STATE_TIMEOUT)
    try:
        return msgspec.json.decode(body, type=ArbiterReport)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"what the gateway says cannot be read: {error}", hint=_VERSION_HINT) from error


async def ask_what_if(question: Question, data_dir: Path, gateway: GatewayEndpoint) -> Answer:
    """Return what the gateway's arbiter would decide.

    Raises InputError or NotFoundError for what cannot be answered, UnavailableError where the gateway does not say.
    """
    import msgspec

    from vkgateway.arbiter.whatif.answers import Answer

    query = {"question": msgspec.json.encode(question).decode()}
    body = await _get_answer("arbiter/what-if", query, data_dir, gateway, patience=_WHAT_IF_TIMEOUT)
    try:
        return msgspec.json.decode(body, type=Answer)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"what the gateway answers cannot be read: {error}", hint=_VERSION_HINT) from error


async def _get_answer(
    path: str, query: Mapping[str, str], data_dir: Path, gateway: GatewayEndpoint, *, patience: float
) -> bytes:
    """Return what the gateway answers. Raises InputError, NotFoundError, UnavailableError."""
    where = gateway.url if gateway.url is not None else f"{_UNIX_SCHEME}{_socket_path(data_dir)}"
    status, body = await _send_request(where, gateway, path, query, patience=patience)
    if status in (401, 403):
        said = body.decode(errors="replace").strip()
        raise UnavailableError(
            f"the gateway at {where} refuses: {said}",
            hint="Give a token with --gateway-token-file; its user needs the ClusterRole vkgateway-state-reader.",
        )
    if status == _REFUSED_STATUS:
        raise _decode_refusal(body)
    if status != 200:
        raise UnavailableError(
            f"the gateway at {where} does not say how things stand: it answers {status}", hint=_VERSION_HINT
        )
    return body


def _decode_refusal(body: bytes) -> VkgatewayError:
    """Return the error that the gateway met when it read a question."""
    import msgspec

    from vkgateway.gateway.arbiter_observer import Refusal

    try:
        said = msgspec.json.decode(body, type=Refusal)
    except msgspec.DecodeError as error:
        return UnavailableError(f"what the gateway answers cannot be read: {error}", hint=_VERSION_HINT)
    kinds = {kind.exit_code: kind for kind in (InputError, NotFoundError, ConflictError, UnavailableError)}
    return kinds.get(said.exit_code, VkgatewayError)(said.message, hint=said.hint)


def _socket_path(data_dir: Path) -> Path:
    from vkgateway.gateway.config import gateway_socket

    return gateway_socket(load_gateway_settings(data_dir).observability, data_dir=data_dir)


async def _send_request(
    where: str, gateway: GatewayEndpoint, path: str, query: Mapping[str, str], *, patience: float
) -> tuple[int, bytes]:
    """Ask the gateway. Raises InputError, UnavailableError."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=patience)
    try:
        with _open_connector(where, gateway) as (url, connector, headers):
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session,
                session.get(f"{url}/{path}", params=query) as answer,
            ):
                return answer.status, await answer.read()
    except (aiohttp.ClientError, OSError) as error:  # a time-out is one
        why = str(error) or type(error).__name__
        raise UnavailableError(
            f"the gateway does not answer at {where}: {why}", hint="See `vkgateway status`."
        ) from error


@contextmanager
def _open_connector(where: str, gateway: GatewayEndpoint) -> Iterator[tuple[str, BaseConnector, dict[str, str]]]:
    """Give the URL to ask, the way there and the headers, for as long as the block lasts."""
    import aiohttp

    from vkgateway.kube.tls import client_context
    from vkgateway.programs.supervisor.protocol import short_socket_path

    if where.startswith(_UNIX_SCHEME):
        with short_socket_path(Path(where.removeprefix(_UNIX_SCHEME))) as path:
            yield "http://gateway", aiohttp.UnixConnector(path), {}
    elif where.startswith(_HTTPS_SCHEME):
        context = client_context(ca=gateway.ca.read_bytes() if gateway.ca else None)
        token = gateway.token_file.read_text().strip() if gateway.token_file else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        yield where.rstrip("/"), aiohttp.TCPConnector(ssl=context), headers
    else:
        raise InputError(
            f"--gateway {where!r} is not an address", hint="Write it like unix:///PATH or https://HOST:9632."
        )
