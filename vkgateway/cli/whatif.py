"""`vkgateway whatif`: ask the gateway's arbiter what it would decide; nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.lazy_group import LazyGroup
from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import output_option_of

if TYPE_CHECKING:
    from vkgateway.arbiter.whatif.questions import Question

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
)
def whatif() -> None:
    """Ask what would happen now: to a gang, with a guarantee, a drain, or more nodes.

    The arbiter of the running gateway decides, on the pods and nodes as they are now. Nothing is changed, and what
    would happen anyway is left out. It is for whoever runs the platform: answers name all tenants.
    """


GANG_EPILOG = """\b
Examples:
  vkgateway whatif gang --tenant alpha --request nvidia.com/gpu=1
  vkgateway whatif gang --tenant alpha --pods 4 --request nvidia.com/gpu=8,cpu=32,memory=256Gi --pool a100
  vkgateway whatif gang --tenant alpha --pods 6 --min 2 --request nvidia.com/gpu=8 --low --run-limit 90m -o json
"""


@click.command(epilog=GANG_EPILOG, short_help="Submit a gang now: does it start, and where?")
@click.option("--tenant", required=True, help="The tenant that submits it.")
@click.option("--pods", type=int, default=1, show_default=True, help="How many equal pods it has.")
@click.option(
    "--request",
    "requests",
    multiple=True,
    required=True,
    metavar="RESOURCE=QUANTITY[,...]",
    help="What each pod asks for; again for more.",
)
@click.option("--min", "minimum", type=int, help="Pods that start together, if the gang is elastic. [default: all]")
@click.option("--pool", "pools", multiple=True, help="Where it may run, best liked first. [default: the tenant's]")
@click.option("--low", is_flag=True, help="It is of the low band.")
@click.option("--priority", type=int, default=0, show_default=True, help="Value of its PriorityClass.")
@click.option("--run-limit", metavar="DURATION", help="It declares that it ends within this time: 90m, 2h, 1d.")
@click.option("--within", metavar="LABEL", help="All pods within one value of this label of nodes.")
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
    """A gang of equal pods, submitted now: does it start, where, and who is evicted; else when, and why not now."""
    from vkgateway.arbiter.whatif.questions import GangQuestion
    from vkgateway.cli import whatif_options

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


@click.command(epilog=GUARANTEE_EPILOG, short_help="Guarantee more to a tenant: does it fit?")
@click.option("--tenant", required=True, help="The tenant, which may be new.")
@click.option(
    "--pool",
    required=True,
    metavar="POOL[.CLUSTER]:guarantee=RES=QTY,...[,limit=RES=QTY,...][,weight=N][,cells=8+8+1]",
    help="The guarantee in place of the tenant's. Limit and weight stay where not given. Cluster: local unless said.",
)
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def guarantee(*, tenant: str, pool: str, output: str, gateway: GatewayEndpoint, data_dir: Path) -> None:
    """A tenant with a new or a changed guarantee: does it fit, which cells could bind, who is evicted if it is used.

    Cells that no pod of the tenant is in are tried by one pod each, all submitted at once.
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


@click.command(epilog=DRAIN_EPILOG, short_help="Drain nodes: where do their pods restart?")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def drain(*, nodes: tuple[str, ...], output: str, gateway: GatewayEndpoint, data_dir: Path) -> None:
    """Compute nodes are drained: where do their pods restart, who is evicted for them, whose guarantee is cut.

    Name them as the compute cluster does, as CLUSTER/NODE where two clusters have one of that name.
    """
    from vkgateway.arbiter.whatif.questions import DrainQuestion

    await _ask_and_print(DrainQuestion(nodes=nodes), output=output, gateway=gateway, data_dir=data_dir)


GROW_EPILOG = """\b
Examples:
  vkgateway whatif grow a100 --nodes 4
  vkgateway whatif grow a100.local --nodes 1 --like gpu-node-17 -o json
"""


@click.command(epilog=GROW_EPILOG, short_help="Add nodes to a pool: what starts?")
@click.argument("pool")
@click.option("--nodes", type=int, required=True, help="How many more.")
@click.option("--like", metavar="NODE", help="A node that they are like. [default: the pool's commonest kind]")
@output_option_of("table", "json", "yaml")
@gateway_option
@data_dir_option
@run_async
async def grow(
    *, pool: str, nodes: int, like: str | None, output: str, gateway: GatewayEndpoint, data_dir: Path
) -> None:
    """More nodes for POOL: what starts, or starts earlier, and which guarantees the nodes would hold."""
    from vkgateway.arbiter.whatif.questions import GrowQuestion

    question = GrowQuestion(pool=pool, nodes=nodes, like=like or "")
    await _ask_and_print(question, output=output, gateway=gateway, data_dir=data_dir)


async def _ask_and_print(question: Question, *, output: str, gateway: GatewayEndpoint, data_dir: Path) -> None:
    from vkgateway.cli import gateway_state, whatif_text

    whatif_text.print_answer(await gateway_state.ask_what_if(question, data_dir, gateway), output=output)
