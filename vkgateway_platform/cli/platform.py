"""`vkgateway up`, `down`, `status` and `logs`: commands of the embedded platform."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vkgateway.cli.options import confirm_deletion, data_dir_option, run_async, yes_option
from vkgateway.cli.output import Column, output_option, print_table, serialize
from vkgateway.cli.progress import Progress

if TYPE_CHECKING:
    from vkgateway_platform.embedded.options import RealNodeChoice
    from vkgateway_platform.embedded.paths import PlatformPaths
    from vkgateway_platform.embedded.record import PlatformRecord
    from vkgateway_platform.embedded.status import PlatformStatus, ProcessSummary

F = TypeVar("F", bound=Callable[..., Any])

NOT_UP = 5
"""Exit code of `status` if the platform is not fully up."""

REASON_WIDTH = 100
"""Maximum width of the last log line in a table; -o json prints all of it."""

UP_EPILOG = """\b
Examples:
  vkgateway up
  vkgateway up --real-node no --port compute-api=16443
  vkgateway up --data-dir /tmp/second --port-range 20000-20999
  vkgateway up --cluster-only
"""


@click.command(short_help="Start the embedded platform.", epilog=UP_EPILOG)
@click.option(
    "--kubernetes-version",
    metavar="X.Y.Z",
    help="Kubernetes version of the compute cluster. [default: see `vkgateway version`]",
)
@click.option(
    "--real-node",
    type=click.Choice(["auto", "yes", "no"]),
    help="Run a real node in addition to the hollow nodes; auto: if the machine supports it. [default: auto]",
)
@click.option("--port", "ports", multiple=True, metavar="NAME=PORT", help="Fixed port of a component; repeatable.")
@click.option("--port-range", metavar="FROM-TO", help="Range for all other ports.")
@click.option(
    "--hollow-nodes",
    multiple=True,
    metavar="POOL=COUNT",
    help="Number of hollow nodes in a pool; repeatable. [default: a100=4, v100=2]",
)
@click.option(
    "--durable/--no-durable",
    default=None,
    help="Whether etcd syncs writes to disk; --no-durable is for benchmarks only.",
)
@click.option(
    "--templates-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True),
    help="Directory of tenant templates that replaces the shipped templates.",
)
@click.option(
    "--program-dir",
    "program_dirs",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    envvar="VKGATEWAY_PROGRAM_DIR",
    show_envvar=True,
    help="Directory that is searched for programs first; repeatable.",
)
@click.option(
    "--webhook-range",
    "webhook_ranges",
    multiple=True,
    metavar="CIDR",
    help="Private addresses at which webhooks by URL of tenants may be, such as 127.0.0.1/32; repeatable; none: no "
    "such addresses. [default: none]",
)
@click.option(
    "--gateway/--no-gateway",
    default=True,
    show_default=True,
    help="Run the gateway; --no-gateway stops it. Not remembered.",
)
@click.option(
    "--cluster-only",
    is_flag=True,
    help="Start only a cluster, without vkgateway, to install the chart into. Not remembered.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@data_dir_option
@run_async
async def up(
    *,
    kubernetes_version: str | None,
    real_node: RealNodeChoice | None,
    ports: tuple[str, ...],
    port_range: str | None,
    hollow_nodes: tuple[str, ...],
    durable: bool | None,
    templates_dir: Path | None,
    program_dirs: tuple[Path, ...],
    webhook_ranges: tuple[str, ...],
    gateway: bool,
    cluster_only: bool,
    quiet: bool,
    data_dir: Path,
) -> None:
    """Start the embedded platform: etcd, a compute cluster with hollow GPU nodes, a real node, and the gateway.

    The command is idempotent: running components stay, also after a failure or a reboot. Options are remembered for
    the next `up`.
    """
    from vkgateway_platform.embedded import ports as port_choice
    from vkgateway_platform.embedded import startup
    from vkgateway_platform.embedded.options import PORTS, UpOptions

    _log_warnings_only()
    options = UpOptions(
        kubernetes_version=kubernetes_version,
        # The pods of the chart run on the real node.
        real_node=real_node or ("yes" if cluster_only else None),
        ports=dict(port_choice.parse_port(text, names=PORTS) for text in ports),
        port_range=port_choice.parse_range(port_range) if port_range else None,
        hollow_nodes=dict(_parse_pool_count(text) for text in hollow_nodes),
        durable=durable,
        templates_dir=templates_dir,
        program_dirs=tuple(folder.absolute() for folder in program_dirs),
        webhook_ranges=_parse_webhook_ranges(webhook_ranges),
        gateway=gateway,
        cluster_only=cluster_only,
    )
    with Progress(quiet=quiet) as progress:
        record = await startup.up(data_dir, options, report=progress)
        if record.real_node_why_not:
            progress.done(f"no real node: {record.real_node_why_not}")
        progress.done("platform is up")
    if not quiet:
        click.echo(_next_steps(data_dir, record, cluster_only=cluster_only, has_page=gateway))


@click.command(
    short_help="Stop the embedded platform.",
    epilog="\b\nExample: vkgateway down; vkgateway down --purge --yes --data-dir /tmp/second",
)
@click.option("--purge", is_flag=True, help="Also delete the platform's data, including all tenants and their objects.")
@yes_option
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@data_dir_option
@run_async
async def down(*, purge: bool, yes: bool, quiet: bool, data_dir: Path) -> None:
    """Stop the embedded platform: remove all processes, mounts and interfaces; keep the data for the next `up`."""
    from vkgateway_platform.embedded.down import down as take_down

    if purge:
        confirm_deletion(f"the platform in {data_dir} with all tenants and their data", yes=yes)
    _log_warnings_only()
    with Progress(quiet=quiet) as progress:
        await take_down(data_dir, purge=purge, report=progress)
        progress.done("platform is down")


@click.command(
    short_help="Show the state of the platform.",
    epilog="\b\nExample: vkgateway status; vkgateway status -o json | jq .state",
)
@output_option
@data_dir_option
@click.pass_context
@run_async
async def status(ctx: click.Context, *, output: str, data_dir: Path) -> None:
    """Show the state of the platform: processes, nodes, tenants, addresses. Exit code 5 unless it is fully up."""
    from vkgateway_platform.embedded.status import platform_status as read_status

    platform = await read_status(data_dir)
    if output == "table":
        _print_status(platform)
    elif output == "name":
        click.echo(platform.state)
    else:
        import msgspec

        click.echo(serialize(msgspec.to_builtins(platform), output=output), nl=False)
    if platform.state != "up":
        ctx.exit(NOT_UP)


@click.command(
    short_help="Print the log of a component.",
    epilog="\b\nExample: vkgateway logs; vkgateway logs -f gateway; vkgateway logs --tail 50 compute/apiserver",
)
@click.argument("component", required=False)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until interrupted.")
@click.option("--tail", type=click.IntRange(min=0), default=200, show_default=True, help="Maximum number of lines.")
@data_dir_option
@run_async
async def logs(*, component: str | None, follow: bool, tail: int, data_dir: Path) -> None:
    """Print the log of COMPONENT; without an argument, list the components."""
    from vkgateway.planes.supervisor.logs import last_lines
    from vkgateway_platform.embedded import logs as files

    if component is None:
        for name in files.require_components(data_dir):
            click.echo(name)
        return
    out = sys.stdout.buffer
    with files.log_file(data_dir, component).open("rb") as file:
        out.write(last_lines(file, tail))
        out.flush()
        if follow:
            async for added in files.follow_file(file):
                out.write(added)
                out.flush()


def _log_warnings_only() -> None:
    """Hide info logs of lower layers: commands report their progress themselves."""
    from vkgateway.serve import logs
    from vkgateway.settings.config import Logging

    logs.configure_logging(Logging(level="warning"))


def _parse_pool_count(text: str) -> tuple[str, int]:
    from vkgateway.api.errors import InputError

    pool, _, count = text.partition("=")
    if not (pool and count.isdecimal()):
        raise InputError(f"--hollow-nodes {text!r} is not POOL=COUNT", hint="Example: --hollow-nodes a100=8")
    return pool, int(count)


def _parse_webhook_ranges(texts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the ranges of --webhook-range; None if it was not given, which keeps the former ones."""
    from vkgateway.api.errors import InputError
    from vkgateway.planes.webhook_ranges import parse_webhook_range

    if not texts or texts == ("none",):
        return () if texts else None
    try:
        return tuple(str(parse_webhook_range(text)) for text in texts)
    except InputError as error:
        raise InputError(f"--webhook-range {error}", hint=error.hint) from error


