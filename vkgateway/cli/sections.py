"""Text blocks of the `describe` commands: sections, tables, conditions, events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vkgateway.cli.age import format_age

if TYPE_CHECKING:
    from vkgateway.cli.cluster import Event
    from vkgateway.model.objects import Condition


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
            (one.type, one.status, format_age(one.last_transition_time) or "-", one.reason or "-", one.message or "-")
            for one in conditions
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


def resource_list(resources: Mapping[str, object]) -> str:
    """Return resources as `cpu=4, nvidia.com/gpu=8`; a dash if there are none."""
    return ", ".join(f"{name}={amount}" for name, amount in sorted(resources.items())) or "-"
