"""How `whatif` prints an answer: facts as `explain` tells them, then tables of what else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

import click
import msgspec

from vkgateway.arbiter.decisions import HoldCode
from vkgateway.arbiter.state import PoolState
from vkgateway.arbiter.whatif.answers import (
    Answer,
    Cell,
    Effect,
    Eviction,
    GuaranteeChange,
    Outcome,
    PoolChange,
    Verdict,
)
from vkgateway.arbiter.whatif.questions import (
    DrainQuestion,
    GangQuestion,
    GrowQuestion,
    GuaranteeQuestion,
    Question,
    amounts,
)
from vkgateway.cli.explanation import HELP, room_text
from vkgateway.cli.output import Column, print_table, serialise

T = TypeVar("T")

_LISTED: Final = 20
"""Rows of a table; programs get all of them."""
_NODES: Final = 8
"""Nodes that are named in a line."""


def show(answer: Answer, *, output: str) -> None:
    """Print an answer in the format asked for."""
    if output == "table":
        show_text(answer)
    else:
        click.echo(serialise(plain(answer), output=output), nl=False)


def plain(answer: Answer) -> object:
    """Return what programs get: the answer, and with each gang what would help."""
    told = msgspec.to_builtins(answer)
    for gang, outcome in zip(told["gangs"], answer.gangs, strict=True):
        gang["help"] = help_of(outcome)
    return told


def show_text(answer: Answer) -> None:
    """Print what people read."""
    for line in lines(answer):
        click.echo(line)
    question = answer.question
    if isinstance(question, DrainQuestion):
        _table("Gangs that move", answer.gangs, MOVES)
    _table("Cells", answer.cells, CELLS)
    used = isinstance(question, GuaranteeQuestion)
    _table("Evicted if the guarantee is used at once" if used else "Evicted", answer.evictions, EVICTIONS)
    _table("Other gangs", answer.effects, EFFECTS, more=answer.more_effects)
    _table("Guarantees", answer.guarantees, GUARANTEES)
    if isinstance(question, DrainQuestion | GrowQuestion):
        _table("Pools", answer.pools, POOLS)
    decided, seen = _clock(answer.time), _clock(answer.seen)
    click.echo(f"\nDecided at {decided}, from what the arbiter knew at {seen}. Nothing changed.")


def lines(answer: Answer) -> Iterator[str]:
    """Yield the facts, line by line; what there is nothing to say of is left out."""
    yield from _facts({"Question": asked(answer.question), "Answer": answer.summary})
    if isinstance(answer.question, GangQuestion):
        for outcome in answer.gangs:
            yield from _facts(_outcome(outcome, answer))
    for note in answer.notes:
        yield from _facts({"Note": note})


def asked(question: Question) -> str:
    """Return the question in a sentence."""
    if isinstance(question, GangQuestion):
        minimum = f", at least {question.minimum} together" if question.minimum not in (None, question.pods) else ""
        wants = amounts(question.requests)
        what = f"a gang of {question.pods} pods" if question.pods > 1 else "a pod"
        of = f", each of {wants}" if question.pods > 1 else f" of {wants}"
        return f"tenant {question.tenant} submits {what}{minimum}{of}, {question.band}"
    if isinstance(question, GuaranteeQuestion):
        cells = f" in cells of {', '.join(map(str, question.cells))}" if question.cells else ""
        return f"tenant {question.tenant} is guaranteed {amounts(question.guarantee)} of {question.pool}{cells}"
    if isinstance(question, DrainQuestion):
        return f"{few(question.nodes)} {'is' if len(question.nodes) == 1 else 'are'} drained"
    like = f" like {question.like}" if question.like else ""
    return f"{question.pool} has {question.nodes} more {'node' if question.nodes == 1 else 'nodes'}{like}"


def _outcome(outcome: Outcome, answer: Answer) -> dict[str, str]:
    pools = (each.before for each in answer.pools if each.before is not None)
    room = next((room_text(pool) for pool in pools if pool.node == outcome.pool), "")
    return {
        "State": "starting" if outcome.verdict is Verdict.STARTS else "waiting",
        "Nodes": _placements(outcome),
        "Holds": holds(outcome) if outcome.starting else "",
        "Reason": outcome.code,
        "Message": outcome.message,
        "Place in line": f"{outcome.place} in {outcome.pool}" if outcome.place else "",
        "Expected start": outcome.expected,
        "Kept for": outcome.behind,
        "Pool": room or outcome.pool,
        "What helps": help_of(outcome),
    }


def holds(outcome: Outcome | Cell) -> str:
    """Return whether what starts is inside the guarantee."""
    return "borrowed: may be called in" if outcome.borrowed else "all inside the tenant's guarantee"


def help_of(outcome: Outcome) -> str:
    """Return what would help, as `explain` tells it; empty where evictions make room."""
    return HELP.get(outcome.code, "") if outcome.code != HoldCode.EVICTION else ""


def few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NODES
    return ", ".join(names[:_NODES]) + (f" and {more} more" if more > 0 else "")


def span(seconds: float) -> str:
    """Return `30s`, `5m` or `2h`."""
    for length, unit in ((3600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.0f}s"


def _placements(outcome: Outcome) -> str:
    return few([f"{each.node} ({each.pods})" for each in outcome.placements])


def _when(outcome: Outcome | Cell) -> str:
    return "now" if outcome.verdict is Verdict.STARTS else outcome.expected


def _holder(cell: Cell) -> str:
    if cell.bound:
        return "in use"
    if cell.borrowed:
        return "cannot bind: a pod would borrow"
    return "free" if cell.verdict is Verdict.STARTS else "lent" if cell.node else "cannot bind now"


def _facts(facts: dict[str, str]) -> Iterator[str]:
    for title, value in facts.items():
        if value:
            yield f"{title + ':':<16}{value}"


def _table(title: str, rows: Sequence[T], columns: Sequence[Column[T]], *, more: int = 0) -> None:
    if not rows:
        return
    click.echo(f"\n{title}:")
    print_table([[_cell(column.value(row)) for column in columns] for row in rows[:_LISTED]], columns=columns)
    left = more + len(rows[_LISTED:])
    if left:
        click.echo(f"and {left} more: see them with -o json")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "-"


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S UTC")


def _change(what: Callable[[PoolState], object]) -> Callable[[PoolChange], str]:
    """Return how one figure of a pool changes: `16 -> 32`, or what it stays."""

    def told(change: PoolChange) -> str:
        before, after = ("-" if pool is None else f"{what(pool)}" for pool in (change.before, change.after))
        return after if before == after else f"{before} -> {after}"

    return told


EVICTIONS: tuple[Column[Eviction], ...] = (
    Column("tenant", lambda one: one.gang.tenant),
    Column("namespace", lambda one: one.gang.namespace),
    Column("name", lambda one: one.gang.name),
    Column("pods", lambda one: f"{one.pods} of {one.of}", "right"),
    Column("whole", lambda one: one.whole),
    Column("holds", lambda one: "inside the guarantee" if one.inside else "borrowed"),
    Column("notice", lambda one: span(one.notice), "right"),
    Column("grace", lambda one: span(one.grace), "right"),
    Column("lost", lambda one: f"{one.lost / 3600:.3g} GPU-h", "right"),
    Column("nodes", lambda one: few(one.nodes)),
)
EFFECTS: tuple[Column[Effect], ...] = (
    Column("tenant", lambda one: one.gang.tenant),
    Column("namespace", lambda one: one.gang.namespace),
    Column("name", lambda one: one.gang.name),
    Column("pods", lambda one: one.pods, "right"),
    Column("effect", lambda one: one.what.value),
    Column("without it", lambda one: one.before),
    Column("with it", lambda one: one.after),
)
MOVES: tuple[Column[Outcome], ...] = (
    Column("tenant", lambda one: one.gang.tenant),
    Column("namespace", lambda one: one.gang.namespace),
    Column("name", lambda one: one.gang.name),
    Column("pods", lambda one: one.pods, "right"),
    Column("running", lambda one: one.running, "right"),
    Column("to", _placements),
    Column("start", _when),
    Column("holds", lambda one: ("borrowed" if one.borrowed else "inside the guarantee") if one.starting else ""),
    Column("reason", lambda one: one.code),
    Column("message", lambda one: one.message),
)
CELLS: tuple[Column[Cell], ...] = (
    Column("size", lambda one: one.size, "right"),
    Column("state", _holder),
    Column("node", lambda one: one.node),
    Column("start", lambda one: "" if one.bound else _when(one)),
    Column("message", lambda one: one.message),
)
GUARANTEES: tuple[Column[GuaranteeChange], ...] = (
    Column("tenant", lambda one: one.tenant),
    Column("pool", lambda one: one.pool),
    Column("lost without it", lambda one: one.units_lost_before, "right"),
    Column("lost with it", lambda one: one.units_lost_after, "right"),
    Column("cells without it", lambda one: one.before),
    Column("cells with it", lambda one: one.after),
)
POOLS: tuple[Column[PoolChange], ...] = (
    Column("pool", _change(lambda pool: pool.node)),
    Column("nodes", _change(lambda pool: f"{pool.usable_nodes}/{pool.nodes}"), "right"),
    Column("resource", _change(lambda pool: pool.resource)),
    Column("units", _change(lambda pool: f"{pool.allocatable:.10g}"), "right"),
    Column("used", _change(lambda pool: f"{pool.used:.10g}"), "right"),
    Column("borrowed", _change(lambda pool: f"{pool.borrowed:.10g}"), "right"),
    Column("free", _change(lambda pool: f"{pool.free:.10g}"), "right"),
    Column("largest", _change(lambda pool: f"{pool.largest:.10g}"), "right"),
    Column("whole nodes", _change(lambda pool: pool.whole_nodes), "right"),
    Column("waiting", _change(lambda pool: f"{pool.waiting:.10g}"), "right"),
    Column("gangs", _change(lambda pool: f"{pool.gangs_running}+{pool.gangs_waiting}"), "right"),
)
