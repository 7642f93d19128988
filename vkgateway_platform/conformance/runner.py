"""A run that may be interrupted: workers run batches of the remaining cases, and each batch's outcome is saved."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from vkgateway_platform.conformance import outcomes
from vkgateway_platform.conformance.cases import Case, split_batches
from vkgateway_platform.conformance.outcomes import Outcome, Record
from vkgateway_platform.embedded.lock import work_lock

RerunMode = Literal["none", "failed", "all"]
"""Which cases with an outcome are run again."""

BATCH_SIZE = 6
"""Cases per process of the suite. A process takes seconds to start, and an interruption loses its batch."""


class CaseRunner(Protocol):
    """Runs cases: the suite, or a fake in tests."""

    async def run(self, cases: Sequence[Case], *, kubeconfig: Path, log: Path) -> dict[str, Outcome]:
        """Run cases and return the outcome of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUnderTest:
    """A cluster under test, and the directory of its results."""

    name: str
    kubeconfig: Path
    kubernetes_version: str
    folder: Path

    @property
    def record_file(self) -> Path:
        """File of the record, rewritten after each batch."""
        return record_file(self.folder)

    def load_record(self) -> Record:
        """Return the record, without the results of another release of the suite."""
        found = outcomes.load_record(self.record_file)
        if found is None or found.kubernetes_version != self.kubernetes_version:
            return Record(cluster=self.name, kubernetes_version=self.kubernetes_version)
        return found


def record_file(folder: Path) -> Path:
    """Return the file of a cluster's record."""
    return folder / "outcomes.json"


def remaining_cases(cases: Iterable[Case], record: Record, *, again: RerunMode, often: int = 1) -> tuple[Case, ...]:
    """Return the cases to run until each passing one has `often` runs, those with the fewest runs first."""
    skipped_states = {"none": ("passed", "skipped", "failed"), "failed": ("passed", "skipped"), "all": ()}[again]
    known = record.outcomes
    done = {
        name
        for name, outcome in known.items()
        if outcome.state in skipped_states and (outcome.state != "passed" or outcome.runs >= often)
    }
    remaining = (case for case in cases if case.name not in done)
    return tuple(sorted(remaining, key=lambda case: known[case.name].runs if case.name in known else 0))


def run_lock(cluster: ClusterUnderTest) -> AbstractContextManager[None]:
    """Hold the lock of a cluster under test. A second run would delete this one's namespaces as leftovers, and both
    would overwrite each other's results.

    Raises:
        ConflictError: another run of this cluster is in progress.
    """
    return work_lock(cluster.folder / "lock", command="conformance run", what=f"conformance of {cluster.name}")


async def run_repeatedly(
    cases: Sequence[Case],
    cluster: ClusterUnderTest,
    *,
    again: RerunMode,
    often: int,
    suite: CaseRunner,
    workers: int,
    report: Callable[[str], None],
) -> Record:
    """Run the remaining cases, repeatedly until each passing one has `often` runs; return the last record.

    Raises:
        SuiteError: the suite ran no case at all; earlier results are kept.
    """
    for number in range(often):
        remaining = remaining_cases(cases, cluster.load_record(), again="none" if number else again, often=often)
        report(
            f"{cluster.name}: {len(cases)} cases of Kubernetes {cluster.kubernetes_version}, {len(remaining)} to run"
        )
        if not remaining:
            break
        await run_cases(remaining, cluster, suite=suite, workers=workers, report=report)
    return cluster.load_record()


async def run_cases(
    cases: Sequence[Case],
    cluster: ClusterUnderTest,
    *,
    suite: CaseRunner,
    workers: int,
    report: Callable[[str], None],
    batch_size: int = BATCH_SIZE,
) -> Record:
    """Run cases, concurrent ones on `workers` processes, then the serial ones; return the last record.

    Raises:
        SuiteError: the suite ran no case at all; earlier results are kept.
    """
    progress = _RunProgress(cluster, len(cases), report)
    concurrent = [case for case in cases if not case.is_serial]
    serial = [case for case in cases if case.is_serial]
    for group, count in ((concurrent, workers), (serial, 1)):
        waiting = iter(split_batches(group, size=max(1, min(batch_size, -(-len(group) // count)))))
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(count):
                    tasks.create_task(_run_batches(waiting, progress, suite=suite), name=f"conformance-{number}")
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
    return progress.record


async def _run_batches(waiting: Iterator[tuple[Case, ...]], progress: _RunProgress, *, suite: CaseRunner) -> None:
    for batch in waiting:
        log = progress.cluster.folder / "logs" / f"{_log_name(batch[0])}.log"
        log.unlink(missing_ok=True)
        progress.add_outcomes(batch, await suite.run(batch, kubeconfig=progress.cluster.kubeconfig, log=log))


class _RunProgress:
    """Saves the record and reports progress."""

    def __init__(self, cluster: ClusterUnderTest, total: int, report: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.record = cluster.load_record()
        self._total = total
        self._done = 0
        self._failed = 0
        self._report = report

    def add_outcomes(self, cases: Sequence[Case], found: dict[str, Outcome]) -> None:
        self.record = self.record.with_outcomes(found)
        outcomes.save_record(self.cluster.record_file, self.record)
        self._done += len(cases)
        for case in cases:
            outcome = found.get(case.name)
            if outcome is None or outcome.state == "failed":
                self._failed += 1
                self._report(f"{self.cluster.name}: {'failed' if outcome else 'not run'}: {case.name}")
        self._report(f"{self.cluster.name}: {self._done} of {self._total} cases, {self._failed} failed")


def _log_name(case: Case) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", case.name).strip("-")[:120]
