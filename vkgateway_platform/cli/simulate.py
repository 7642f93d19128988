"""`vkgateway simulate`: simulation of the arbiter and other schedulers on a trace, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vkgateway.api.errors import InputError
from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import output_option_of
from vkgateway_platform.cli.simulate_options import FILE, SECONDS, cluster_options, trace_options

if TYPE_CHECKING:
    from vkgateway_platform.cli.simulate_saved_states import SavedStates

EPILOG = """\b
Examples:
  vkgateway simulate
  vkgateway simulate --load 1.1 --duration 24h --nodes 64x8 --tenants 8 --policy all --report report.html
  vkgateway simulate --load 1.3 --seed 7 --late -o json
  vkgateway simulate --load 1.1 --low-yields-to Guarantee
  vkgateway simulate --load 1.1 --half-life 24h
  vkgateway simulate --replay --tenants-file other-guarantees.yaml
  vkgateway simulate --trace openb_pod_list_default.csv --nodes-file openb_node_list_gpu_node.csv --load 1.1
"""


@click.command(short_help="Simulate a cluster with a trace.", epilog=EPILOG)
@cluster_options
@trace_options
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("vkgateway",),
    show_default=True,
    metavar="NAME",
    help="Scheduler: vkgateway, fifo, kueue, private, all, or your MODULE:CLASS; repeatable.",
)
@click.option(
    "--low-yields-to",
    type=click.Choice(["GuaranteedBand", "Guarantee"]),
    help="Work for which low pods of other tenants are evicted. [default: from the log, or GuaranteedBand]",
)
@click.option(
    "--run-limits",
    metavar="LIMITS",
    help="Run limits that the pools enforce: none, declared, or also defaults by band, like guaranteed=72h,low=12h. "
    "[default: from the log, or none]",
)
@click.option(
    "--half-life",
    type=SECONDS,
    help="Time after which half of what a tenant borrowed no longer counts for its place in the queue; 0: only present "
    "use counts. [default: from the log, or 0]",
)
@click.option("--notice", type=SECONDS, help="Time from notice to deletion. [default: from the log, or 30s]")
@click.option(
    "--grace", type=SECONDS, help="Time from deletion to the end of the pods. [default: from the log, or 60s]"
)
@click.option(
    "--recreate",
    type=SECONDS,
    default="0s",
    show_default=True,
    help="Time from the end of evicted pods to their re-creation; doubles with each eviction, up to 10m.",
)
@click.option(
    "--startup",
    type=SECONDS,
    default="0s",
    show_default=True,
    help="Time from admission to running pods; a gang evicted before keeps its queue position.",
)
@click.option("--interval", type=SECONDS, default="1s", show_default=True, help="Minimum time between two cycles.")
@click.option(
    "--refresh",
    type=SECONDS,
    default="30s",
    show_default=True,
    help="Maximum time between two cycles while gangs wait.",
)
@click.option("--warm-up", type=SECONDS, default="0s", help="Initial period that is excluded from GPU shares.")
@click.option("--late", "show_late", is_flag=True, help="List the gangs that started later than their bound.")
@click.option("--report", type=FILE, help="Write an HTML report with plots to this file.")
@click.option("--save", type=FILE, help="Save the simulation to this file every 30 s.")
@click.option("--resume", is_flag=True, help="Continue from the file of --save.")
@output_option_of("table", "json", "yaml")
@data_dir_option
def simulate(
    *,
    policies: tuple[str, ...],
    show_late: bool,
    report: Path | None,
    save: Path | None,
    resume: bool,
    output: str,
    **options: Any,
) -> None:
    """Simulate a cluster with a trace: waits, late guarantees, evictions, lost GPU-hours and fragmentation.

    Uses the gateway's arbiter. Reads only the given files and changes no cluster.
    """
    from vkgateway_platform.cli import simulate_report
    from vkgateway_platform.cli.simulate_inputs import ScenarioOptions, build_scenario
    from vkgateway_platform.cli.simulate_output import print_results
    from vkgateway_platform.cli.simulate_run import run_simulations
    from vkgateway_platform.simulate.metrics import cluster_gpus
    from vkgateway_platform.simulate.policies.registry import load_schedulers

    if resume and save is None:
        raise InputError("--resume needs a saved simulation", hint="Add --save FILE.")
    if report is not None:
        simulate_report.require_plotly()
    schedulers = load_schedulers(policies)
    scenario = build_scenario(ScenarioOptions(**options))
    results = run_simulations(
        scenario,
        schedulers,
        _load_saved_states(save, scenario.fingerprint(), resume=resume) if save is not None else None,
    )
    if report is not None:
        simulate_report.write_report(report, results, gpus=cluster_gpus(scenario))
    print_results(results, output=output, late=show_late)


def _load_saved_states(file: Path, fingerprint: str, *, resume: bool) -> SavedStates:
    from vkgateway_platform.cli.simulate_saved_states import SavedStates

    saved_states = SavedStates(file, fingerprint)
    if resume:
        saved_states.load()
    return saved_states
