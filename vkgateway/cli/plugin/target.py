"""What a command of the plugin acts on: cluster, user and namespaces; and the event loop in which it runs."""

from __future__ import annotations

import asyncio
import functools
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Cluster, user and namespaces that the options select; empty: as the kubeconfig says."""

    kubeconfig: Path | None = None
    context: str = ""
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    all_namespaces: bool = False
    request_timeout: float | None = None
    """Seconds; None: 2 s for the first answer, and the usual timeouts after it. 0: no limit."""

    @property
    def kubectl_options(self) -> str:
        """The options with which kubectl selects the same cluster and user."""
        given = {
            "--kubeconfig": str(self.kubeconfig) if self.kubeconfig else "",
            "--context": self.context,
            "--cluster": self.cluster,
            "--user": self.user,
        }
        return " ".join(f"{option}={shlex.quote(value)}" for option, value in given.items() if value)

    def or_else(self, other: Target) -> Target:
        """Return this target, with the values of another one where this one is empty."""
        empty = Target()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value != getattr(empty, name)}
        if given.keys() & {"namespace", "all_namespaces"}:
            other = replace(other, namespace="", all_namespaces=False)
        return replace(other, **given)


class _Loop(asyncio.SelectorEventLoop):
    """Event loop whose end does not wait for threads: the lookup of a host name may hang for long."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: `close` ends the executor without waiting."""


def run_async(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Wrap an async command, so that click can call it; it runs in a new event loop."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            return runner.run(function(*args, **kwargs))

    return run
