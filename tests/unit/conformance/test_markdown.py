"""Tables for the documentation."""

from __future__ import annotations

import runpy
from pathlib import Path

from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.comparison import KnownReason, compare_records
from vkgateway_platform.conformance.outcomes import Outcome, Record

render_tables = runpy.run_path(str(Path(__file__).parents[3] / "scripts/conformance_page.py"))["render_tables"]
PASSED, FAILED = Outcome(state="passed"), Outcome(state="failed", failures=1)
KNOWN = (KnownReason(cause="design", text="So wanted.", cases=("node port",)),)


def render_records(tenant: dict[str, Outcome], baseline: dict[str, Outcome], *, more: tuple[str, ...] = ()) -> str:
    names = sorted({*tenant, *baseline, *more})
    found = compare_records(
        [Case(name=name) for name in names],
        tenant=Record(cluster="alpha", kubernetes_version="1.36.3", outcomes=tenant),
        baseline=Record(cluster="straight", kubernetes_version="1.36.3", outcomes=baseline),
        known=KNOWN,
    )
    tables = render_tables(found)
    assert isinstance(tables, str)
    return tables


def test_tables_show_totals_areas_and_failures() -> None:
    tenant = {"[sig-node] a": PASSED, "[sig-network] node port": FAILED, "[sig-node] c": FAILED, "[sig-node] d": PASSED}
    baseline = {"[sig-node] a": PASSED, "[sig-network] node port": PASSED, "[sig-node] c": FAILED}
    assert render_records(tenant, baseline, more=("[sig-node] e",)).splitlines() == [
        "|  | run | passed | failed |",
        "| --- | --- | --- | --- |",
        "| in the tenant | 4 | 2 | 2 |",
        "| in the compute cluster | 3 | 2 | 1 |",
        "| on both | 3 | 1 by both | 1 by both, 1 in the tenant only, 0 in the compute cluster only |",
        "",
        "The tenant passes 1 of the 2 cases that pass in the compute cluster (50.0 %); "
        "2 of the suite's 5 cases were not run in both clusters.",
        "",
        "| area | cases | run in the tenant | passed |",
        "| --- | --- | --- | --- |",
        "| `sig-node` | 4 | 3 | 2 |",
        "| `sig-network` | 1 | 1 | 0 |",
        "",
        "| passed by | cause | case |",
        "| --- | --- | --- |",
        "| the compute cluster only | design | [sig-network] node port |",
        "| neither | unknown | [sig-node] c |",
        "",
        "Of the 2 cases that pass in the tenant, 2 were run once; 0 of them failed in a run that was counted.",
    ]


def test_flaky_cases_are_named() -> None:
    tenant = {"a": Outcome(state="passed", runs=3, failures=1), "b": Outcome(state="passed", runs=2)}
    assert render_records(tenant, {"a": PASSED, "b": PASSED}).splitlines()[-3:] == [
        "Of the 2 cases that pass in the tenant, 1 were run three times or more, 1 were run twice; "
        "1 of them failed in a run that was counted:",
        "",
        "- a",
    ]
