"""Ratios that are worse than the published ones, and the counts in a server's metrics."""

from __future__ import annotations

import pytest

from bench import check, report
from bench.outcome import Machine, Outcome, Result, Target
from bench.servercounts import parse_counts
from vkgateway.api.errors import InputError

METRICS = """
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 1
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 2
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 9
apiserver_request_total{code="200",resource="pods",subresource="",verb="WATCH"} 5
apiserver_request_body_size_bytes_bucket{resource="pods",verb="create",le="50"} 1
apiserver_request_body_size_bytes_sum{resource="pods",verb="create"} 1.2e+03
apiserver_watch_events_total{resource="pods"} 7
apiserver_admission_step_admission_duration_seconds_sum{operation="CREATE",rejected="false",type="admit"} 0.25
"""


def outcome(share: float, p99: float, seconds: float) -> Outcome:
    targets = [
        Target(what="pods/s", seen=share, limit=0.95, at_least=True),
        Target(what="p99", seen=p99, limit=1.1),
        Target(what="CPU", seen=seconds, limit=1.0, unit="ms"),
    ]
    return Outcome(columns=[], rows=[], targets=targets)


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        (outcome(0.8, 1.5, 9.0), []),
        (outcome(0.9, 1.2, 1.0), []),
        (outcome(0.79, 1.7, 1.0), ["pods/s: 0.79, published 0.88", "p99: 1.7, published 1.5"]),
    ],
    ids=["a tenth, and another machine", "better", "worse"],
)
def test_ratios_worse_by_more_than_a_tenth_are_named(
    now: Outcome, worse: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    published = Result(
        name="burst",
        title="",
        date="",
        machine=Machine(cores=2, memory_gib=24, kernel="", busy=0),
        versions={},
        outcome=outcome(0.88, 1.5, 1.0),
        seconds=1,
    )
    monkeypatch.setattr(report, "load_results", lambda _file: {"burst": published})
    assert check.find_worse({"burst": now, "cost": now}) == worse


def test_nothing_to_compare_with_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "load_results", lambda _file: {})
    with pytest.raises(InputError, match="no ratio of this run is published"):
        check.find_worse({"burst": outcome(0.9, 1.2, 1.0)})


def test_counts_are_sums_over_codes_without_the_platforms_background() -> None:
    counts = parse_counts(METRICS)
    assert counts.writes() == {"PATCH pods/status": 2, "POST pods": 4}
    assert counts.reads() == 5
    assert counts.bytes_in == {"POST pods": 1200}
    assert counts.watch_events == {"pods": 7}
    assert (counts + counts - counts).admission_ms == {"CREATE admit": 250.0}
