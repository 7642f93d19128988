"""Record of a run: every phase of a test and every set-up of a fixture, one JSON line each, in the folder of a lane.

`tests/lanes` names the folder, and reads the records of all worker processes from it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER_VARIABLE = "VKGATEWAY_TEST_RECORD"
_SHORTEST_SETUP = 0.05
"""Seconds. Shorter set-ups of fixtures are not recorded: there are tens of thousands."""


def _write(**entry: Any) -> None:
    if folder := os.environ.get(FOLDER_VARIABLE):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with Path(folder, f"{worker}.jsonl").open("a") as file:
            file.write(json.dumps({"worker": worker, **entry}) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Record how long a fixture takes to set up, without the fixtures that its signature names."""
    began = time.time()
    try:
        return (yield)
    finally:
        seconds = time.time() - began
        if seconds >= _SHORTEST_SETUP:
            test = request.node.nodeid
            _write(kind="fixture", name=fixturedef.argname, test=test, began=began, seconds=seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record outcome and duration of a test's set-up, call and teardown."""
    report = yield
    _write(
        kind=call.when,
        name=item.nodeid,
        began=call.start,
        seconds=call.duration,
        outcome=report.outcome,
        reason=_skip_reason(report),
    )
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record modules that are skipped or fail as a whole."""
    if report.outcome != "passed" and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        _write(
            kind="collect",
            name=report.nodeid,
            began=time.time(),
            seconds=0.0,
            outcome=report.outcome,
            reason=_skip_reason(report),
        )


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test or module was skipped; empty if it was not."""
    if not report.skipped:
        return ""
    if hasattr(report, "wasxfail"):
        return f"expected failure: {report.wasxfail}"
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
