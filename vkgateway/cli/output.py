"""Output of commands: tables for people; json, yaml and names for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import click
import msgspec

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("table", "json", "yaml", "name")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """Column of a table: its title, and a function that returns the cell of an object."""

    title: str
    value: Callable[[T], object]
    justify: Literal["left", "right"] = "left"


def output_option_of(*formats: str) -> Callable[[F], F]:
    """Add `-o/--output`; the command gets `output`, one of `formats`, by default `table`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default="table",
        show_default=True,
        help="Output format: table for people, the others for programs.",
    )


def output_option(command: F) -> F:
    """Add `-o/--output`; the command gets `output`, one of `table`, `json`, `yaml`, `name`."""
    return output_option_of(*FORMATS)(command)


def print_objects(
    objects: Sequence[T],
    *,
    output: str,
    columns: Sequence[Column[T]],
    name: Callable[[T], str],
    single: bool = False,
    empty: str = "Nothing found.",
) -> None:
    """Print objects in the requested format.

    json and yaml are an array, or one object with `single`. `empty` is printed on standard error instead of a table
    without rows.
    """
    if output == "name":
        for item in objects:
            click.echo(name(item))
    elif output in {"json", "yaml"}:
        plain = msgspec.to_builtins(objects)
        click.echo(serialize(plain[0] if single else plain, output=output), nl=False)
    elif not objects:
        click.echo(empty, err=True)
    else:
        print_table([[_format_cell(column.value(item)) for column in columns] for item in objects], columns=columns)


def serialize(plain: Any, *, output: str) -> str:
    """Return plain data as json or yaml text that ends with a newline."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"
    import yaml

    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=False, allow_unicode=True)


def print_table(rows: Sequence[Sequence[str]], *, columns: Sequence[Column[Any]]) -> None:
    """Print a table with rich on a terminal, otherwise plain untruncated columns for grep and awk."""
    if sys.stdout.isatty():
        _print_rich(rows, columns=columns)
    else:
        _print_plain(rows, columns=columns)


def _print_rich(rows: Sequence[Sequence[str]], *, columns: Sequence[Column[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title.upper(), justify=column.justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _print_plain(rows: Sequence[Sequence[str]], *, columns: Sequence[Column[Any]]) -> None:
    lines = [[column.title.upper() for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column.justify == "right" else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        click.echo("   ".join(cells).rstrip())


def _format_cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