def _next_steps(data_dir: Path, record: PlatformRecord, *, cluster_only: bool, has_page: bool) -> str:
    from vkgateway.cli.options import default_data_dir
    from vkgateway_platform.embedded.paths import PlatformPaths
    from vkgateway_platform.embedded.proxies import no_proxy

    proxy = no_proxy(os.environ, address=record.address)
    data_dir_option = "" if data_dir == default_data_dir().resolve() else f" --data-dir {shlex.quote(str(data_dir))}"
    paths = PlatformPaths(data_dir)
    kubeconfig = shlex.quote(str(paths.admin_kubeconfig))
    if cluster_only:
        steps = _chart_steps(paths, data_dir_option)
    else:
        steps = [
            f"kubectl --kubeconfig {kubeconfig} get nodes",
            f"vkgateway tenant create alpha --pool a100{data_dir_option}",
            *([f"vkgateway ui{data_dir_option}    # signs in at {_page_url(record.ports)}"] if has_page else []),
            f"vkgateway status{data_dir_option}",
            f"vkgateway down{data_dir_option}",
        ]
    return "\n".join(
        (
            f"The compute cluster serves at https://{record.address}:{record.ports['compute-api']}. Next steps:",
            *([f"  export NO_PROXY={shlex.quote(proxy)}    # otherwise kubectl uses your proxy"] if proxy else []),
            *(f"  {step}" for step in steps),
        )
    )


