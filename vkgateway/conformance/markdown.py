"""Results of both sides as Markdown tables for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from vkgateway.conformance.cases import Case
from vkgateway.conformance.comparison import ComparedCase, Comparison
from vkgateway.conformance.outcomes import Outcome

_PASSED_BY: Final = {"yardstick": "the compute cluster only", "tenant": "the tenant only", "neither": "neither"}
_TIMES: Final = {3: "three times or more", 2: "twice", 1: "once"}


def render_tables(found: Comparison) -> str:
    """Return Markdown: totals, areas, cases that fail on a side, and how often passing cases were run."""
    parts = (
        _totals_table(found),
        _pass_sentence(found),
        _areas_table(found.cases),
        _failures_table(found.cases),
        _reruns_text(found.cases),
    )
    return "\n\n".join(part for part in parts if part)


def _totals_table(found: Comparison) -> str:
    both = len(found.cases) - len(found.cases_with("open"))
    failed = f"{len(found.cases_with('neither'))} by both, {len(found.cases_with('yardstick'))} in the tenant only"
    rows = [
        ("in the tenant", *_count_outcomes(one.tenant for one in found.cases)),
        ("in the compute cluster", *_count_outcomes(one.straight for one in found.cases)),
        (
            "on both",
            both,
            f"{len(found.cases_with('both'))} by both",
            f"{failed}, {len(found.cases_with('tenant'))} in the compute cluster only",
        ),
    ]
    return _render_table(("", "run", "passed", "failed"), rows)


def _count_outcomes(outcomes: Iterable[Outcome | None]) -> tuple[int, int, int]:
    """Return how many cases were run, passed, and failed."""
    states = Counter(outcome.state for outcome in outcomes if outcome is not None)
    return states.total(), states["passed"], states.total() - states["passed"]


def _pass_sentence(found: Comparison) -> str:
    both, alone = len(found.cases_with("both")), len(found.cases_with("yardstick"))
    open_ = len(found.cases_with("open"))
    rest = f"; {open_} of the suite's {len(found.cases)} cases were not run on both sides" if open_ else ""
    share = f"{both} of the {both + alone} cases that pass in the compute cluster ({100 * found.pass_ratio:.1f} %)"
    return f"The tenant passes {share}{rest}."


def _areas_table(cases: Iterable[ComparedCase]) -> str:
    by_area: dict[str, list[ComparedCase]] = {}
    for one in cases:
        by_area.setdefault(Case(name=one.name).owner_sig, []).append(one)
    largest_first = sorted(by_area.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [(f"`{area}`", len(some), *_count_outcomes(one.tenant for one in some)[:2]) for area, some in largest_first]
    return _render_table(("area", "cases", "run in the tenant", "passed"), rows)


def _failures_table(cases: Iterable[ComparedCase]) -> str:
    rows = [(_PASSED_BY[one.verdict], one.cause or "", one.name) for one in cases if one.verdict in _PASSED_BY]
    rows.sort(key=lambda row: (list(_PASSED_BY.values()).index(str(row[0])), row[1:]))
    return _render_table(("passed by", "cause", "case"), rows) if rows else ""


def _reruns_text(cases: Iterable[ComparedCase]) -> str:
    """Return how often the tenant's passing cases were run, and which of them also failed."""
    passing = [one for one in cases if one.tenant is not None and one.tenant.state == "passed"]
    often = Counter(min(one.tenant.runs, 3) for one in passing if one.tenant is not None)
    flaked = [f"- {one.name}" for one in passing if one.tenant is not None and one.tenant.is_flaky]
    runs = ", ".join(f"{often[times]} were run {word}" for times, word in _TIMES.items() if often[times])
    line = (
        f"Of the {len(passing)} cases that pass in the tenant, {runs or 'none was run'}; "
        f"{len(flaked)} of them failed in a run that was counted{':' if flaked else '.'}"
    )
    return "\n".join([line, *([""] if flaked else []), *flaked])


def _render_table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
