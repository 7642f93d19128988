"""Command-line options for the platform, and process exit, shared by the benchmarks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from vkgateway.api.errors import VkgatewayError

F = TypeVar("F", bound=Callable[..., Any])


def platform_options(command: F) -> F:
    """Add the options for the platform's location and lifetime, and for writing figures."""
    options = (
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            help="Directory of an existing or new platform. [default: a new directory]",
        ),
        click.option(
            "--program-dir",
            "program_dirs",
            multiple=True,
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            envvar="VKGATEWAY_PROGRAM_DIR",
            help="Directory in which programs are searched first. Can be repeated.",
        ),
        click.option("--keep", is_flag=True, help="Keep the platform running afterwards."),
        click.option("--write/--no-write", default=True, show_default=True, help="Write docs/reference/benchmarks.*."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def parse_sizes(text: str | None) -> tuple[int, ...]:
    """Return the sizes in an option like `10,25,50`, empty if it is missing. Raises click.BadParameter."""
    try:
        sizes = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of numbers. Write it like 10,25,50.") from error
    if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
        raise click.BadParameter(f"{text!r} does not ascend from 1. Write it like 10,25,50.")
    return sizes


def run_to_exit(measuring: Coroutine[Any, Any, object]) -> None:
    """Run to the end. Print errors and exit with their exit code, or with 130 after an interruption."""
    try:
        uvloop.run(measuring)
    except VkgatewayError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
