"""Bearer tokens that a kubeconfig leads to: from itself, a file or a plugin; what may change is asked for again."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from vkgateway.model.errors import InputError, UnavailableError, VkgatewayError

TokenSource = Callable[[], Awaitable[str]]
log = structlog.get_logger(__name__)

_TOKEN_SECONDS = 60.0
"""Seconds after which a token that came from a file or a plugin is asked for again."""
_RETRY_SECONDS = 5.0
"""Seconds after which that is tried again where it failed."""
FETCH_TIMEOUT_SECONDS = 30.0
"""How long a plugin may take."""


async def static_token(token: str) -> str:
    """A token that stands in the kubeconfig."""
    return token


async def read_token_file(file: Path) -> str:
    """What the file holds now. Raises InputError."""
    try:
        return file.read_text().strip()  # noqa: ASYNC240 - a line, on this machine
    except OSError as error:
        raise InputError(f"token file {file} cannot be read: {error.strerror}") from error


async def run_exec_plugin(plugin: Mapping[str, Any], *, context: str) -> str:
    """What the plugin of a context gives now. Raises InputError."""
    # Imported here: the library takes most of a second to load, and few kubeconfigs use plugins.
    from kubernetes_asyncio.config import ConfigException
    from kubernetes_asyncio.config.exec_provider import ExecProvider
    from kubernetes_asyncio.config.kube_config import ConfigNode

    try:
        status = await ExecProvider(ConfigNode("exec", _with_timeout(plugin))).run()
    except (ConfigException, OSError) as error:
        raise InputError(f"the exec plugin of context {context!r} failed: {error}") from error
    token = status.get("token")
    if not isinstance(token, str):
        raise InputError(f"the exec plugin of context {context!r} gave no token")
    return token


def _with_timeout(plugin: Mapping[str, Any]) -> dict[str, Any]:
    """A plugin that is killed when nobody waits for it any more, with what it started: the library leaves it running.

    At a terminal it stays in the foreground, since it may ask its user something, and is killed alone; so it is where
    timeout(1) is BusyBox', which knows no other way, nor long options. Where there is none, the plugin is what it was.
    """
    program = shutil.which("timeout")
    if program is None or "command" not in plugin:
        return dict(plugin)
    options = ["-k", "1", f"{FETCH_TIMEOUT_SECONDS:g}"]
    if Path(program).resolve().name != "busybox" and os.isatty(0):
        options.insert(0, "--foreground")
    return {**plugin, "command": program, "args": [*options, plugin["command"], *(plugin.get("args") or ())]}


class CachingTokenSource:
    """Keeps a token for a minute and lets one caller at a time fetch the next; those who wait share what comes of it.

    Where that fails the last one is used on: a server knows best whether it is still good.
    """

    def __init__(self, fetch: TokenSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._token = ""
        self._expires_at = 0.0
        self._lock = asyncio.Lock()
        self._attempts = 0
        self._failure: VkgatewayError | None = None
        """Why there is no token."""

    async def __call__(self) -> str:
        """The token, as new as it has to be. Raises what the last attempt raised where there is none."""
        if self._token and self._clock() < self._expires_at:
            return self._token
        seen = self._attempts
        async with self._lock:
            if self._attempts == seen:
                await self._renew_token()
        if self._failure is not None:
            raise self._failure
        return self._token

    async def _renew_token(self) -> None:
        failure: VkgatewayError | None = None
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
                self._token = await self._fetch()
        except TimeoutError:
            failure = UnavailableError(f"no token within {FETCH_TIMEOUT_SECONDS:g} s")
        except InputError as error:
            failure = error
        self._attempts += 1
        self._expires_at = self._clock() + (_TOKEN_SECONDS if failure is None else _RETRY_SECONDS)
        self._failure = None if self._token else failure
        if self._token and failure is not None:
            log.warning("token not renewed", error=str(failure))
