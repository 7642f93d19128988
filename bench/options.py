"""What the command lines of the benchmarks share: options of the platform, and how a run ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from vkgateway.model.errors import VkgatewayError

F = TypeVar("F", bound=Callable[..., Any])


def platform_options(command: F) -> F:
    """Add the options that say where the platform is, whether it stays, and whether figures are written."""
    options = (
        click.option(
            "--data-dir", type=click.Path(path_type=Path), help="Where the platform is or is made. [default: new]"
        ),
        click.option(
            "--program-dir",
            "program_dirs",
            multiple=True,
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            envvar="VKGATEWAY_PROGRAM_DIR",
            help="Look for programs here first; again for more.",
        ),
        click.option("--keep", is_flag=True, help="Leave the platform up afterwards."),
        click.option("--write/--no-write", default=True, show_default=True, help="Write docs/reference/benchmarks.*."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def run_to_exit(measuring: Coroutine[Any, Any, None]) -> None:
    """Run to the end. Errors are printed and end the process with their exit code, an interruption with 130."""
    try:
        uvloop.run(measuring)
    except VkgatewayError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
