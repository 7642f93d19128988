"""Outcomes of cases: parsed from the suite's report, and kept in a file from which an interrupted run continues."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.planes.atomic_files import write_file

State = Literal["passed", "failed", "skipped"]

_FINISHED_STATES = frozenset({"skipped", "failed", "panicked", "timedout"})
MESSAGE_LENGTH = 2000
"""Characters of a failure's message that are kept; the log has all of it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Outcome of one case."""

    state: State
    """Skipped: the suite refused to run the case on this cluster."""
    seconds: float = 0.0
    message: str = ""
    """Why the case failed or was skipped."""
    where: str = ""
    """File and line in the suite's source."""
    log: str = ""
    """File next to the record with the suite's output."""
    runs: int = 1
    """Number of runs, more than one after reruns."""
    failures: int = 0
    """Number of failed runs."""

    @property
    def is_flaky(self) -> bool:
        """Whether the case passed in one run and failed in another."""
        return 0 < self.failures < self.runs


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All outcomes of one cluster."""

    cluster: str
    """The tenant's name, or `straight` for the compute cluster, which is the baseline."""
    kubernetes_version: str
    outcomes: dict[str, Outcome] = {}

    def with_outcomes(self, found: Mapping[str, Outcome]) -> Record:
        """Return the record with more outcomes; a rerun case adds to its runs and failures."""
        merged = dict(self.outcomes)
        for name, outcome in found.items():
            before = merged.get(name)
            runs, failures = (before.runs, before.failures) if before else (0, 0)
            failed = outcome.state == "failed"
            merged[name] = msgspec.structs.replace(outcome, runs=runs + 1, failures=failures + failed)
        return msgspec.structs.replace(self, outcomes=merged)


def load_record(path: Path) -> Record | None:
    """Read a record; None if the file does not exist.

    Raises:
        InputError: the file is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise InputError(f"record {path} is damaged: {error}", hint="Delete it to start over.") from error


def save_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    write_file(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


class _Location(msgspec.Struct, rename="pascal"):
    file_name: str = ""
    line_number: int = 0


class _Failure(msgspec.Struct, rename="pascal"):
    message: str = ""
    location: _Location = msgspec.field(default_factory=_Location)


class _Spec(msgspec.Struct, rename="pascal"):
    state: str
    container_hierarchy_texts: list[str] | None = None
    leaf_node_text: str = ""
    leaf_node_type: str = ""
    run_time: int = 0
    """Nanoseconds."""
    failure: _Failure = msgspec.field(default_factory=_Failure)

    @property
    def full_name(self) -> str:
        return " ".join([*(self.container_hierarchy_texts or ()), self.leaf_node_text])


class _Suite(msgspec.Struct, rename="pascal"):
    spec_reports: list[_Spec] | None = None


def parse_report(report: bytes, *, names: Collection[str], log: str = "") -> dict[str, Outcome]:
    """Return the outcomes of the cases `names` in a JSON report of Ginkgo, without interrupted cases.

    Raises:
        InputError: the text is not such a report.
    """
    try:
        suites = msgspec.json.decode(report, type=list[_Suite])
    except msgspec.DecodeError as error:
        raise InputError(f"the suite's report cannot be read: {error}") from error
    wanted = frozenset(names)
    specs = (spec for suite in suites for spec in suite.spec_reports or ())
    return {
        spec.full_name: outcome
        for spec in specs
        if spec.leaf_node_type == "It"
        and spec.full_name in wanted
        and (outcome := _to_outcome(spec, log=log)) is not None
    }


def _to_outcome(spec: _Spec, *, log: str) -> Outcome | None:
    """Return the outcome; None for a case that did not start or was interrupted."""
    seconds = round(spec.run_time / 1e9, 1)
    if spec.state == "passed":
        return Outcome(state="passed", seconds=seconds, log=log)
    if spec.state not in _FINISHED_STATES or (spec.state == "skipped" and not spec.failure.message):
        return None
    where = spec.failure.location
    return Outcome(
        state="skipped" if spec.state == "skipped" else "failed",
        seconds=seconds,
        message=_truncate_message(spec.failure.message),
        where=f"{_short_path(where.file_name)}:{where.line_number}" if where.file_name else "",
        log=log,
    )


def _truncate_message(message: str) -> str:
    text = message.strip()
    return text if len(text) <= MESSAGE_LENGTH else text[:MESSAGE_LENGTH] + " ..."


def _short_path(path: str) -> str:
    """Return a path without the module's directory: `test/e2e/common/node/pods.go`."""
    return re.sub(r"^.*k8s\.io/kubernetes(?:@[^/]+)?/", "", path)
