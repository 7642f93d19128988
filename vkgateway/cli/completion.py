"""`vkgateway completion`: shell completion of commands and options."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from vkgateway.cli.options import data_dir_option

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell completion script.", epilog='\b\nExample: eval "$(vkgateway completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
@data_dir_option
@click.pass_context
def completion(ctx: click.Context, shell: str, data_dir: Path) -> None:  # noqa: ARG001 - every command takes --data-dir
    """Print the completion script for SHELL, which the shell must evaluate."""
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"completion for {shell} is not supported")
    root = ctx.find_root().command
    click.echo(script(root, {}, "vkgateway", "_VKGATEWAY_COMPLETE").source())
