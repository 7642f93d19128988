"""Runs: batches for workers, results saved at once, and interrupted runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from vkgateway.api.errors import ConflictError
from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.outcomes import Outcome, Record
from vkgateway_platform.conformance.runner import ClusterUnderTest, remaining_cases, run_cases, run_lock, run_repeatedly
from vkgateway_platform.conformance.suite import SuiteError

CONCURRENT = [Case(name=f"case {number}") for number in range(5)]
SERIAL = [Case(name=f"case {number} [Serial]") for number in range(2)]


class FakeSuite:
    """A suite that passes all cases except `failing` and `cut`; it records which cases run concurrently."""

    def __init__(self, *, failing: Sequence[str] = (), cut: Sequence[str] = (), broken: str = "") -> None:
        self.failing, self.cut, self.broken = failing, cut, broken
        self.ran: list[str] = []
        self.running: set[str] = set()
        self.max_running = 0
        self.overlapped_serial = False

    async def run(self, cases: Sequence[Case], *, kubeconfig: Path, log: Path) -> dict[str, Outcome]:
        names = [case.name for case in cases]
        if self.broken in names:
            raise SuiteError("no report")
        self.running.add(names[0])
        await asyncio.sleep(0)
        self.max_running = max(self.max_running, len(self.running))
        self.overlapped_serial |= any(case.is_serial for case in cases) and len(self.running) > 1
        self.running.remove(names[0])
        self.ran += names
        return {
            name: Outcome(state="failed" if name in self.failing else "passed")
            for name in names
            if name not in self.cut
        }


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterUnderTest:
    return ClusterUnderTest(name="alpha", kubeconfig=tmp_path / "config", kubernetes_version="1.36.3", folder=tmp_path)


async def test_cases_run_concurrently_except_serial_ones(cluster: ClusterUnderTest) -> None:
    suite = FakeSuite()
    record = await run_cases(
        [*SERIAL, *CONCURRENT], cluster, suite=suite, workers=3, report=lambda _: None, batch_size=1
    )
    assert [outcome.state for outcome in record.outcomes.values()] == ["passed"] * 7
    assert suite.max_running == 3
    assert not suite.overlapped_serial
    assert sorted(suite.ran[-2:]) == [case.name for case in SERIAL]


async def test_results_are_kept_when_the_suite_fails(cluster: ClusterUnderTest) -> None:
    suite = FakeSuite(broken="case 3")
    with pytest.raises(SuiteError, match="no report"):
        await run_cases(CONCURRENT, cluster, suite=suite, workers=1, report=lambda _: None, batch_size=1)
    assert cluster.load_record().outcomes.keys() == {"case 0", "case 1", "case 2"}
    rest = remaining_cases(CONCURRENT, cluster.load_record(), again="none")
    assert [case.name for case in rest] == ["case 3", "case 4"]


async def test_progress_reports_failed_and_missing_cases(cluster: ClusterUnderTest) -> None:
    reports: list[str] = []
    suite = FakeSuite(failing=["case 1"], cut=["case 2"])
    await run_cases(CONCURRENT, cluster, suite=suite, workers=1, report=reports.append)
    assert reports == [
        "alpha: failed: case 1",
        "alpha: not run: case 2",
        "alpha: 5 of 5 cases, 2 failed",
    ]


def test_remaining_cases_are_selected() -> None:
    record = Record(
        cluster="alpha",
        kubernetes_version="1.36.3",
        outcomes={
            "case 0": Outcome(state="passed"),
            "case 1": Outcome(state="failed"),
            "case 2": Outcome(state="skipped"),
        },
    )

    def names(again: str) -> list[str]:
        return [case.name for case in remaining_cases(CONCURRENT, record, again=again)]  # type: ignore[arg-type]

    assert names("none") == ["case 3", "case 4"]
    assert names("failed") == ["case 3", "case 4", "case 1"]
    assert names("all") == ["case 3", "case 4", "case 0", "case 1", "case 2"], "fewest runs first"


async def test_passing_cases_are_rerun_fewest_runs_first(cluster: ClusterUnderTest) -> None:
    broken = FakeSuite(broken="case 3")
    with pytest.raises(SuiteError):
        await run_cases(CONCURRENT, cluster, suite=broken, workers=1, report=lambda _: None, batch_size=1)
    reports: list[str] = []
    suite = FakeSuite(failing=["case 4"])
    record = await run_repeatedly(
        CONCURRENT, cluster, again="none", often=2, suite=suite, workers=1, report=reports.append
    )
    assert suite.ran[:2] == ["case 3", "case 4"]
    runs = [record.outcomes[case.name].runs for case in CONCURRENT]
    assert runs == [2, 2, 2, 2, 1]
    assert "alpha: 5 cases of Kubernetes 1.36.3, 1 to run" in reports

    again = FakeSuite()
    await run_repeatedly(CONCURRENT, cluster, again="none", often=2, suite=again, workers=1, report=reports.append)
    assert again.ran == []
    record = await run_repeatedly(
        CONCURRENT, cluster, again="failed", often=2, suite=again, workers=1, report=reports.append
    )
    assert again.ran == ["case 4"], "a failed case is run again on request"
    assert record.outcomes["case 4"].is_flaky


async def test_case_without_an_outcome_is_not_retried_forever(cluster: ClusterUnderTest) -> None:
    suite = FakeSuite(cut=["case 2"])
    await run_repeatedly(CONCURRENT, cluster, again="none", often=3, suite=suite, workers=1, report=lambda _: None)
    assert Counter(suite.ran)["case 2"] == 3


async def test_results_of_another_release_are_ignored(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    await run_cases(CONCURRENT, cluster, suite=FakeSuite(), workers=1, report=lambda _: None)
    newer = ClusterUnderTest(name="alpha", kubeconfig=cluster.kubeconfig, kubernetes_version="1.37.0", folder=tmp_path)
    assert newer.load_record().outcomes == {}


def test_second_run_of_a_cluster_is_refused(cluster: ClusterUnderTest) -> None:
    with run_lock(cluster), pytest.raises(ConflictError) as caught, run_lock(cluster):
        pass
    assert "conformance of alpha is in use by vkgateway conformance run (pid " in str(caught.value)
    with run_lock(cluster):
        pass
