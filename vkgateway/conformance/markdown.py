"""Results of the tenant and of the compute cluster as Markdown tables for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from vkgateway.conformance.cases import Case
from vkgateway.conformance.comparison import ComparedCase, Comparison
from vkgateway.conformance.outcomes import Outcome

_PASSED_BY: Final = {"baseline": "the compute cluster only", "tenant": "the tenant only", "neither": "neither"}
_TIMES: Final = {3: "three times or more", 2: "twice", 1: "once"}


def render_tables(found: Comparison) -> str:
    """Return Markdown: totals, areas, cases that fail in a cluster, and how often passing cases were run."""
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
    failed = f"{len(found.cases_with('neither'))} by both, {len(found.cases_with('baseline'))} in the tenant only"
    rows = [
        ("in the tenant", *_count_outcomes(case.tenant for case in found.cases)),
        ("in the compute cluster", *_count_outcomes(case.baseline for case in found.cases)),
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
    both = len(found.cases_with("both"))
    total = both + len(found.cases_with("baseline"))
    open_count = len(found.cases_with("open"))
    rest = f"; {open_count} of the suite's {len(found.cases)} cases were not run in both clusters" if open_count else ""
    passing = f"{both} of the {total} cases that pass in the compute cluster ({100 * found.pass_ratio:.1f} %)"
    return f"The tenant passes {passing}{rest}."


def _areas_table(cases: Iterable[ComparedCase]) -> str:
    by_area: dict[str, list[ComparedCase]] = {}
    for case in cases:
        by_area.setdefault(Case(name=case.name).owner_sig, []).append(case)
    largest_first = sorted(by_area.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [
        (f"`{area}`", len(area_cases), *_count_outcomes(case.tenant for case in area_cases)[:2])
        for area, area_cases in largest_first
    ]
    return _render_table(("area", "cases", "run in the tenant", "passed"), rows)


def _failures_table(cases: Iterable[ComparedCase]) -> str:
    rows = [(_PASSED_BY[case.verdict], case.cause or "", case.name) for case in cases if case.verdict in _PASSED_BY]
    rows.sort(key=lambda row: (list(_PASSED_BY.values()).index(str(row[0])), row[1:]))
    return _render_table(("passed by", "cause", "case"), rows) if rows else ""


def _reruns_text(cases: Iterable[ComparedCase]) -> str:
    """Return how often the tenant's passing cases were run, and which of them also failed."""
    passing = [case for case in cases if case.tenant is not None and case.tenant.state == "passed"]
    often = Counter(min(case.tenant.runs, 3) for case in passing if case.tenant is not None)
    flaked = [f"- {case.name}" for case in passing if case.tenant is not None and case.tenant.is_flaky]
    runs = ", ".join(f"{often[times]} were run {word}" for times, word in _TIMES.items() if often[times])
    line = (
        f"Of the {len(passing)} cases that pass in the tenant, {runs or 'none was run'}; "
        f"{len(flaked)} of them failed in a run that was counted{':' if flaked else '.'}"
    )
    return "\n".join([line, *([""] if flaked else []), *flaked])


def _render_table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
