"""`vkgateway simulate`: the arbiter, and other schedulers, over a trace of work on a clock of their own."""

from __future__ import annotations

from typing import Any

import click

from vkgateway.cli.options import data_dir_option
from vkgateway.cli.output import output_option_of
from vkgateway.cli.simulate_options import SECONDS, cluster_options, trace_options

EPILOG = """\b
Examples:
  vkgateway simulate
  vkgateway simulate --load 1.1 --duration 24h --nodes 64x8 --tenants 8
  vkgateway simulate --load 1.3 --seed 7 --late -o json
  vkgateway simulate --replay --tenants-file other-guarantees.yaml
  vkgateway simulate --trace openb_pod_list_default.csv --nodes-file openb_node_list_gpu_node.csv --duration 7d
"""


@click.command(epilog=EPILOG)
@cluster_options
@trace_options
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("vkgateway",),
    show_default=True,
    metavar="NAME",
    help="The scheduler: vkgateway, or MODULE:CLASS of your own; again for more; all.",
)
@click.option("--notice", type=SECONDS, default="30s", show_default=True, help="From an eviction's notice to deletion.")
@click.option("--grace", type=SECONDS, default="60s", show_default=True, help="From deletion to the end of the pods.")
@click.option("--interval", type=SECONDS, default="1s", show_default=True, help="Least time between two cycles.")
@click.option(
    "--refresh", type=SECONDS, default="30s", show_default=True, help="Most time between two cycles if gangs wait."
)
@click.option("--late", "show_late", is_flag=True, help="List the gangs that started after the bound.")
@output_option_of("table", "json", "yaml")
@data_dir_option
def simulate(
    *,
    policies: tuple[str, ...],
    notice: float,
    grace: float,
    interval: float,
    refresh: float,
    show_late: bool,
    output: str,
    **options: Any,
) -> None:
    """Simulate how a cluster runs a trace: waits, late guarantees, evictions, lost GPU-hours and fragmentation.

    The arbiter is the one of the gateway. Nothing but the files named is read, and no cluster is changed.
    """
    from vkgateway.cli.simulate_inputs import Inputs, scenario_of
    from vkgateway.cli.simulate_output import show
    from vkgateway.cli.simulate_run import run
    from vkgateway.simulate.policies.catalogue import schedulers
    from vkgateway.simulate.scenario import Settings

    chosen = schedulers(policies)
    settings = Settings(notice=notice, grace=grace, interval=interval, refresh=refresh)
    scenario = scenario_of(Inputs(**options, settings=settings))
    show(run(scenario, chosen), output=output, late=show_late)
