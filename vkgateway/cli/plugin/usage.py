"""`kubectl vkgateway usage`: GPU-hours of a tenant's pods, or of all tenants."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.cli.output import Column, print_table, serialize
from vkgateway.cli.plugin import completion
from vkgateway.cli.plugin.options import Target, run_async, target_options
from vkgateway.cli.usage_options import UsageOptions, usage_options

if TYPE_CHECKING:
    from vkgateway.cli.plugin.connection import Connection
    from vkgateway.cli.plugin.pod_usage import PodHours, PodKey

EPILOG = """\b
Examples:
  kubectl vkgateway usage --since 7d
  kubectl vkgateway usage -n research --by pod -o csv
  kubectl vkgateway usage --context management --days 31 --by day,tenant -o csv
  kubectl vkgateway usage --context management --budgets
"""
_DEFAULT_KEYS = "namespace,pool,band"
_NOTE = (
    "Only pods that still exist are counted, from their start to their end. Platform ops have the hours of deleted "
    "pods, and which hours were borrowed."
)


@click.command(short_help="Sum the GPU-hours of pods.", epilog=EPILOG)
@usage_options(
    days="In the management cluster: the last UTC days, from the gateway.",
    budgets="In the management cluster: the monthly budgets and their use.",
    keys="namespace,pool,band; for ops tenant,band,pool",
)
@click.option(
    "--tenant",
    metavar="NAME",
    shell_complete=completion.tenants,
    help="In the management cluster: only the usage of this tenant.",
)
@target_options
@run_async
async def usage(*, target: Target, tenant: str | None, **given: Any) -> None:
    """Sum the GPU-hours of pods.

    In a tenant's cluster: of the pods that still exist, in all namespaces or that of -n. Keys: namespace, gang, pod,
    band, pool, computeCluster, resource.

    In the management cluster: of all tenants, as `vkgateway usage`, with borrowed and lost hours. --days and --budgets
    ask the gateway. Without them, the command reads the usage log of the gateway, which must run on this machine.
    """
    from vkgateway.cli.plugin.connection import connect
    from vkgateway.cli.plugin.gateway import require_management

    options = UsageOptions(**given)
    options.check()
    async with connect(target) as connection:
        require_management(connection, tenant)
        if connection.kind == "management":
            await _print_platform(connection, options, tenant)
        elif options.days is not None or options.budgets:
            raise InputError(
                "--days and --budgets are for the management cluster", hint="Use --since in a tenant's cluster."
            )
        else:
            await _print_pods(connection, options)


def parse_pod_keys(by: str) -> list[PodKey]:
    """Return the keys of the groups, which always include the resource. Raises InputError."""
    from vkgateway.cli.plugin.pod_usage import KEYS

    names = [part.strip() for part in by.split(",") if part.strip()]
    for name in names:
        if name not in KEYS:
            raise InputError(f"--by {name!r} is not a key", hint=f"Available keys: {', '.join(KEYS)}.")
    return [key for key in dict.fromkeys((*names, "resource")) if key in KEYS]


async def _print_platform(connection: Connection, options: UsageOptions, tenant: str | None) -> None:
    """Print the usage of all tenants, or of one: from the gateway, or from its log."""
    from vkgateway.cli.plugin.gateway import read_usage_days
    from vkgateway.cli.usage import parse_keys
    from vkgateway.cli.usage_days import DAY_KEYS, parse_prices, print_budgets, print_days

    if options.budgets:
        report = await read_usage_days(connection, days=1, tenant=tenant or "")
        print_budgets(report.budgets, output=options.output)
    elif options.days is not None:
        keys = parse_keys(options.by or "day,tenant,band,pool", known=DAY_KEYS)
        prices = parse_prices(options.prices)
        report = await read_usage_days(connection, days=options.days, tenant=tenant or "")
        print_days(report.days, by=keys, output=options.output, prices=prices)
    else:
        _print_log(connection, options, tenant)


def _print_log(connection: Connection, options: UsageOptions, tenant: str | None) -> None:
    from vkgateway.cli.plugin.connection import local_data_dir
    from vkgateway.cli.usage import parse_keys, print_totals, usage_log_path
    from vkgateway.tenants.usage.log import read_usage, sum_usage

    start, end = options.period()
    keys = parse_keys(options.by or "tenant,band,pool")
    folder = local_data_dir(connection.config)
    if folder is None:
        raise UnavailableError(
            f"the usage log of the gateway that serves {connection.client.server} is not on this machine",
            hint="Use --days N, which asks the gateway, or copy the log and use `vkgateway usage --log FILE`.",
        )
    records = read_usage(usage_log_path(folder))
    chosen = (record for record in records if tenant in (None, record.tenant))
    print_totals(sum_usage(chosen, since=start, until=end, by=keys), keys=keys, output=options.output)


async def _print_pods(connection: Connection, options: UsageOptions) -> None:
    from vkgateway.cli.plugin.pod_usage import sum_hours
    from vkgateway.cli.plugin.tenant_reads import list_nodes, list_widest, refusal_note

    start, end = options.period()
    keys = parse_pod_keys(options.by or _DEFAULT_KEYS)
    pods = await list_widest(connection)
    nodes, _ = await list_nodes(connection)
    print_hours(sum_hours(pods.pods, nodes or (), since=start, until=end, by=keys), keys=keys, output=options.output)
    click.echo(_NOTE, err=True)
    if pods.refused is not None:
        what = f"Only pods of namespace {pods.namespace} are counted"
        click.echo(await refusal_note(connection, what, [pods.refused]), err=True)


def print_hours(totals: Sequence[PodHours], *, keys: Sequence[str], output: str) -> None:
    """Print the hours, with one decimal in tables and in full otherwise."""
    import msgspec

    if output in ("json", "yaml"):
        click.echo(serialize([msgspec.to_builtins(total) for total in totals], output=output), nl=False)
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*keys, "hours", "pods"])
        writer.writerows([*(total.by[key] for key in keys), total.hours, total.pods] for total in totals)
    elif not totals:
        click.echo("No usage in this period.", err=True)
    else:
        columns: list[Column[Any]] = [*(Column(key, str) for key in keys)]
        columns += [Column("hours", str, "right"), Column("pods", str, "right")]
        rows = [[*(total.by[key] or "-" for key in keys), f"{total.hours:.1f}", str(total.pods)] for total in totals]
        print_table(rows, columns=columns)
