"""The real node's setup behind a running platform: what an attempt does, and what `vkgateway status` says about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vkgateway.api.errors import ConflictError, VkgatewayError
from vkgateway.planes.supervisor.spec import ProcessState
from vkgateway_platform.binaries.errors import UnknownVersionError
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded import startup
from vkgateway_platform.embedded.node_setup import __main__ as setup
from vkgateway_platform.embedded.node_setup import process
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.record import PlatformRecord


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the steps of an attempt instead of their work; the priority of the tests stays."""
    done: list[str] = []

    async def fetch(data_dir: Path, **_: Any) -> None:
        done.append("fetch")

    async def add(data_dir: Path, **_: Any) -> None:
        done.append("add")

    monkeypatch.setattr(startup, "fetch_node_programs", fetch)
    monkeypatch.setattr(startup, "add_real_node", add)
    monkeypatch.setattr(setup, "set_niceness", lambda niceness: done.append(f"niceness {niceness}"))
    return done


def fail(monkeypatch: pytest.MonkeyPatch, step: str, error: Exception) -> None:
    async def raising(data_dir: Path, **_: Any) -> None:
        raise error

    monkeypatch.setattr(startup, step, raising)


def test_programs_are_fetched_at_the_lowest_priority_and_the_node_started_at_the_normal_one(
    steps: list[str], tmp_path: Path
) -> None:
    assert setup._attempt(tmp_path) is None
    assert steps == ["niceness 19", "fetch", "niceness 0", "add"]


def test_attempt_is_repeated_soon_while_another_command_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fail(monkeypatch, "add_real_node", ConflictError("in use"))
    assert setup._attempt(tmp_path) == setup.BUSY


def test_failure_is_the_last_line_of_the_log_and_a_problem_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(monkeypatch, "fetch_node_programs", VkgatewayError("no network", hint="Connect it."))
    assert setup._attempt(tmp_path) == setup.AGAIN
    log = tmp_path / "log"
    log.write_text(capsys.readouterr().err)
    state = ProcessState(
        name=process.NAME, state="running", pid=1, restarts=0, since=0.0, reason="", log=str(log), argv=()
    )
    assert process.find_failure([state]) == "no network; the next attempt is in 5 minutes. Connect it."
    log.write_text(log.read_text() + "10:00:00 building the node's programs\n")
    assert process.find_failure([state]) == "", "another attempt has begun"
    assert process.find_failure([]) is None


def test_release_without_a_kubelet_leaves_a_platform_without_real_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = PlatformPaths(tmp_path).record_path
    records.save_record(file, PlatformRecord())
    fail(monkeypatch, "fetch_node_programs", UnknownVersionError("kubelet 1.30.14 cannot be had"))
    assert setup._attempt(tmp_path) is None
    found = records.load_record(file)
    assert found is not None
    assert found.real_node_why_not == "its programs cannot be had: kubelet 1.30.14 cannot be had"


def test_process_has_the_settings_of_downloads_only() -> None:
    given = {"GOPROXY": "a", "https_proxy": "b", "PIP_INDEX_URL": "c", "HOME": "d", "KUBECONFIG": "e"}
    assert process.download_settings(given) == {"GOPROXY": "a", "https_proxy": "b", "PIP_INDEX_URL": "c"}
