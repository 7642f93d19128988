"""`vkgateway version`: versions of vkgateway, Python, and the tenants' default Kubernetes."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import Column, output_option, print_objects
from vkgateway.version import __version__

COLUMNS: tuple[Column[dict[str, str]], ...] = (
    Column("vkgateway", lambda row: row["vkgateway"]),
    Column("python", lambda row: row["python"]),
    Column("kubernetes", lambda row: row["kubernetes"]),
)


@click.command(short_help="Print versions.", epilog="\b\nExample: vkgateway version -o json")
@output_option
@data_dir_option
def version(output: str, data_dir: Path) -> None:  # noqa: ARG001 - every command takes --data-dir
    """Print the versions of vkgateway, Python, and the default Kubernetes of tenants."""
    from vkgateway.api.types import TenantSpec

    row = {
        "vkgateway": __version__,
        "python": platform.python_version(),
        "kubernetes": TenantSpec().kubernetes_version,
    }
    print_objects([row], output=output, columns=COLUMNS, name=lambda r: r["vkgateway"], single=True)
