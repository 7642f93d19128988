"""Options that many commands share (data directory, management cluster), and running async commands."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

DATA_DIR_VARIABLE = "VKGATEWAY_DATA_DIR"
DATA_DIR_HELP = f"Where the platform keeps its files. [env: {DATA_DIR_VARIABLE}; default: ~/.local/share/vkgateway]"
_ROOT_KEY = "vkgateway.data_dir"


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/vkgateway`, as the XDG base directory specification has it."""
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    # One that is not absolute is to be ignored, says the specification: it would be another place in every folder.
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "vkgateway"


def _remember_root(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    ctx.meta[_ROOT_KEY] = value


def _choose_data_dir(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path:
    """On the command itself, else before the command, else the environment, else the default.

    Without links and dots: processes, interfaces and mounts are found again by it, whichever way it was written.
    """
    ctx.meta[_ROOT_KEY] = chosen = value or ctx.meta.get(_ROOT_KEY)
    if chosen is None:
        from_environment = os.environ.get(DATA_DIR_VARIABLE, "")
        chosen = Path(from_environment) if from_environment else default_data_dir()
    return Path(chosen).expanduser().resolve()


def data_dir_given(ctx: click.Context) -> bool:
    """Whether `--data-dir` stands on the command line, before the command or after it."""
    return ctx.meta.get(_ROOT_KEY) is not None


def root_data_dir_option(command: F) -> F:
    """`vkgateway --data-dir D COMMAND` means the same as `vkgateway COMMAND --data-dir D`."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_remember_root,
        expose_value=False,
        help=DATA_DIR_HELP,
    )(command)


def data_dir_option(command: F) -> F:
    """Adds `--data-dir`; the command gets `data_dir: Path`, absolute and without links, not necessarily there."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_choose_data_dir,
        help=DATA_DIR_HELP,
    )(command)


def cluster_options(command: F) -> F:
    """Adds `--data-dir` and `--kubeconfig`; the command gets `data_dir` and `kubeconfig: Path | None`."""
    with_kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="VKGATEWAY_KUBECONFIG",
        show_envvar=True,
        help="Kubeconfig of the management cluster, where Tenants live. [default: DATA_DIR/compute.kubeconfig]",
    )(command)
    return data_dir_option(with_kubeconfig)


def run_async(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Lets click call an `async def`: one event loop for the length of the command."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return asyncio.run(function(*args, **kwargs))

    return run
