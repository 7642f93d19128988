"""`vkgateway serve`: run the daemon in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from vkgateway.cli.options import chosen_data_dir, data_dir_given, lazy_data_dir_option


@click.command(
    short_help="Run the gateway.",
    epilog="\b\nExample: vkgateway serve --config gateway.yaml; vkgateway serve --print-config > gateway.yaml",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="VKGATEWAY_CONFIG",
    show_envvar=True,
    help="YAML file with settings. [default: default settings]",
)
@click.option("--print-config", is_flag=True, help="Print the effective settings with descriptions and exit.")
@lazy_data_dir_option
@click.pass_context
def serve(ctx: click.Context, *, file: Path | None, print_config: bool) -> None:
    """Run the gateway in the foreground until SIGTERM or SIGINT.

    Environment variables override the settings file.
    """
    import msgspec

    from vkgateway.settings import file as settingsfile

    settings = settingsfile.load_settings(file)
    if data_dir_given(ctx) or not settings.data_dir:
        settings = msgspec.structs.replace(settings, data_dir=str(chosen_data_dir(ctx)))
    if print_config:
        click.echo(settingsfile.render_settings(settings), nl=False)
        return
    with _fast_imports():
        import uvloop

        from vkgateway.serve.daemon import run_daemon as serve_gateway

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_gateway(settings))


@contextlib.contextmanager
def _fast_imports() -> Iterator[None]:
    """Speed up the imports of the daemon, because tenants wait while it starts.

    structlog would import rich, a fifth of the import time, for tracebacks that are not used here. Garbage collection
    is off, because imports create no garbage; the daemon configures it later.
    """
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment] # None blocks the import
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if hidden:
            del sys.modules["rich"]
