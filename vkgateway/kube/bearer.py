"""Bearer tokens of a kubeconfig: static, from a file or from an exec plugin. Files and plugins are read again."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from vkgateway.api.errors import InputError, UnavailableError, VkgatewayError
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock

TokenSource = Callable[[], Awaitable[str]]
log = structlog.get_logger(__name__)

_TOKEN_SECONDS = 60.0
"""Seconds after which a token is read again from its file or plugin."""
_RETRY_SECONDS = 5.0
"""Seconds until the next attempt after a failure."""
FETCH_TIMEOUT_SECONDS = 30.0
"""Seconds that a plugin may run."""


async def static_token(token: str) -> str:
    """Return the token of the kubeconfig."""
    return token


async def read_token_file(file: Path) -> str:
    """Return the current token in the file. Raises InputError."""
    try:
        return file.read_text().strip()  # noqa: ASYNC240 - one line from a local file
    except OSError as error:
        raise InputError(f"token file {file} cannot be read: {error.strerror}") from error


async def run_exec_plugin(plugin: Mapping[str, Any], *, context: str) -> str:
    """Run the exec plugin of a context and return its token. Raises InputError."""
    # Imported lazily: the library takes most of a second to load, and few kubeconfigs use plugins.
    from kubernetes_asyncio.config import ConfigException
    from kubernetes_asyncio.config.exec_provider import ExecProvider
    from kubernetes_asyncio.config.kube_config import ConfigNode

    try:
        status = await ExecProvider(ConfigNode("exec", _with_timeout(plugin))).run()
    except (ConfigException, OSError) as error:
        raise InputError(f"the exec plugin of context {context!r} failed: {error}") from error
    token = status.get("token")
    if not isinstance(token, str):
        raise InputError(f"the exec plugin of context {context!r} returned no token")
    return token


def _with_timeout(plugin: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plugin that timeout(1) kills together with its child processes. The library never kills a plugin.

    At a terminal, the plugin stays in the foreground because it may prompt the user; then timeout(1) kills the plugin
    alone. BusyBox' timeout(1) always does so, and has no long options. On a system without timeout(1), the plugin is
    returned unchanged.
    """
    program = shutil.which("timeout")
    if program is None or "command" not in plugin:
        return dict(plugin)
    options = ["-k", "1", f"{FETCH_TIMEOUT_SECONDS:g}"]
    if Path(program).resolve().name != "busybox" and os.isatty(0):
        options.insert(0, "--foreground")
    return {**plugin, "command": program, "args": [*options, plugin["command"], *(plugin.get("args") or ())]}


class CachingTokenSource:
    """Cache of a token for one minute. One caller at a time fetches a new token; concurrent callers share the result.

    If fetching fails, the old token stays in use: the server decides whether the token is valid.
    """

    def __init__(self, fetch: TokenSource, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._fetch = fetch
        self._clock = clock
        self._token = ""
        self._expires_at = 0.0
        self._lock = asyncio.Lock()
        self._attempts = 0
        self._failure: VkgatewayError | None = None
        """Error of the last attempt, if no token is known."""

    async def __call__(self) -> str:
        """Return the token, and fetch it first if it is too old. Raises the last error if no token is known."""
        if self._token and self._clock.monotonic() < self._expires_at:
            return self._token
        attempts_before = self._attempts
        async with self._lock:
            if self._attempts == attempts_before:
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
        self._expires_at = self._clock.monotonic() + (_TOKEN_SECONDS if failure is None else _RETRY_SECONDS)
        self._failure = None if self._token else failure
        if self._token and failure is not None:
            log.warning("token not renewed", error=str(failure))
