"""`vkgateway tenant kubeconfig`: print, write or merge a tenant's admin kubeconfig."""

from __future__ import annotations

from pathlib import Path

import click

from vkgateway.cli import name_completion
from vkgateway.cli.options import cluster_options, run_async

EPILOG = """\b
Examples:
  vkgateway tenant kubeconfig alpha -f alpha.kubeconfig
  vkgateway tenant kubeconfig alpha --merge && kubectl --context alpha get nodes
"""


@click.command(short_help="Print, write or merge the admin kubeconfig.", epilog=EPILOG)
@click.argument("name", shell_complete=name_completion.tenants)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the kubeconfig to this file (mode 0600).",
)
@click.option("--merge", is_flag=True, help="Merge it as a context into FILE, or into your kubeconfig.")
@click.option("--switch/--no-switch", default=True, show_default=True, help="With --merge: switch to the new context.")
@cluster_options
@run_async
async def kubeconfig(
    *,
    name: str,
    file: Path | None,
    merge: bool,
    switch: bool,
    data_dir: Path,
    kubeconfig: Path | None,
) -> None:
    """Print the admin kubeconfig of tenant NAME, write it to a file, or merge it into your kubeconfig."""
    from vkgateway.cli import cluster
    from vkgateway.kube import kubeconfig as files

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        document = await cluster.fetch_kubeconfig(client, name)
    if merge:
        target = file or files.default_path()
        files.merge_into_file(target, document, switch=switch)
        click.echo(f"Added context {document['current-context']} to {target}.", err=True)
    elif file:
        files.replace_file(file, document)
        click.echo(f"Next: kubectl --kubeconfig {file} get nodes", err=True)
    else:
        click.echo(files.dump(document), nl=False)
