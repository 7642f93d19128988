"""`kubectl vkgateway usage`: GPU-hours of a tenant's pods, or of all tenants."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import msgspec

from vkgateway.api import times
from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, POOL_LABEL
from vkgateway.api.objects import TERMINAL_PHASES, Object
from vkgateway.api.requests import device_requests
from vkgateway.cli.output import Column, print_table, serialize
from vkgateway.cli.pending_gangs import gang_of
from vkgateway.cli.plugin import values
from vkgateway.cli.plugin.options import target_options
from vkgateway.cli.plugin.target import Target, run_async
from vkgateway.cli.usage import UsageOptions, usage_options
from vkgateway.kinds.pods.translation.to_compute import pod_band

if TYPE_CHECKING:
    from vkgateway.cli.plugin.connection import Connection


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
    shell_complete=values.tenants,
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


PodKey = Literal["namespace", "gang", "pod", "band", "pool", "computeCluster", "resource"]
KEYS: Final[tuple[PodKey, ...]] = ("namespace", "gang", "pod", "band", "pool", "computeCluster", "resource")


class PodHours(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Usage of one group of pods; hours are unit-hours (GPU-hours)."""

    by: dict[str, str]
    hours: float
    pods: int


def sum_hours(
    pods: Iterable[Object], nodes: Iterable[Object], *, since: float, until: float, by: Sequence[PodKey]
) -> list[PodHours]:
    """Return the usage between two times (seconds since the epoch), grouped and sorted by the keys `by`.

    A pod counts from its start time to the end of its last container, or until `until` while it runs. Pool and
    compute cluster are those of the labels of its node.
    """
    labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
    hours: dict[tuple[str, ...], float] = {}
    counts: dict[tuple[str, ...], set[str]] = {}
    for pod in pods:
        start, end = run_interval(pod, now=until)
        start, end = max(start, since), min(end, until)
        if end <= start:
            continue
        for resource, amount in device_requests(pod).items():
            facts = _facts(pod, labels) | {"resource": resource}
            key = tuple(facts[name] for name in by)
            hours[key] = hours.get(key, 0.0) + (end - start) * amount / 1000 / 3600
            counts.setdefault(key, set()).add(f"{facts['namespace']}/{facts['pod']}")
    return [
        PodHours(by=dict(zip(by, key, strict=True)), hours=hours[key], pods=len(counts[key])) for key in sorted(hours)
    ]


def run_interval(pod: Object, *, now: float) -> tuple[float, float]:
    """Return when a pod started and ended, in seconds since the epoch; equal times if it did not start.

    A pod has started when a kubelet or a virtual node accepted it (`status.startTime`).
    """
    status = pod.get("status") or {}
    start = times.parse_seconds(status.get("startTime"))
    if not start or not (pod.get("spec") or {}).get("nodeName"):
        return now, now
    if status.get("phase") not in TERMINAL_PHASES:
        return start, now
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    ends = (((entry.get("state") or {}).get("terminated") or {}).get("finishedAt") for entry in statuses)
    return start, max((times.parse_seconds(end) for end in ends if end), default=start)


def _facts(pod: Object, labels: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    node = spec.get("nodeName") or ""
    _, source, gang = gang_of(pod).split("/", 2)
    return {
        "namespace": metadata["namespace"],
        "pod": metadata["name"],
        "gang": gang if source != "pod" else "",
        "band": pod_band(spec),
        "pool": labels.get(node, {}).get(POOL_LABEL) or node,
        "computeCluster": labels.get(node, {}).get(COMPUTE_CLUSTER_LABEL, ""),
    }
