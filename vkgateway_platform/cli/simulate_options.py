"""Options of `vkgateway simulate` for the cluster and the trace, and their value types."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from vkgateway.cli.options import Seconds

F = TypeVar("F", bound=Callable[..., Any])

_NODES = re.compile(r"([0-9]{1,6})x([0-9]{1,4})")


class NodeCount(click.ParamType[tuple[int, int]]):
    """Nodes and GPUs of each: `64x8`."""

    name = "NODESxGPUS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return both numbers."""
        if isinstance(value, tuple):
            return value
        match = _NODES.fullmatch(str(value))
        if match is None or not int(match[1]) or not int(match[2]):
            self.fail(f"{value!r} is not NODESxGPUS. Use 64x8 for 64 nodes with 8 GPUs each.", param, ctx)
        return int(match[1]), int(match[2])


class Sizes(click.ParamType[dict[int, float]]):
    """Gang sizes with their shares: `1=35,8=50,64=15`."""

    name = "GPUS=SHARE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[int, float]:
        """Return shares by GPUs."""
        if isinstance(value, dict):
            return value
        sizes: dict[int, float] = {}
        for part in str(value).split(","):
            gpus, _, share = part.partition("=")
            if not gpus.isdecimal() or not int(gpus) or not share.replace(".", "", 1).isdecimal():
                self.fail(f"{part!r} is not GPUS=SHARE. Example: 1=35,8=50,64=15.", param, ctx)
            sizes[int(gpus)] = float(share)
        if not any(sizes.values()):
            self.fail(f"all shares of {value!r} are zero. Give at least one size a share above zero.", param, ctx)
        return sizes


SECONDS, NODES, SIZE_TABLE = Seconds(), NodeCount(), Sizes()
SHARE = click.FloatRange(0, 1)
FILE = click.Path(path_type=Path, dir_okay=False)


def cluster_options(command: F) -> F:
    """Add the options of the cluster and its tenants."""
    for option in reversed(
        (
            click.option(
                "--nodes",
                type=NODES,
                default="64x8",
                show_default=True,
                help="Number of equal nodes, and GPUs of each.",
            ),
            click.option(
                "--nodes-file",
                type=FILE,
                help="Nodes from a CSV, YAML or JSON file: sn, gpu ..., or the output of `kubectl get nodes -o yaml`.",
            ),
            click.option(
                "--tenants",
                type=click.IntRange(1, 1000),
                default=8,
                show_default=True,
                help="Number of tenants with equal guarantees.",
            ),
            click.option(
                "--tenants-file",
                type=FILE,
                help="Tenants from a YAML or JSON file: name, and pools and budget as in the Tenant object.",
            ),
            click.option(
                "--guaranteed",
                type=SHARE,
                default=0.75,
                show_default=True,
                help="Guaranteed share of the GPUs, in whole nodes.",
            ),
        )
    ):
        command = option(command)
    return command


def trace_options(command: F) -> F:
    """Add the options of the trace and of the generator of synthetic traces."""
    for option in reversed(
        (
            click.option("--trace", type=FILE, help="Jobs from this file. [default: synthetic jobs]"),
            click.option(
                "--format",
                "trace_format",
                type=click.Choice(("openb", "philly", "kueue", "log")),
                help="Format of the trace. [default: by suffix: .csv openb, .json philly, .yaml kueue, .jsonl log]",
            ),
            click.option("--replay", is_flag=True, help="Jobs, nodes and tenants from the platform's decision log."),
            click.option(
                "--usage-log",
                type=FILE,
                help="Usage log with the exact ends of gangs and earlier hours, for a decision log.",
            ),
            click.option("--start", type=SECONDS, default="0s", help="Skip the trace before this time."),
            click.option(
                "--load",
                type=click.FloatRange(0.01, 10),
                help="Requested GPU-hours as a share of the cluster's capacity. [default: 1, or from the trace]",
            ),
            click.option(
                "--duration", type=SECONDS, help="Period in which jobs arrive. [default: 24h, or the whole trace]"
            ),
            click.option("--sizes", type=SIZE_TABLE, help="Gang sizes in GPUs with their shares. [default: 1 to 64]"),
            click.option("--low", type=SHARE, default=0.4, show_default=True, help="Share of gangs in the low band."),
            click.option("--run", type=SECONDS, default="20m", show_default=True, help="Median run time."),
            click.option("--longest", type=SECONDS, help="Maximum run time. [default: 12h, or from the trace]"),
            click.option(
                "--checkpoint",
                type=SECONDS,
                default="0s",
                show_default=True,
                help="Interval at which jobs save their work; 0: never.",
            ),
            click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random numbers."),
        )
    ):
        command = option(command)
    return command
