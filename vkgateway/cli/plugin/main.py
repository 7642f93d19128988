"""The program `kubectl-vkgateway`, which kubectl runs as `kubectl vkgateway`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click

from vkgateway.cli.lazy_group import LazyGroup
from vkgateway.cli.main import EPILOG, open_closed_streams, run_command
from vkgateway.cli.plugin.options import target_options
from vkgateway.cli.plugin.target import Target
from vkgateway.version import __version__

PROGRAM = "kubectl vkgateway"

COMMANDS: Mapping[str, str] = {
    "queue": "vkgateway.cli.plugin.queue:queue",
    "explain": "vkgateway.cli.plugin.explain:explain",
    "top": "vkgateway.cli.plugin.top:top",
    "usage": "vkgateway.cli.plugin.usage:usage",
    "status": "vkgateway.cli.plugin.status:status",
    "report": "vkgateway.cli.plugin.report:report",
}
"""Subcommand name to `module:attribute`; the module is imported when the subcommand runs."""

HELP = """See what waits for GPUs and why, in a tenant's cluster or as platform ops in the management cluster.

The cluster of the current context decides which it is.

\b
Get started:
  kubectl vkgateway queue
  kubectl vkgateway explain train-0 -n research
  kubectl vkgateway queue --context management --tenant alpha
"""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "--version", message="vkgateway %(version)s")
@target_options
@click.pass_context
def plugin(ctx: click.Context, target: Target) -> None:
    """Group all subcommands."""
    ctx.obj = target


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit with its exit code."""
    open_closed_streams()
    _exit(run_command(argv, group=plugin, program=PROGRAM))


def _exit(code: int) -> NoReturn:
    """Exit at once: a thread may still wait for the lookup of a host name."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
