"""Options that several commands of `vkgateway tenant` have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

POOL_METAVAR = "POOL[.CLUSTER][:guarantee=RES=QTY,...,limit=RES=QTY,...,weight=N,cells=8+8+1]"


def spec_options(*, has_defaults: bool) -> Callable[[F], F]:
    """Add the options that both commands have; the command gets the arguments of `tenant_spec.apply_options`.

    With `has_defaults`, the help names the value of a field without its option.
    """

    def default(text: str) -> str:
        return f" [default: {text}]" if has_defaults else ""

    options = (
        click.option(
            "--budget",
            "budgets",
            multiple=True,
            metavar="resource=RES,hours=NUMBER[,pool=POOL]",
            help="Monthly budget in hours of a unit of the resource (GPU-hours), of all pools or one; repeatable.",
        ),
        click.option(
            "--kubernetes-version",
            metavar="X.Y.Z",
            help=f"Kubernetes version of the tenant.{default('see `vkgateway version`')}",
        ),
        click.option(
            "--pod-security",
            type=click.Choice(["privileged", "baseline", "restricted"]),
            help=f"Pod Security Standard for the tenant's pods.{default('baseline')}",
        ),
        click.option(
            "--storage-class",
            "storage_classes",
            multiple=True,
            metavar="NAME",
            help="Storage class that the tenant may use, '*' for all; repeatable.",
        ),
        click.option(
            "--preemption",
            type=click.Choice(["LowerPriority", "Never"]),
            help=f"Whether higher priorities preempt lower ones within the tenant.{default('LowerPriority')}",
        ),
        click.option("--port", type=click.IntRange(0, 65535), help=f"Port of the API server.{default('a free port')}"),
        click.option(
            "--subject-alt-name",
            "subject_alt_names",
            multiple=True,
            help="Additional DNS name or IP of the API server.",
        ),
        click.option(
            "--deletion-protection/--no-deletion-protection",
            default=None,
            help=f"Whether API servers refuse to delete the tenant.{default('no')}",
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def wait_options(until: str) -> Callable[[F], F]:
    """Add `--wait` and `--timeout`; `until` is what the command waits for, in words."""

    def add(command: F) -> F:
        command = timeout_option(command)
        return click.option("--wait/--no-wait", default=True, show_default=True, help=f"Wait until {until}.")(command)

    return add


timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds to wait."
)
