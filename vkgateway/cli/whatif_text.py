"""Output of `whatif`: facts as in `explain`, then tables of the effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

import click
import msgspec

from vkgateway.cli.explanation import pool_capacity_text
from vkgateway.cli.output import Column, print_table, serialize
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.reasons.advice import advice_for
from vkgateway.scheduler.core.reasons.report_types import PoolReport
from vkgateway.scheduler.core.whatif.answers import (
    Answer,
    Cell,
    Effect,
    Eviction,
    GuaranteeChange,
    Outcome,
    PoolChange,
    Verdict,
)
from vkgateway.scheduler.core.whatif.questions import (
    DrainQuestion,
    GangQuestion,
    GrowQuestion,
    GuaranteeQuestion,
    Question,
    amounts_text,
)

T = TypeVar("T")

_MAX_ROWS: Final = 20
"""Maximum rows of a table; JSON and YAML have all of them."""
_MAX_NODES: Final = 8
"""Maximum number of node names in a line."""


def print_answer(answer: Answer, *, output: str) -> None:
    """Print an answer in the requested format."""
    if output == "table":
        print_text(answer)
    else:
        click.echo(serialize(answer_to_dict(answer), output=output), nl=False)


def answer_to_dict(answer: Answer) -> object:
    """Return the answer as plain data, with help for each gang."""
    plain = msgspec.to_builtins(answer)
    for gang, outcome in zip(plain["gangs"], answer.gangs, strict=True):
        gang["help"] = help_for(outcome, answer.question)
    return plain


def print_text(answer: Answer) -> None:
    """Print an answer for people."""
    for line in fact_lines(answer):
        click.echo(line)
    question = answer.question
    if isinstance(question, DrainQuestion):
        _print_section("Gangs that move", answer.gangs, MOVES)
    _print_section("Cells", answer.cells, CELLS)
    used = isinstance(question, GuaranteeQuestion)
    _print_section("Evicted if the guarantee is used at once" if used else "Evicted", answer.evictions, EVICTIONS)
    _print_section("Other gangs", answer.effects, EFFECTS, more=answer.more_effects)
    _print_section("Guarantees", answer.guarantees, GUARANTEES)
    if isinstance(question, DrainQuestion | GrowQuestion):
        _print_section("Pools", answer.pools, POOLS)
    decided, seen = _format_time(answer.time), _format_time(answer.seen)
    click.echo(f"\nDecided at {decided}, from the arbiter's state at {seen}. Nothing was changed.")


def fact_lines(answer: Answer) -> Iterator[str]:
    """Yield the lines of the facts; empty facts are left out."""
    yield from _format_facts({"Question": question_text(answer.question), "Answer": answer.summary})
    if isinstance(answer.question, GangQuestion):
        for outcome in answer.gangs:
            yield from _format_facts(_outcome_facts(outcome, answer))
    for note in answer.notes:
        yield from _format_facts({"Note": note})


def question_text(question: Question) -> str:
    """Return the question in a sentence."""
    if isinstance(question, GangQuestion):
        minimum = (
            f", at least {question.minimum} start together" if question.minimum not in (None, question.pods) else ""
        )
        requests = amounts_text(question.requests)
        gang = f"a gang of {question.pods} pods" if question.pods > 1 else "a pod"
        each = f", {requests} each" if question.pods > 1 else f" with {requests}"
        return f"tenant {question.tenant} submits {gang}{minimum}{each}, {question.band} band"
    if isinstance(question, GuaranteeQuestion):
        cells = f" in cells of {', '.join(map(str, question.cells))}" if question.cells else ""
        return f"tenant {question.tenant} is guaranteed {amounts_text(question.guarantee)} in {question.pool}{cells}"
    if isinstance(question, DrainQuestion):
        return f"{first_names(question.nodes)} {'is' if len(question.nodes) == 1 else 'are'} drained"
    like = f" like {question.like}" if question.like else ""
    return f"{question.pool} has {question.nodes} more {'node' if question.nodes == 1 else 'nodes'}{like}"


def _outcome_facts(outcome: Outcome, answer: Answer) -> dict[str, str]:
    pools = (pool.before for pool in answer.pools if pool.before is not None)
    room = next((pool_capacity_text(pool) for pool in pools if pool.node == outcome.pool), "")
    return {
        "State": "starting" if outcome.verdict is Verdict.STARTS else "waiting",
        "Nodes": _placements_text(outcome),
        "Capacity": guarantee_use_text(outcome) if outcome.starting else "",
        "Reason": outcome.code,
        "Message": outcome.message,
        "Queue position": f"{outcome.place} in {outcome.pool}" if outcome.place else "",
        "Expected start": outcome.expected,
        "Reserved for": outcome.behind,
        "Pool": room or outcome.pool,
        "What helps": help_for(outcome, answer.question),
    }


def guarantee_use_text(outcome: Outcome | Cell) -> str:
    """Return whether the new pods are inside the guarantee."""
    return "borrowed; may be reclaimed" if outcome.borrowed else "all inside the tenant's guarantee"


def help_for(outcome: Outcome, question: Question) -> str:
    """Return the same help as `explain`; empty if the gang waits for evictions."""
    if outcome.code == PendingReason.EVICTION:
        return ""
    return advice_for(outcome.code, question.band if isinstance(question, GangQuestion) else "")


def first_names(names: Sequence[str]) -> str:
    """Return the first names and the number of further names."""
    more = len(names) - _MAX_NODES
    return ", ".join(names[:_MAX_NODES]) + (f" and {more} more" if more > 0 else "")


def format_duration(seconds: float) -> str:
    """Return `30s`, `5m` or `2h`."""
    for length, unit in ((3600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.0f}s"


def _placements_text(outcome: Outcome) -> str:
    return first_names([f"{placement.node} ({placement.pods})" for placement in outcome.placements])


def _start_text(outcome: Outcome | Cell) -> str:
    return "now" if outcome.verdict is Verdict.STARTS else outcome.expected


def _cell_state(cell: Cell) -> str:
    if cell.in_use:
        return "in use"
    if cell.borrowed:
        return "a pod would borrow"
    return "free" if cell.verdict is Verdict.STARTS else "lent" if cell.node else "not now"


def _format_facts(facts: dict[str, str]) -> Iterator[str]:
    for title, value in facts.items():
        if value:
            yield f"{title + ':':<16}{value}"


def _print_section(title: str, rows: Sequence[T], columns: Sequence[Column[T]], *, more: int = 0) -> None:
    if not rows:
        return
    click.echo(f"\n{title}:")
    print_table([[_format_cell(column.value(row)) for column in columns] for row in rows[:_MAX_ROWS]], columns=columns)
    left = more + len(rows[_MAX_ROWS:])
    if left:
        click.echo(f"and {left} more; use -o json to list all")


def _format_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "-"


def _format_time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S UTC")


def _pool_change(what: Callable[[PoolReport], object]) -> Callable[[PoolChange], str]:
    """Return a function that renders the change of one figure of a pool: `16 -> 32`, or the unchanged figure."""

    def render(change: PoolChange) -> str:
        before, after = ("-" if pool is None else f"{what(pool)}" for pool in (change.before, change.after))
        return after if before == after else f"{before} -> {after}"

    return render


EVICTIONS: tuple[Column[Eviction], ...] = (
    Column("tenant", lambda eviction: eviction.gang.tenant),
    Column("namespace", lambda eviction: eviction.gang.namespace),
    Column("name", lambda eviction: eviction.gang.name),
    Column("pods", lambda eviction: f"{eviction.pods} of {eviction.of}", "right"),
    Column("whole", lambda eviction: eviction.whole),
    Column("capacity", lambda eviction: "inside the guarantee" if eviction.inside else "borrowed"),
    Column("notice", lambda eviction: format_duration(eviction.notice), "right"),
    Column("grace", lambda eviction: format_duration(eviction.grace), "right"),
    Column("lost", lambda eviction: f"{eviction.lost / 3600:.3g} GPU-h", "right"),
    Column("nodes", lambda eviction: first_names(eviction.nodes)),
)
EFFECTS: tuple[Column[Effect], ...] = (
    Column("tenant", lambda effect: effect.gang.tenant),
    Column("namespace", lambda effect: effect.gang.namespace),
    Column("name", lambda effect: effect.gang.name),
    Column("pods", lambda effect: effect.pods, "right"),
    Column("effect", lambda effect: effect.what.value),
    Column("without it", lambda effect: effect.before),
    Column("with it", lambda effect: effect.after),
)
MOVES: tuple[Column[Outcome], ...] = (
    Column("tenant", lambda gang: gang.gang.tenant),
    Column("namespace", lambda gang: gang.gang.namespace),
    Column("name", lambda gang: gang.gang.name),
    Column("pods", lambda gang: gang.pods, "right"),
    Column("running", lambda gang: gang.running, "right"),
    Column("to", _placements_text),
    Column("start", _start_text),
    Column("capacity", lambda gang: ("borrowed" if gang.borrowed else "inside the guarantee") if gang.starting else ""),
    Column("reason", lambda gang: gang.code),
    Column("message", lambda gang: gang.message),
)
CELLS: tuple[Column[Cell], ...] = (
    Column("size", lambda cell: cell.size, "right"),
    Column("state", _cell_state),
    Column("node", lambda cell: cell.node),
    Column("start", lambda cell: "" if cell.in_use else _start_text(cell)),
    Column("message", lambda cell: cell.message),
)
GUARANTEES: tuple[Column[GuaranteeChange], ...] = (
    Column("tenant", lambda guarantee: guarantee.tenant),
    Column("pool", lambda guarantee: guarantee.pool),
    Column("lost without it", lambda guarantee: guarantee.units_lost_before, "right"),
    Column("lost with it", lambda guarantee: guarantee.units_lost_after, "right"),
    Column("cells without it", lambda guarantee: guarantee.before),
    Column("cells with it", lambda guarantee: guarantee.after),
)
POOLS: tuple[Column[PoolChange], ...] = (
    Column("pool", _pool_change(lambda pool: pool.node)),
    Column("nodes", _pool_change(lambda pool: f"{pool.usable_nodes}/{pool.nodes}"), "right"),
    Column("resource", _pool_change(lambda pool: pool.resource)),
    Column("units", _pool_change(lambda pool: f"{pool.allocatable:.10g}"), "right"),
    Column("used", _pool_change(lambda pool: f"{pool.used:.10g}"), "right"),
    Column("borrowed", _pool_change(lambda pool: f"{pool.borrowed:.10g}"), "right"),
    Column("free", _pool_change(lambda pool: f"{pool.free:.10g}"), "right"),
    Column("largest", _pool_change(lambda pool: f"{pool.largest:.10g}"), "right"),
    Column("whole nodes", _pool_change(lambda pool: pool.whole_nodes), "right"),
    Column("waiting", _pool_change(lambda pool: f"{pool.waiting:.10g}"), "right"),
    Column("gangs", _pool_change(lambda pool: f"{pool.gangs_running}+{pool.gangs_waiting}"), "right"),
)
