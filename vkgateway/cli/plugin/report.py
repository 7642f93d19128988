"""`kubectl vkgateway report`: a support bundle without secrets."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.plugin import values
from vkgateway.cli.plugin.options import target_options
from vkgateway.cli.plugin.target import Target, run_async
from vkgateway.version import __version__

if TYPE_CHECKING:
    from vkgateway.cli.plugin.bundle.archive import BundleFile
    from vkgateway.cli.plugin.connection import Connection
    from vkgateway.cli.plugin.tenant_reads import PodList

EPILOG = """\b
Examples:
  kubectl vkgateway report
  kubectl vkgateway report -o bundle.tar.gz -n research
  kubectl vkgateway report --context management --tenant alpha
"""
_STDOUT = Path("-")
_KEY_LINE = 32
"""Characters of a line of a key that occur nowhere else."""


@click.command(short_help="Write a support bundle without secrets.", epilog=EPILOG)
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="New file; - for standard output. [default: vkgateway-report-TIME.tar.gz]",
)
@click.option(
    "--include-messages",
    is_flag=True,
    help="Also messages and log fields that other programs wrote. Known forms of secrets are removed; read the bundle "
    "before you send it.",
)
@click.option(
    "--tenant",
    metavar="NAME",
    shell_complete=values.tenants,
    help="In the management cluster: only this tenant.",
)
@target_options
@run_async
async def report(*, file: Path | None, include_messages: bool, tenant: str | None, target: Target) -> None:
    """Write a support bundle (tar.gz) for platform ops or for a bug report. It reads only, and contains no secrets.

    In a tenant's cluster: nodes, governed pods, gangs, events, webhooks. In the management cluster: Tenants,
    ComputeClusters, nodes, and the gateway's pods, state, metrics and log. `index.json` lists each file, and what could
    not be read and why.
    """
    from datetime import UTC, datetime

    from vkgateway.cli.plugin.bundle import archive
    from vkgateway.cli.plugin.connection import connect
    from vkgateway.cli.plugin.gateway import require_management

    now = datetime.now(UTC)
    async with connect(target) as connection:
        require_management(connection, tenant)
        files = await _gather(connection, include_messages=include_messages, tenant=tenant or "")
        files = archive.without_secrets(files, await _credentials(connection))
    index = archive.Index(
        created=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        program=f"vkgateway {__version__}",
        kind=connection.kind,
        messages=include_messages,
        left_out=archive.LEFT_OUT,
        files=tuple(found.entry for found in files),
    )
    name = f"vkgateway-report-{now:%Y%m%dT%H%M%SZ}"
    data = archive.pack(files, index, folder=name, now=now.timestamp())
    if file == _STDOUT:
        sys.stdout.buffer.write(data)
    else:
        archive.write_archive(file or Path(f"{name}.tar.gz"), data)
    _print_summary(files, file or Path(f"{name}.tar.gz"), len(data))


async def _gather(connection: Connection, *, include_messages: bool, tenant: str) -> list[BundleFile]:
    from vkgateway.cli.plugin.bundle.parts import Gathering
    from vkgateway.cli.plugin.status import management_status, tenant_status

    is_tenant = connection.kind == "tenant"
    status = await (tenant_status(connection) if is_tenant else management_status(connection))
    gathering = Gathering(
        connection=connection,
        user=status.cluster.user,
        status=status,
        include_messages=include_messages,
        tenant=tenant,
    )
    if not is_tenant:
        from vkgateway.cli.plugin.bundle.management_parts import management_parts

        return await gathering.read_all(management_parts(gathering))
    from vkgateway.cli.plugin.bundle.tenant_parts import tenant_parts

    return await gathering.read_all(tenant_parts(gathering, await _pods_if_any(connection)))


async def _pods_if_any(connection: Connection) -> PodList | None:
    from vkgateway.cli.plugin.tenant_reads import list_widest
    from vkgateway.kube import errors

    try:
        return await list_widest(connection)
    except errors.Forbidden:
        return None


async def _credentials(connection: Connection) -> list[str]:
    """Return the caller's token, and the long lines of its key."""
    from vkgateway.kube import errors

    config = connection.config
    found = [config.token]
    if config.key is not None:
        lines = config.key.decode(errors="replace").splitlines()
        found += [line for line in lines if len(line) >= _KEY_LINE and not line.startswith("-")]
    try:
        async with asyncio.timeout(5):
            header = (await connection.client.authorization_headers()).get("Authorization", "")
    except (errors.ApiError, TimeoutError):
        return found
    return [*found, header.removeprefix("Bearer ")]


def _print_summary(files: list[BundleFile], path: Path, size: int) -> None:
    """Print what the bundle has, and what it lacks, on standard error: standard output may be the bundle."""
    written = sum(found.text is not None for found in files)
    where = "standard output" if path == _STDOUT else str(path)
    click.echo(f"Written: {where} ({written} files, {(size + 1023) // 1024} KiB)", err=True)
    for found in files:
        if found.entry.problem:
            click.echo(f"Not in it: {found.entry.file}: {found.entry.problem}", err=True)
