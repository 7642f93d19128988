"""The page of conformance results: Markdown tables, and a file with the results of all cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.planes.atomic_files import write_file
from vkgateway_platform.conformance import outcomes
from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.comparison import ComparedCase, Comparison
from vkgateway_platform.conformance.outcomes import Outcome, Record

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


def _count_outcomes(found: Iterable[Outcome | None]) -> tuple[int, int, int]:
    """Return how many cases were run, passed, and failed."""
    states = Counter(outcome.state for outcome in found if outcome is not None)
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


def write_results(path: Path, found: Comparison, *, baseline: str) -> None:
    """Write the results of both clusters; `baseline` is the name of the compute cluster's record."""
    clusters = {
        baseline: {case.name: case.baseline for case in found.cases if case.baseline},
        found.tenant: {case.name: case.tenant for case in found.cases if case.tenant},
    }
    records = [_to_record(name, cases, found.kubernetes_version) for name, cases in clusters.items()]
    write_file(path, msgspec.json.format(msgspec.json.encode(records), indent=1) + b"\n")


def _to_record(name: str, cases: Mapping[str, Outcome], version: str) -> Record:
    """Return the record without logs, which exist on this machine only."""
    sorted_cases = {case: msgspec.structs.replace(outcome, log="") for case, outcome in sorted(cases.items())}
    return Record(cluster=name, kubernetes_version=version, outcomes=sorted_cases)


def import_results(path: Path, files: Mapping[str, Path]) -> None:
    """Import results: write the record of each cluster into its file.

    Raises:
        InputError: there are local results already, or the file is missing, damaged or of other clusters.
    """
    if existing := [str(file) for file in files.values() if file.exists()]:
        raise InputError(
            "there are results of an earlier run", hint=f"To start from {path}, delete {' and '.join(existing)}."
        )
    try:
        records = {record.cluster: record for record in msgspec.json.decode(path.read_bytes(), type=list[Record])}
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if lacking := files.keys() - records.keys():
        raise InputError(f"{path} has no results for {' and '.join(sorted(lacking))}")
    for name, file in files.items():
        outcomes.save_record(file, records[name])
