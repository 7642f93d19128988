"""`python -m bench.scale`: a trace of Jobs on a large hollow compute cluster, compared with its simulation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from bench.environment import component_versions
from bench.failures import first_failure
from bench.measurement import start_measurement
from bench.options import platform_options, run_to_exit
from bench.platform import start_platform
from bench.scale import outcome, play, simulated, workload
from bench.scale.settings import Scale
from bench.settings import Settings
from vkgateway.api.errors import VkgatewayError
from vkgateway.cli.progress import Progress
from vkgateway.serve import logs
from vkgateway.settings.config import Logging
from vkgateway_platform.embedded.options import HOLLOW_NODES_MAX
from vkgateway_platform.simulate.scenario import Job


@click.command()
@click.option(
    "--nodes", type=click.IntRange(16, HOLLOW_NODES_MAX), default=1000, show_default=True, help="Hollow nodes."
)
@click.option("--tenants", type=click.IntRange(1, 50), default=25, show_default=True, help="Tenants.")
@click.option(
    "--minutes", type=click.FloatRange(0.5, 120), default=15.0, show_default=True, help="Duration after the warm-up."
)
@click.option(
    "--speed", type=click.FloatRange(1, 100), default=20.0, show_default=True, help="Seconds of the trace per second."
)
@click.option(
    "--load",
    type=click.FloatRange(0.1, 3),
    default=1.1,
    show_default=True,
    help="Requested GPU-hours, relative to the cluster.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed of the trace.")
@click.option(
    "--samples", type=click.IntRange(0, 100), default=8, show_default=True, help="Simulations with drawn delays."
)
@click.option(
    "--gangs",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the times of each gang to this file, as JSON.",
)
@platform_options
def main(
    data_dir: Path | None,
    program_dirs: tuple[Path, ...],
    gangs: Path | None,
    *,
    keep: bool,
    write: bool,
    **options: float,
) -> None:
    """Play a trace of Jobs in real tenants on hollow nodes, simulate it, and compare both."""
    logs.configure_logging(Logging(level="warning"))
    scale = Scale(**options)  # type: ignore[arg-type] # click has checked every one of them
    settings = Settings(tenants=scale.tenants, data_dir=data_dir, program_dirs=program_dirs, keep=keep, write=write)
    run_to_exit(_run_trace(scale, settings, gangs))


async def _run_trace(scale: Scale, settings: Settings, gangs: Path | None) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    measurement = await start_measurement()
    jobs, warm_up = workload.make_workload(scale)
    with Progress() as progress:
        played, versions = await _play_jobs(scale, settings, jobs, warm_up, progress)
        measurement.end_load()
        progress("simulating the run")
        simulations = await asyncio.to_thread(simulated.simulate_run, scale, jobs, played, warm_up=warm_up)
    if gangs is not None:
        _write_rows(gangs, outcome.gang_records(jobs, played, simulations))
    measurement.publish_result(
        outcome.build_outcome(scale, jobs, played, simulations, warm_up=warm_up),
        name="scale",
        title=outcome.run_title(scale),
        versions=versions,
        write=settings.write,
    )


def _write_rows(file: Path, rows: object) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


async def _play_jobs(
    scale: Scale, settings: Settings, jobs: Sequence[Job], warm_up: float, progress: Progress
) -> tuple[play.PlatformRun, dict[str, str]]:
    """Play the jobs on a temporary platform. Return also the versions of its programs."""
    try:
        async with start_platform(settings, nodes=1, gpu_nodes=scale.nodes, report=progress) as ready:
            return await play.play_jobs(ready, scale, jobs, warm_up=warm_up), component_versions(ready.record)
    except* VkgatewayError as group:
        raise first_failure(group) from group
    raise AssertionError  # the block returns or raises


if __name__ == "__main__":
    main()
