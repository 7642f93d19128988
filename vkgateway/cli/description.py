"""Descriptions of objects by the `describe` commands: facts, pools, conditions, events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from vkgateway.api.quantity import Quantity, parse_quantity
from vkgateway.cli.age import format_age
from vkgateway.cli.output import print_objects

if TYPE_CHECKING:
    from vkgateway.api.objects import Condition
    from vkgateway.api.types import ComputeCluster, Tenant
    from vkgateway.cli.cluster import Event
    from vkgateway.kube.client import Client

_BYTES = ("memory", "ephemeral-storage", "storage", "hugepages-")
"""Beginnings of the names of resources that are counted in bytes."""

T = TypeVar("T", bound="Tenant | ComputeCluster")


async def describe_object(
    name: str,
    output: str,
    *,
    get: Callable[[Client, str], Awaitable[T]],
    describe: Callable[[T], Iterable[str]],
    data_dir: Path,
    kubeconfig: Path | None,
) -> None:
    """Print the object that `get` returns: the lines of `describe` and its events, or data for programs."""
    from vkgateway.cli import cluster

    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        found = await get(client, name)
        is_table = output == "table"
        events = (
            await cluster.list_events(client, kind=type(found).__name__, uid=found.metadata.uid) if is_table else []
        )
    if is_table:
        for line in (*describe(found), *section_lines("Events", event_lines(events))):
            click.echo(line)
    else:
        print_objects([found], output=output, columns=(), name=lambda item: item.metadata.name, single=True)


def object_lines(facts: Mapping[str, str], *, pools: Iterable[str], conditions: Iterable[Condition]) -> Iterator[str]:
    """Yield the lines of a description: facts, the table of pools, and conditions."""
    for title, value in facts.items():
        yield f"{title + ':':<20}{value or '-'}"
    yield from section_lines("Pools", pools)
    yield from section_lines("Conditions", condition_lines(conditions))


def section_lines(title: str, body: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an indented section with a title; `none` if it is empty."""
    yield ""
    yield f"{title}:"
    empty = True
    for line in body:
        empty = False
        yield f"  {line}"
    if empty:
        yield "  none"


def table_lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of an aligned table; no lines without rows."""
    body = list(rows)
    if not body:
        return
    all_rows = [tuple(title.upper() for title in titles), *body]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(titles))]
    for row in all_rows:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def condition_lines(conditions: Iterable[Condition]) -> Iterator[str]:
    """Yield the lines of a table of conditions, in the order of the object."""
    return table_lines(
        ("type", "status", "since", "reason", "message"),
        (
            (c.type, c.status, format_age(c.last_transition_time) or "-", c.reason or "-", c.message or "-")
            for c in conditions
        ),
    )


def event_lines(events: Iterable[Event]) -> Iterator[str]:
    """Yield the lines of a table of events, oldest first."""
    return table_lines(
        ("age", "type", "reason", "message"),
        (
            (
                format_age(event.last_seen) + (f" (x{event.count})" if event.count and event.count > 1 else ""),
                event.type,
                event.reason,
                event.message,
            )
            for event in events
        ),
    )


def resource_list(resources: Mapping[str, Quantity]) -> str:
    """Return resources as `cpu=4, memory=23.5Gi, nvidia.com/gpu=8`; a dash if there are none."""
    return label_list({name: _readable_quantity(name, amount) for name, amount in resources.items()})


def label_list(labels: Mapping[str, object]) -> str:
    """Return labels as `pool=a100, zone=b`; a dash if there are none."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "-"


def _readable_quantity(name: str, amount: Quantity) -> str:
    """Return a number of bytes with a unit, such as 23.5Gi for 24677276Ki, and others as they are."""
    if not name.startswith(_BYTES):
        return str(amount)
    value, unit = float(parse_quantity(amount)), ""
    for larger in ("Ki", "Mi", "Gi", "Ti", "Pi"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return (f"{value:.0f}" if value >= 100 else f"{value:.3g}") + unit
