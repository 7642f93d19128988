"""`python -m bench NAME...|all|paths`: runs benchmarks on this machine, or counts the files of typical changes."""

from __future__ import annotations

import asyncio
import signal
import sys
from types import ModuleType

import click

from bench import (
    burst,
    check,
    cost,
    decide,
    failover,
    gang,
    growth,
    idle,
    light,
    memory,
    onboard,
    page,
    queue,
    reclaim,
    restart,
    streams,
    trace,
    translate,
)
from bench.environment import component_versions
from bench.failures import first_failure
from bench.measurement import start_measurement
from bench.options import parse_sizes, platform_options, run_to_exit
from bench.outcome import Outcome
from bench.platform import GPU_NODES, start_platform
from bench.queueload import COHORTS
from bench.queueload import LARGEST as LARGEST_LOAD
from bench.session import Session
from bench.settings import LARGEST, Settings, hollow_nodes
from vkgateway.api.errors import VkgatewayError
from vkgateway.cli.progress import Progress
from vkgateway.serve import logs
from vkgateway.settings.config import Logging

BENCHMARKS: dict[str, ModuleType] = {
    "translate": translate,
    "decide": decide,
    "trace": trace,
    "idle": idle,
    "streams": streams,
    "light": light,
    "gang": gang,
    "reclaim": reclaim,
    "onboard": onboard,
    "burst": burst,
    "cost": cost,
    "restart": restart,
    "memory": memory,
    "growth": growth,
    "failover": failover,
    "queue": queue,
    "page": page,
}
"""Benchmarks in the order of `all`.

The first four need no platform, and streams has a separate one. The next three delete their few tenants, those of
onboard remain. cost reports the bursts before it. growth, idle, failover and queue are not part of
`all`, because they take long, nor is page, because it needs a browser.
"""

_ALONE = frozenset({"translate", "decide", "trace", "idle", "page"})
"""Benchmarks that need no platform."""
_NOT_IN_ALL = frozenset({"growth", "idle", "failover", "queue", "page"})
_REAL = frozenset({"streams"})
"""Benchmarks that need a real node. Their platform is separate, because a real node would use cores of the others."""


@click.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice([*BENCHMARKS, "all", "check"]))
@click.option("--pods", type=click.IntRange(1, LARGEST), help="Concurrent pods. [default: each benchmark's own sizes]")
@click.option("--tenants", type=click.IntRange(1, 50), default=25, show_default=True, help="Number of tenants.")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=60.0,
    show_default=True,
    help="Duration of light, of the idle time of growth and idle, and of the freezes of failover.",
)
@click.option("--rounds", type=click.IntRange(1, 100), default=20, show_default=True, help="Rounds of memory.")
@click.option(
    "--turns",
    type=click.IntRange(1, 30),
    default=3,
    show_default=True,
    help="Measurements of each case of burst and failover.",
)
@click.option(
    "--sizes",
    callback=lambda _context, _option, text: parse_sizes(text),
    metavar="N,N,...",
    help="Numbers of tenants of growth and idle, ascending. [default: 10,25,50, and as many as the memory holds; "
    "100,250,500,1000 for idle]",
)
@click.option(
    "--reserve",
    "reserve_gib",
    type=click.FloatRange(0.5),
    default=2.5,
    show_default=True,
    help="GiB of memory that growth leaves free.",
)
@click.option(
    "--workloads",
    type=click.IntRange(15, LARGEST_LOAD),
    default=LARGEST_LOAD,
    show_default=True,
    help="Workloads of queue.",
)
@click.option(
    "--cohorts", type=click.IntRange(1, COHORTS), default=COHORTS, show_default=True, help="Cohorts of queue."
)
@platform_options
def main(names: tuple[str, ...], **options: object) -> None:
    """Run benchmarks by name, or all of them, on a temporary platform.

    `check` runs a short burst and cost. It compares their ratios with the published ones, writes nothing, and fails if
    one is worse by more than a tenth.

    `paths` runs alone and has other options: see `python -m bench paths --help`.
    """
    settings = Settings(**options)  # type: ignore[arg-type] # click has checked every one of them
    logs.configure_logging(Logging(level="warning"))
    chosen = [name for name in BENCHMARKS if name in names or ("all" in names and name not in _NOT_IN_ALL)]
    run_to_exit(_run_check(settings) if "check" in names else _run_benchmarks(chosen, settings))


async def _run_check(settings: Settings) -> None:
    outcomes = await _run_benchmarks(list(check.NAMES), check.short_settings(settings))
    try:
        worse = check.find_worse(outcomes)
    except VkgatewayError as error:
        raise click.ClickException(f"{error}\n{error.hint}") from error
    if worse:
        raise click.ClickException("\n".join(["worse than published by more than a tenth:", *worse]))


async def _run_benchmarks(names: list[str], settings: Settings) -> dict[str, Outcome]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    outcomes = {name: await _measure_benchmark(name, None, settings) for name in names if name in _ALONE}
    for real in (True, False):
        chosen = [name for name in names if name not in _ALONE and (name in _REAL) == real]
        if chosen:
            outcomes |= await _run_on_platform(chosen, settings, real=real)
    return outcomes


async def _run_on_platform(names: list[str], settings: Settings, *, real: bool) -> dict[str, Outcome]:
    nodes = hollow_nodes(max(settings.pod_counts(2500)) + 100)
    gpu_nodes = GPU_NODES if {"gang", "reclaim"} & set(names) else 1
    with Progress() as progress:
        try:
            async with start_platform(settings, nodes=nodes, gpu_nodes=gpu_nodes, real=real, report=progress) as ready:
                session = Session(ready, settings, report=progress)
                return {name: await _measure_benchmark(name, session, settings) for name in names}
        except* VkgatewayError as group:
            raise first_failure(group) from group


async def _measure_benchmark(name: str, session: Session | None, settings: Settings) -> Outcome:
    module = BENCHMARKS[name]
    measurement = await start_measurement()
    outcome = await (idle.run(settings) if module is idle else module.run(session))
    measurement.end_load()
    versions = component_versions(session.platform.record if session is not None else None)
    measurement.publish_result(outcome, name=name, title=module.TITLE, versions=versions, write=settings.write)
    return outcome


def run_command() -> None:
    """Run the command line. Only `paths` loads the unit tests, whose fakes it uses."""
    if sys.argv[1:2] == ["paths"]:
        from bench import paths

        paths.main(sys.argv[2:], prog_name="python -m bench paths")
    else:
        main(prog_name="python -m bench")


if __name__ == "__main__":
    run_command()
