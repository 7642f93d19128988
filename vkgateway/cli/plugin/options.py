"""Options that all commands of the plugin have, with the meaning that they have in kubectl."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from vkgateway.cli.plugin import values
from vkgateway.cli.plugin.target import Target

F = TypeVar("F", bound=Callable[..., Any])

_DURATION: Final = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)m(?!s))?(?:([0-9]+(?:\.[0-9]+)?)s)?(?:([0-9]+)ms)?")


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
        click.option("--user", metavar="NAME", shell_complete=values.users, help="User of the kubeconfig."),
        click.option("--cluster", metavar="NAME", shell_complete=values.clusters, help="Cluster of the kubeconfig."),
        click.option("--context", metavar="NAME", shell_complete=values.contexts, help="Context of the kubeconfig."),
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
            shell_complete=values.namespaces,
            help="Namespace. [default: that of the context]",
        ),
    ):
        wrapped = option(wrapped)
    return cast("F", wrapped)
