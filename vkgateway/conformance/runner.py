"""A run that can be cut short at any moment: what is left is handed to workers, and each portion's outcome is kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from vkgateway.conformance import outcomes
from vkgateway.conformance.cases import Case, split_batches
from vkgateway.conformance.outcomes import Outcome, Record
from vkgateway.local.lock import work_lock

RerunMode = Literal["none", "failed", "all"]
"""Which cases with an outcome are run once more."""

BATCH_SIZE = 6
"""Cases that one process of the suite runs: it takes seconds to start, and a run cut short loses what it was at."""


class CaseRunner(Protocol):
    """What runs cases: the suite, or a stand-in for it."""

    async def run(self, cases: Sequence[Case], *, kubeconfig: Path, log: Path) -> dict[str, Outcome]:
        """Run some cases and tell what came of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUnderTest:
    """One cluster that is tested, and the folder that keeps what came of it."""

    name: str
    kubeconfig: Path
    kubernetes_version: str
    folder: Path

    @property
    def record_file(self) -> Path:
        """Outcomes, written anew after each portion."""
        return record_file(self.folder)

    def load_record(self) -> Record:
        """What is known; nothing of what another release of the suite found."""
        found = outcomes.load_record(self.record_file)
        if found is None or found.kubernetes_version != self.kubernetes_version:
            return Record(cluster=self.name, kubernetes_version=self.kubernetes_version)
        return found


def record_file(folder: Path) -> Path:
    """Where the record of a side lies."""
    return folder / "outcomes.json"


def remaining_cases(cases: Iterable[Case], record: Record, *, again: RerunMode, often: int = 1) -> tuple[Case, ...]:
    """The cases that are still to be run, so that each that passes was run `often` times; first those run least."""
    kept = {"none": ("passed", "skipped", "failed"), "failed": ("passed", "skipped"), "all": ()}[again]
    known = record.outcomes
    done = {
        name
        for name, outcome in known.items()
        if outcome.state in kept and (outcome.state != "passed" or outcome.runs >= often)
    }
    rest = (case for case in cases if case.name not in done)
    return tuple(sorted(rest, key=lambda case: known[case.name].runs if case.name in known else 0))


def run_lock(side: ClusterUnderTest) -> AbstractContextManager[None]:
    """Held as long as a cluster is tested: another run would take this one's namespaces for left behind, and each would
    write over what the other finds.

    Raises:
        ConflictError: another run of this cluster goes on.
    """
    return work_lock(side.folder / "lock", command="conformance run", what=f"conformance of {side.name}")


async def run_repeatedly(
    cases: Sequence[Case],
    side: ClusterUnderTest,
    *,
    again: RerunMode,
    often: int,
    suite: CaseRunner,
    workers: int,
    report: Callable[[str], None],
) -> Record:
    """Run what is left of cases, and again until each that passes was run `often` times; the record after the last.

    Raises:
        SuiteError: the suite came to no case at all; what was found before that is kept.
    """
    for number in range(often):
        todo = remaining_cases(cases, side.load_record(), again="none" if number else again, often=often)
        report(f"{side.name}: {len(cases)} cases of Kubernetes {side.kubernetes_version}, {len(todo)} to run")
        if not todo:
            break
        await run_cases(todo, side, suite=suite, workers=workers, report=report)
    return side.load_record()


async def run_cases(
    cases: Sequence[Case],
    side: ClusterUnderTest,
    *,
    suite: CaseRunner,
    workers: int,
    report: Callable[[str], None],
    portion: int = BATCH_SIZE,
) -> Record:
    """Run cases: those that bear company by `workers` at once, then the others alone; the record after the last.

    Raises:
        SuiteError: the suite came to no case at all; what was found before that is kept.
    """
    told = _RunProgress(side, len(cases), report)
    together = [case for case in cases if not case.is_serial]
    alone = [case for case in cases if case.is_serial]
    for group, hands in ((together, workers), (alone, 1)):
        waiting = iter(split_batches(group, size=max(1, min(portion, -(-len(group) // hands)))))
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(hands):
                    tasks.create_task(_run_batches(waiting, told, suite=suite), name=f"conformance-{number}")
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
    return told.record


async def _run_batches(waiting: Iterator[tuple[Case, ...]], told: _RunProgress, *, suite: CaseRunner) -> None:
    for some in waiting:
        log = told.side.folder / "logs" / f"{_log_name(some[0])}.log"
        log.unlink(missing_ok=True)
        told.add_outcomes(some, await suite.run(some, kubeconfig=told.side.kubeconfig, log=log))


class _RunProgress:
    """Keeps the record, and tells how far the run is."""

    def __init__(self, side: ClusterUnderTest, total: int, report: Callable[[str], None]) -> None:
        self.side = side
        self.record = side.load_record()
        self._total = total
        self._done = 0
        self._failed = 0
        self._report = report

    def add_outcomes(self, cases: Sequence[Case], found: dict[str, Outcome]) -> None:
        self.record = self.record.with_outcomes(found)
        outcomes.save_record(self.side.record_file, self.record)
        self._done += len(cases)
        for case in cases:
            outcome = found.get(case.name)
            if outcome is None or outcome.state == "failed":
                self._failed += 1
                self._report(f"{self.side.name}: {'failed' if outcome else 'not run'}: {case.name}")
        self._report(f"{self.side.name}: {self._done} of {self._total} cases, {self._failed} failed")


def _log_name(case: Case) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", case.name).strip("-")[:120]
