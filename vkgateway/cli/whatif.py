"""`vkgateway whatif`: questions to the gateway's arbiter about hypothetical changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli import name_completion
from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.lazy_group import LazyGroup
from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import output_option_of

if TYPE_CHECKING:
    from vkgateway.scheduler.core.whatif.questions import Question

EPILOG = """\b
Examples:
  vkgateway whatif gang --tenant alpha --pods 4 --request nvidia.com/gpu=8
  vkgateway whatif guarantee --tenant gamma --pool a100:guarantee=nvidia.com/gpu=16
  vkgateway whatif drain gpu-node-17
  vkgateway whatif grow a100 --nodes 4
"""


@click.group(
    cls=LazyGroup,
    lazy={
        "gang": "vkgateway.cli.whatif:gang",
        "guarantee": "vkgateway.cli.whatif:guarantee",
        "drain": "vkgateway.cli.whatif:drain",
        "grow": "vkgateway.cli.whatif:grow",
    },
    epilog=EPILOG,
    short_help="Ask the arbiter what would happen.",
)
def whatif() -> None:
    """Ask what would happen with a new gang, a changed guarantee, drained nodes, or more nodes.

    The arbiter of the running gateway decides on the current pods and nodes. Nothing is changed. Effects that would
    happen anyway are left out. Answers name all tenants, so the command is for admins of the platform.
    """


GANG_EPILOG = """\b
Examples:
  vkgateway whatif gang --tenant alpha --request nvidia.com/gpu=1
  vkgateway whatif gang --tenant alpha --pods 4 --request nvidia.com/gpu=8,cpu=32,memory=256Gi --pool a100
  vkgateway whatif gang --tenant alpha --pods 6 --min 2 --request nvidia.com/gpu=8 --low --run-limit 90m -o json
"""


@click.command(epilog=GANG_EPILOG, short_help="Would a new gang start, and where?")
@click.option("--tenant", required=True, shell_complete=name_completion.tenants, help="Tenant of the gang.")
@click.option("--pods", type=int, default=1, show_default=True, help="Number of equal pods.")
@click.option(
    "--request",
    "requests",
    multiple=True,
    required=True,
    metavar="RESOURCE=QUANTITY[,...]",
    help="Resource requests of each pod; repeatable.",
)
@click.option("--min", "minimum", type=int, help="Min members of an elastic gang. [default: all pods]")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    shell_complete=name_completion.pools,
    help="Allowed pool; repeatable, preferred first. [default: all pools]",
)
@click.option("--low", is_flag=True, help="Use the low band.")
@click.option("--priority", type=int, default=0, show_default=True, help="Value of the PriorityClass.")
@click.option("--run-limit", metavar="DURATION", help="Declared run limit, such as 90m, 2h or 1d.")
@click.option("--within", metavar="LABEL", help="Node label whose value all pods must share.")
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def gang(
    *,
    tenant: str,
    pods: int,
    requests: tuple[str, ...],
    minimum: int | None,
    pools: tuple[str, ...],
    low: bool,
    priority: int,
    run_limit: str | None,
    within: str | None,
    output: str,
    gateway: GatewayEndpoint,
    data_dir: Path,
) -> None:
    """Ask whether a gang of equal pods would start now, where, and which gangs would be evicted.

    If it would not start now, the answer has the reason and the expected start.
    """
    from vkgateway.cli import whatif_options
    from vkgateway.scheduler.core.whatif.questions import GangQuestion

    question = GangQuestion(
        tenant=tenant,
        pods=pods,
        requests=whatif_options.parse_requests(requests),
        minimum=minimum,
        pools=pools,
        band="low" if low else "guaranteed",
        priority=priority,
        run_limit=whatif_options.parse_seconds("--run-limit", run_limit),
        within=within or "",
    )
    await _ask_and_print(question, output=output, gateway=gateway, data_dir=data_dir)


GUARANTEE_EPILOG = """\b
Examples:
  vkgateway whatif guarantee --tenant gamma --pool a100:guarantee=nvidia.com/gpu=16
  vkgateway whatif guarantee --tenant alpha --pool a100.local:guarantee=nvidia.com/gpu=17,cells=2x8+1 -o json
"""


@click.command(epilog=GUARANTEE_EPILOG, short_help="Would a new or changed guarantee fit?")
@click.option("--tenant", required=True, shell_complete=name_completion.tenants, help="Existing or new tenant.")
@click.option(
    "--pool",
    required=True,
    shell_complete=name_completion.pools,
    metavar="POOL[.CLUSTER]:guarantee=RES=QTY,...[,limit=RES=QTY,...][,weight=N][,cells=8+8+1]",
    help="New guarantee in the pool. Limit and weight stay unless given. The default cluster is local.",
)
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def guarantee(*, tenant: str, pool: str, output: str, gateway: GatewayEndpoint, data_dir: Path) -> None:
    """Ask whether a new or changed guarantee fits, which of its cells can be used now, and who would be evicted.

    Each unused cell is tested with one pod; all these pods are submitted at once.
    """
    from vkgateway.cli import whatif_options

    await _ask_and_print(
        whatif_options.parse_guarantee(tenant, pool), output=output, gateway=gateway, data_dir=data_dir
    )


DRAIN_EPILOG = """\b
Examples:
  vkgateway whatif drain gpu-node-17
  vkgateway whatif drain gpu-node-17 gpu-node-18 -o yaml
"""


@click.command(epilog=DRAIN_EPILOG, short_help="Where would the pods of drained nodes restart?")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def drain(*, nodes: tuple[str, ...], output: str, gateway: GatewayEndpoint, data_dir: Path) -> None:
    """Ask where the pods of drained compute nodes would restart, and which evictions and guarantee losses follow.

    Use the node names of the compute cluster; CLUSTER/NODE if the name exists in two clusters.
    """
    from vkgateway.scheduler.core.whatif.questions import DrainQuestion

    await _ask_and_print(DrainQuestion(nodes=nodes), output=output, gateway=gateway, data_dir=data_dir)


GROW_EPILOG = """\b
Examples:
  vkgateway whatif grow a100 --nodes 4
  vkgateway whatif grow a100.local --nodes 1 --like gpu-node-17 -o json
"""


@click.command(epilog=GROW_EPILOG, short_help="What would start on additional nodes?")
@click.argument("pool", shell_complete=name_completion.pools)
@click.option("--nodes", type=int, required=True, help="Number of additional nodes.")
@click.option("--like", metavar="NODE", help="Node to copy. [default: the most common kind of the pool]")
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def grow(
    *, pool: str, nodes: int, like: str | None, output: str, gateway: GatewayEndpoint, data_dir: Path
) -> None:
    """Ask which gangs would start, or start earlier, with more nodes in POOL, and which guarantees would fit."""
    from vkgateway.scheduler.core.whatif.questions import GrowQuestion

    question = GrowQuestion(pool=pool, nodes=nodes, like=like or "")
    await _ask_and_print(question, output=output, gateway=gateway, data_dir=data_dir)


async def _ask_and_print(question: Question, *, output: str, gateway: GatewayEndpoint, data_dir: Path) -> None:
    from vkgateway.cli import gateway_state, whatif_text

    whatif_text.print_answer(await gateway_state.ask_what_if(question, data_dir, gateway), output=output)
