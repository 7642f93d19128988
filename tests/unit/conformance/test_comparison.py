"""Comparison of a tenant with the compute cluster: verdicts, reasons, pass ratio."""

from __future__ import annotations

from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.comparison import KnownReason, compare_records, load_reasons
from vkgateway_platform.conformance.outcomes import Outcome, Record

PASSED, FAILED, SKIPPED = Outcome(state="passed"), Outcome(state="failed"), Outcome(state="skipped")


def record(**outcomes: Outcome) -> Record:
    return Record(cluster="alpha", kubernetes_version="1.36.3", outcomes=outcomes)


def test_every_pair_of_outcomes_has_its_verdict() -> None:
    cases = [Case(name=name) for name in "abcdef"]
    tenant = record(a=PASSED, b=FAILED, c=PASSED, d=FAILED, e=SKIPPED)
    baseline = record(a=PASSED, b=PASSED, c=FAILED, d=FAILED, e=PASSED, f=PASSED)
    found = compare_records(cases, tenant=tenant, baseline=baseline)
    assert [(case.name, case.verdict) for case in found.cases] == [
        ("a", "both"),
        ("b", "baseline"),
        ("c", "tenant"),
        ("d", "neither"),
        ("e", "baseline"),
        ("f", "open"),
    ]
    assert found.pass_ratio == 1 / 3


def test_all_cases_are_open_without_results_of_the_compute_cluster() -> None:
    found = compare_records([Case(name="a")], tenant=record(a=PASSED), baseline=None)
    assert [case.verdict for case in found.cases] == ["open"]
    assert found.pass_ratio == 1.0


def test_first_matching_reason_of_a_failure_counts() -> None:
    known = [
        KnownReason(cause="design", text="One first.", cases=("sig-node.*first",)),
        KnownReason(cause="machine", text="Then the rest.", cases=("sig-node",)),
    ]
    cases = [Case(name=name) for name in ("[sig-node] first", "[sig-node] second", "other", "[sig-node] passes")]
    tenant = Record(cluster="a", kubernetes_version="1.36.3", outcomes={case.name: FAILED for case in cases[:3]})
    tenant = tenant.with_outcomes({"[sig-node] passes": PASSED})
    baseline = Record(cluster="s", kubernetes_version="1.36.3", outcomes={case.name: PASSED for case in cases})
    found = compare_records(cases, tenant=tenant, baseline=baseline, known=known)
    assert [(case.cause, case.reason) for case in found.cases] == [
        ("design", "One first."),
        ("machine", "Then the rest."),
        ("unknown", ""),
        (None, ""),
    ]


def test_shipped_reasons_are_valid() -> None:
    assert all(reason.text and reason.cases for reason in load_reasons())
