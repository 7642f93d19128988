"""What the commands learn from the running gateway: its settings, and how pools, tenants and gangs stand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from vkgateway.model.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from vkgateway.arbiter.state import State
    from vkgateway.gateway.config import Config

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE: Final = 30.0
"""Seconds for an answer."""
_SETTINGS: Final = "gateway.yaml"
_HINT: Final = "Start a platform with `vkgateway up`, or say where the gateway's /metrics are with --gateway URL."


def gateway_option(command: F) -> F:
    """Adds `--gateway`; the command gets `gateway: str | None`."""
    return click.option(
        "--gateway",
        metavar="URL",
        envvar="VKGATEWAY_GATEWAY",
        show_envvar=True,
        help="Where the gateway serves /metrics. [default: as DATA_DIR/gateway.yaml says]",
    )(command)


def settings(data_dir: Path) -> Config:
    """The settings of the gateway of a platform. Raises UnavailableError where there is no platform."""
    from vkgateway.gateway import settingsfile

    file = data_dir / _SETTINGS
    if not file.exists():
        raise UnavailableError(f"no platform in {data_dir}: {file} does not exist", hint=_HINT)
    return settingsfile.load(file, environment={})


def url(data_dir: Path, gateway: str | None) -> str:
    """The address of the gateway's state.

    Raises InputError for what is no address, UnavailableError where it cannot be known.
    """
    if gateway is not None:
        if not gateway.startswith(("http://", "https://")):
            raise InputError(f"--gateway {gateway!r} is not an address", hint="Write it like http://127.0.0.1:9631")
        return f"{gateway.rstrip('/')}/arbiter/state"
    served = settings(data_dir).observability
    if not served.port:
        raise UnavailableError(f"{data_dir / _SETTINGS} leaves the port of /metrics open", hint=_HINT)
    host = f"[{served.address}]" if ":" in served.address else served.address
    return f"http://{host}:{served.port}/arbiter/state"


async def state(data_dir: Path, gateway: str | None = None) -> State:
    """How everything stands, by the gateway's own word. Raises UnavailableError where it does not say."""
    import aiohttp
    import msgspec

    from vkgateway.arbiter.state import State

    where = url(data_dir, gateway)
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(where) as answer:
            body = await answer.read()
            if answer.status != 200:
                raise UnavailableError(
                    f"the gateway at {where} does not say how things stand: it answers {answer.status}",
                    hint="Is it of another version? Start it anew: vkgateway up",
                )
    except (aiohttp.ClientError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise UnavailableError(
            f"the gateway does not answer at {where}: {why}", hint="See `vkgateway status`."
        ) from error
    try:
        return msgspec.json.decode(body, type=State)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"what the gateway at {where} says cannot be read: {error}") from error
