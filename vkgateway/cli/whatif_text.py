"""How `whatif` prints an answer: facts as `explain` tells them, then tables of what else changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

import click
import msgspec

from vkgateway.arbiter.decisions import HoldCode
from vkgateway.arbiter.whatif.answers import Answer, Effect, Eviction, GangName, Outcome, Verdict
from vkgateway.arbiter.whatif.questions import GangQuestion, Question, amounts
from vkgateway.cli.explanation import HELP, room_text
from vkgateway.cli.output import Column, print_table, serialise

T = TypeVar("T")

_LISTED: Final = 20
"""Effects that are shown in a table; programs get more."""
_NODES: Final = 8
"""Nodes that are named in a line."""

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


def show(answer: Answer, *, output: str) -> None:
    """Print an answer in the format asked for."""
    if output != "table":
        click.echo(serialise(plain(answer), output=output), nl=False)
        return
    for line in lines(answer):
        click.echo(line)
    _table("Evicted", answer.evictions, EVICTIONS)
    _table("Other gangs", answer.effects[:_LISTED], EFFECTS)
    more = answer.more_effects + len(answer.effects[_LISTED:])
    if more:
        click.echo(f"and {more} more: see them with -o json")
    click.echo(
        f"\nDecided at {_clock(answer.time)}, from what the arbiter knew at {_clock(answer.seen)}. Nothing changed."
    )


def plain(answer: Answer) -> object:
    """Return what programs get: the answer, and with each gang what would help."""
    told = msgspec.to_builtins(answer)
    for gang, outcome in zip(told["gangs"], answer.gangs, strict=True):
        gang["help"] = help_of(outcome)
    return told


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
    return ""


def _outcome(outcome: Outcome, answer: Answer) -> dict[str, str]:
    started = outcome.verdict in (Verdict.STARTS, Verdict.STARTS_AFTER_EVICTION)
    holds = "borrowed: may be called in" if outcome.borrowed else "all inside the tenant's guarantee"
    room = next(
        (room_text(each.before) for each in answer.pools if each.before and each.before.node == outcome.pool), ""
    )
    return {
        "State": "starting" if outcome.verdict is Verdict.STARTS else "waiting",
        "Nodes": few([f"{each.node} ({each.pods})" for each in outcome.placements]),
        "Holds": holds if started else "",
        "Reason": outcome.code,
        "Message": outcome.message,
        "Place in line": f"{outcome.place} in {outcome.pool}" if outcome.place else "",
        "Expected start": outcome.expected,
        "Kept for": outcome.behind,
        "Pool": room or outcome.pool,
        "What helps": help_of(outcome),
    }


def help_of(outcome: Outcome) -> str:
    """Return what would help, as `explain` tells it; empty where evictions make room."""
    return HELP.get(outcome.code, "") if outcome.code != HoldCode.EVICTION else ""


def gang_text(gang: GangName) -> str:
    """Return `alpha research/train`."""
    return f"{gang.tenant} {gang.namespace}/{gang.name}"


def few(names: list[str] | tuple[str, ...]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NODES
    return ", ".join(names[:_NODES]) + (f" and {more} more" if more > 0 else "")


def span(seconds: float) -> str:
    """Return `30s`, `5m` or `2h`."""
    for length, unit in ((3600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.0f}s"


def _facts(facts: dict[str, str]) -> Iterator[str]:
    for title, value in facts.items():
        if value:
            yield f"{title + ':':<16}{value}"


def _table(title: str, rows: Sequence[T], columns: Sequence[Column[T]]) -> None:
    if rows:
        click.echo(f"\n{title}:")
        print_table([[_cell(column.value(row)) for column in columns] for row in rows], columns=columns)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "-"


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S UTC")