def _page_url(ports: Mapping[str, int]) -> str:
    from vkgateway.cli.page_links import page_link
    from vkgateway.page.local_host import local_address

    return page_link(local_address(ports["gateway-page"]))


def _chart_steps(paths: PlatformPaths, data_dir_option: str) -> list[str]:
    """Return the commands that install the chart."""
    return [
        f"export KUBECONFIG={shlex.quote(str(paths.admin_kubeconfig))}",
        f"vkgateway image load-control-planes{data_dir_option}",
        f"vkgateway image load ARCHIVE{data_dir_option}    # the archive of `make image`",
        "helm install vkgateway deploy/chart/vkgateway --namespace vkgateway-system --create-namespace "
        f"--values {shlex.quote(str(paths.gateway.chart_values))} --wait",
        f"kubectl apply -f {shlex.quote(str(paths.gateway.compute_cluster))}",
        "helm test vkgateway --namespace vkgateway-system --logs",
    ]


def _print_status(status: PlatformStatus) -> None:
    from vkgateway_platform.embedded.gateway_process import NAME

    click.echo(f"platform    {status.state}   ({status.data_dir})")
    click.echo(f"compute     {status.compute_url}   Kubernetes {status.kubernetes_version}")
    click.echo(f"kubeconfig  {status.kubeconfig}")
    click.echo(f"real node   {status.real_node}")
    if any(process.name == NAME for process in status.processes):
        click.echo(f"page        {_page_url(status.ports)}   (vkgateway ui signs in)")
    for problem in status.problems:
        click.echo(f"problem     {problem}")
    now = datetime.datetime.now(datetime.UTC).timestamp()
    sections: tuple[tuple[tuple[str, ...], list[list[str]]], ...] = (
        (
            ("process", "state", "pid", "restarts", "for", "last ended"),
            [_process_row(process, now=now) for process in status.processes],
        ),
        (("node", "pool", "ready"), [[n.name, n.pool or "-", "yes" if n.ready else "no"] for n in status.nodes]),
        (("tenant", "phase", "api server"), [[t.name, t.phase, t.url or "-"] for t in status.tenants]),
    )
    for titles, rows in sections:
        if rows:
            click.echo()
            print_table(rows, columns=[Column(title, str) for title in titles])


def _process_row(process: ProcessSummary, *, now: float) -> list[str]:
    pid = _format_optional(process.pid)
    reason = textwrap.shorten(process.reason, REASON_WIDTH, placeholder=" ...") or "-"
    state = "not working" if process.problem else process.state
    return [process.name, state, pid, str(process.restarts), _format_duration(now - process.since), reason]


def _format_optional(value: object) -> str:
    return "-" if value is None else str(value)


def _format_duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"
