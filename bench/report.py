"""Results on the terminal, in `docs/reference/benchmarks.json`, and in `docs/reference/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench.outcome import Cell, Result, Target

DOCS: Final = Path(__file__).parent.parent / "docs" / "reference"
_HEAD: Final = """# Benchmarks

Everything runs on one machine: load, tenant control planes, compute cluster, etcd (without fsync) and gateway share its
cores. So compare a figure with the baselines of the same run, not with figures of another machine.

`make bench` runs all benchmarks, and `make bench-NAME` runs one. `python -m bench` writes this page, except the section
"How to read the figures". [`benchmarks.json`](benchmarks.json) has the same figures.
"""
_HAND_BEGIN: Final = "<!-- by hand: begin -->"
_HAND_END: Final = "<!-- by hand: end -->"


def print_result(result: Result, *, console: Console) -> None:
    """Print a result."""
    table = Table(title=f"{result.name}: {result.title}", title_justify="left")
    for index, column in enumerate(result.outcome.columns):
        table.add_column(column, justify="right" if _is_numeric(result, index) else "left")
    for row in result.outcome.rows:
        table.add_row(*map(_cell_text, row))
    console.print(table)
    for target in result.outcome.targets:
        console.print(f"{'met   ' if target.is_met else 'MISSED'} {_target_text(target)}", highlight=False)
    for note in result.outcome.notes:
        console.print(note, style="dim", highlight=False)
    if result.machine.stolen is not None:
        console.print(_steal_text(result.machine.stolen), style="dim", highlight=False)


def save_result(result: Result, *, docs: Path = DOCS) -> None:
    """Replace the last result of the same name, and write the page again."""
    file = docs / "benchmarks.json"
    results = load_results(file)
    results[result.name] = result
    docs.mkdir(exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    file = docs / "benchmarks.md"
    file.write_text(render_page(results, by_hand=_handwritten_part(file)))


def load_results(file: Path) -> dict[str, Result]:
    """Return results by name, empty if there is no file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Result])
    except FileNotFoundError:
        return {}


def render_page(results: dict[str, Result], *, by_hand: str = "") -> str:
    """Return the page in Markdown, with the handwritten section."""
    entered = f"{_HAND_BEGIN}\n## How to read the figures\n\n{by_hand}\n\n{_HAND_END}\n"
    return "\n".join(
        [_HEAD, *([entered] if by_hand else ()), *(_render_section(results[name]) for name in sorted(results))]
    )


def _handwritten_part(page: Path) -> str:
    """Return the text between the marks of the page, without its heading."""
    if not page.exists():
        return ""
    _, _, rest = page.read_text().partition(_HAND_BEGIN)
    return rest.partition(_HAND_END)[0].strip().removeprefix("## How to read the figures").strip()


def _render_section(result: Result) -> str:
    machine, outcome = result.machine, result.outcome
    stolen = "" if machine.stolen is None else f", {_steal_text(machine.stolen)} during the run"
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    lines = [
        f"## {result.name}",
        "",
        f"{result.title}.",
        "",
        f"Taken {result.date} in {result.seconds:.0f} s on {machine.cores} cores, {machine.memory_gib:.0f} GiB, Linux "
        f"{machine.kernel}, {100 * machine.busy:.0f} % of the cores busy before it began{stolen}. "
        f"{versions}.",
        "",
        _table_row(outcome.columns),
        "|" + "|".join("---:" if _is_numeric(result, index) else "---" for index in range(len(outcome.columns))) + "|",
        *(_table_row(map(_cell_text, row)) for row in outcome.rows),
        "",
    ]
    if outcome.targets:
        lines += ["| target | goal | measured | result |", "|---|---:|---:|---|"]
        lines += [
            _table_row(
                [
                    target.what,
                    _limit_text(target),
                    _value_text(target, target.seen),
                    "met" if target.is_met else "**missed**",
                ]
            )
            for target in outcome.targets
        ]
        lines.append("")
    lines += [f"- {note}" for note in outcome.notes]
    return "\n".join(lines).rstrip() + "\n"


def _steal_text(share: float) -> str:
    return f"{100 * share:.0f} % of the cores stolen by the hypervisor"


def _table_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _target_text(target: Target) -> str:
    return f"{target.what}: {_value_text(target, target.seen)} (goal: {_limit_text(target)})"


def _limit_text(target: Target) -> str:
    return f"{'at least' if target.at_least else 'at most'} {_value_text(target, target.limit)}"


def _value_text(target: Target, value: float) -> str:
    return f"{value:g} {target.unit}".rstrip()


def _cell_text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:g}"


def _is_numeric(result: Result, index: int) -> bool:
    return all(not isinstance(row[index], str) for row in result.outcome.rows)
