"""Outcomes: parsed from a report of Ginkgo, kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from vkgateway.api.errors import InputError
from vkgateway_platform.conformance.outcomes import (
    MESSAGE_LENGTH,
    Outcome,
    Record,
    load_record,
    parse_report,
    save_record,
)


def spec(name: str, state: str, *, seconds: float = 0, kind: str = "It", **failure: Any) -> dict[str, Any]:
    """Return one case of a report, as Ginkgo writes it."""
    container, _, leaf = name.partition(" ")
    found: dict[str, Any] = {
        "ContainerHierarchyTexts": [container],
        "LeafNodeText": leaf,
        "LeafNodeType": kind,
        "State": state,
        "RunTime": int(seconds * 1e9),
    }
    return {**found, "Failure": failure} if failure else found


def report(*specs: dict[str, Any]) -> bytes:
    return msgspec.json.encode([{"SuiteDescription": "Kubernetes e2e suite", "SpecReports": list(specs)}])


def test_outcomes_are_those_of_the_requested_cases() -> None:
    place = {"FileName": "/go/pkg/mod/k8s.io/kubernetes@v1.36.3/test/e2e/node/pods.go", "LineNumber": 12}
    text = report(
        spec("a passes", "passed", seconds=1.25),
        spec("b fails", "failed", seconds=3, Message=" no pod \n", Location=place),
        spec("c panics", "panicked", seconds=1, Message="oh"),
        spec("d is refused", "skipped", Message="needs two nodes"),
        spec("e of others", "passed", seconds=1),
        {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed", "ContainerHierarchyTexts": None},
    )
    names = {"a passes", "b fails", "c panics", "d is refused"}
    assert parse_report(text, names=names, log="x.log") == {
        "a passes": Outcome(state="passed", seconds=1.2, log="x.log"),
        "b fails": Outcome(
            state="failed", seconds=3.0, message="no pod", where="test/e2e/node/pods.go:12", log="x.log"
        ),
        "c panics": Outcome(state="failed", seconds=1.0, message="oh", log="x.log"),
        "d is refused": Outcome(state="skipped", message="needs two nodes", log="x.log"),
    }


@pytest.mark.parametrize("state", ["interrupted", "aborted", "skipped", "pending"])
def test_interrupted_case_has_no_outcome(state: str) -> None:
    assert parse_report(report(spec("a case", state)), names={"a case"}) == {}


def test_long_messages_are_cut() -> None:
    found = parse_report(report(spec("a case", "failed", Message="x" * 5000)), names={"a case"})
    assert len(found["a case"].message) == MESSAGE_LENGTH + len(" ...")


def test_text_that_is_not_a_report_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        parse_report(b"{", names=())


def test_saved_outcomes_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.json"
    assert load_record(file) is None
    record = Record(cluster="alpha", kubernetes_version="1.36.3").with_outcomes(
        {"a": Outcome(state="passed", seconds=1.5)}
    )
    save_record(file, record)
    assert load_record(file) == record
    file.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        load_record(file)


def test_rerun_adds_to_runs_and_failures() -> None:
    record = Record(cluster="alpha", kubernetes_version="1.36.3")
    record = record.with_outcomes(
        {"a": Outcome(state="failed"), "b": Outcome(state="failed"), "c": Outcome(state="passed")}
    )
    record = record.with_outcomes({"a": Outcome(state="passed"), "c": Outcome(state="passed")})
    assert record.outcomes == {
        "a": Outcome(state="passed", runs=2, failures=1),
        "b": Outcome(state="failed", failures=1),
        "c": Outcome(state="passed", runs=2),
    }
    assert [name for name, outcome in record.outcomes.items() if outcome.is_flaky] == ["a"]
