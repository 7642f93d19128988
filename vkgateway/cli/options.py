"""Shared options (data directory, management cluster), and a decorator for async commands."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from vkgateway.api.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

KUBECONFIG_VARIABLE = "VKGATEWAY_KUBECONFIG"
DATA_DIR_VARIABLE = "VKGATEWAY_DATA_DIR"
DATA_DIR_HELP = f"Directory of the platform's files. [env: {DATA_DIR_VARIABLE}; default: ~/.local/share/vkgateway]"
_ROOT_KEY = "vkgateway.data_dir"
_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d|w|)")


def default_data_dir() -> Path:
    """Return `$XDG_DATA_HOME/vkgateway` (XDG base directory specification)."""
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    # The specification requires relative paths to be ignored: they would depend on the working directory.
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "vkgateway"


def _remember_root(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    ctx.meta[_ROOT_KEY] = value


def _choose_data_dir(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path:
    """Return the data directory from the subcommand's option, the root option, the environment, or the default.

    The path is resolved, because processes, interfaces and mounts are identified by it.
    """
    _remember_given(ctx, _param, value)
    return chosen_data_dir(ctx)


def _remember_given(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    """Remember the directory from the subcommand's option, or else from the root option."""
    ctx.meta[_ROOT_KEY] = value or ctx.meta.get(_ROOT_KEY)


def chosen_data_dir(ctx: click.Context) -> Path:
    """Return the resolved data directory from the command line, the environment, or the default.

    Raises RuntimeError if the default is needed and there is no home directory.
    """
    chosen = ctx.meta.get(_ROOT_KEY)
    if chosen is None:
        from_environment = os.environ.get(DATA_DIR_VARIABLE, "")
        chosen = Path(from_environment) if from_environment else default_data_dir()
    return Path(chosen).expanduser().resolve()


def data_dir_given(ctx: click.Context) -> bool:
    """Return whether `--data-dir` is given on the command line."""
    return ctx.meta.get(_ROOT_KEY) is not None


def root_data_dir_option(command: F) -> F:
    """Add `--data-dir` to the root command, where it means the same as on the subcommand."""
    return _data_dir_option(callback=_remember_root, expose_value=False)(command)


def data_dir_option(command: F) -> F:
    """Add `--data-dir`; the command gets `data_dir: Path`, resolved, which need not exist."""
    return _data_dir_option(callback=_choose_data_dir)(command)


def lazy_data_dir_option(command: F) -> F:
    """Add `--data-dir` to a command that may not need it; `chosen_data_dir` returns it."""
    return _data_dir_option(callback=_remember_given, expose_value=False)(command)


def _data_dir_option(**settings: Any) -> Callable[[F], F]:
    return click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help=DATA_DIR_HELP, **settings)


def cluster_options(command: F) -> F:
    """Add `--data-dir` and `--kubeconfig`; the command gets `data_dir` and `kubeconfig: Path | None`."""
    with_kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=KUBECONFIG_VARIABLE,
        show_envvar=True,
        help="Kubeconfig of the management cluster. [default: DATA_DIR/compute.kubeconfig]",
    )(command)
    return data_dir_option(with_kubeconfig)


def run_async(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Wrap an async command, so that click can call it; it runs in a new event loop."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return asyncio.run(function(*args, **kwargs))

    return run


def watch_options(command: F) -> F:
    """Add `--watch` and `--interval`; the command gets `watch: bool` and `interval: float` (seconds)."""
    interval = click.option(
        "--interval",
        type=click.FloatRange(min=0.2),
        default=2.0,
        show_default=True,
        help="Seconds between refreshes with --watch.",
    )
    return click.option("-w", "--watch", is_flag=True, help="Refresh until interrupted.")(interval(command))


class Seconds(click.ParamType[float]):
    """Duration such as `90s`, `24h` or `7d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _SPAN.fullmatch(str(value))
        if match is None:
            self.fail(
                f"{value!r} is not a duration. Use a number with ms, s, m, h, d or w, such as 90s or 24h.", param, ctx
            )
        return float(match[1]) * _UNITS[match[2]]


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm_deletion(what: str, *, yes: bool) -> None:
    """Return if the deletion is confirmed: with `yes`, or by a person at a terminal.

    Raises:
        InputError: neither is the case; input from elsewhere is no answer to the question.
        click.Abort: the person declined.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            f"this would delete {what}; the input is not a terminal, so the command cannot ask you",
            hint="Add --yes to confirm it.",
        )
    click.confirm(f"Delete {what}? This cannot be undone", abort=True)
