"""Options that all commands of the plugin have, with the meaning that they have in kubectl."""

from __future__ import annotations

import asyncio
import functools
import re
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import click

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_DURATION: Final = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)m(?!s))?(?:([0-9]+(?:\.[0-9]+)?)s)?(?:([0-9]+)ms)?")


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


class _Duration(click.ParamType):  # type: ignore[type-arg] # generic since click 8.5
    """Duration as in kubectl: `500ms`, `10s`, `1m30s`, or seconds without a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds."""
        text = str(value)
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return float(text)
        found = _DURATION.fullmatch(text)
        if not text or found is None:
            self.fail(f"{text!r} is not a duration; examples: 10s, 1m30s, 500ms", param, ctx)
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def target_options(command: F) -> F:
    """Add the options that select cluster, user and namespace; the command gets `target: Target`.

    The group has the options, too: `kubectl vkgateway -n research queue`. Options after the command win.
    """
    from vkgateway.cli.plugin import completion

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        kubeconfig: Path | None,
        context: str | None,
        cluster: str | None,
        user: str | None,
        namespace: str | None,
        all_namespaces: bool,
        request_timeout: float | None,
        **options: Any,
    ) -> Any:
        target = Target(
            kubeconfig=kubeconfig,
            context=context or "",
            cluster=cluster or "",
            user=user or "",
            namespace=namespace or "",
            all_namespaces=all_namespaces,
            request_timeout=request_timeout,
        )
        before = click.get_current_context().find_root().obj
        return command(*args, target=target.or_else(before) if before is not None else target, **options)

    for option in (
        click.option(
            "--request-timeout",
            type=_Duration(),
            metavar="DURATION",
            help="How long a request may take, such as 10s; 0: no limit. [default: 2s for the first answer]",
        ),
        click.option("--user", metavar="NAME", shell_complete=completion.users, help="User of the kubeconfig."),
        click.option(
            "--cluster", metavar="NAME", shell_complete=completion.clusters, help="Cluster of the kubeconfig."
        ),
        click.option(
            "--context", metavar="NAME", shell_complete=completion.contexts, help="Context of the kubeconfig."
        ),
        click.option(
            "--kubeconfig",
            metavar="FILE",
            type=click.Path(path_type=Path, dir_okay=False),
            help="The only kubeconfig. [default: the files of KUBECONFIG, or ~/.kube/config]",
        ),
        click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces."),
        click.option(
            "-n",
            "--namespace",
            metavar="NAME",
            shell_complete=completion.namespaces,
            help="Namespace. [default: that of the context]",
        ),
    ):
        wrapped = option(wrapped)
    return cast("F", wrapped)


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
