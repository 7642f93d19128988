"""How the end-to-end tests wait: what a kubectl that stays has told, with one that does as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.e2e import watching as module
from tests.e2e.cluster import Cluster, Document, eventually
from tests.e2e.watching import watching
from tests.support.machine import patience

CHANGES_FOLLOW = 'round_trippers.go:632] "Response" verb="GET" url="https://x/pods?watch=true" status="200 OK"'
OLDER_WORDS = "round_trippers.go:553] GET https://x/pods?resourceVersion=1&watch=true 200 OK in 0 milliseconds"
STAYS = "exec sleep 60"


def watch_line(change: str, name: str, phase: str = "", namespace: str = "default") -> str:
    document = {"metadata": {"name": name, "namespace": namespace}, "status": {"phase": phase}}
    return json.dumps({"type": change, "object": document})


class Kubectl:
    """A program that writes down how it was called, and then does what was planned for this call."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kubectl"
        self.path.write_text(f'#!/bin/sh\necho "$$ $*" >> {folder}/calls\n. {folder}/$(wc -l < {folder}/calls)\n')
        self.path.chmod(0o755)
        self.cluster = Cluster(str(self.path), folder / "kubeconfig")
        self._planned = 0

    def will(self, *steps: str) -> None:
        """What the next call does that has no plan yet: events to tell, or commands of a shell."""
        self._planned += 1
        lines = (f"echo '{step}'" if step.startswith("{") else step for step in steps)
        (self.path.parent / str(self._planned)).write_text("\n".join(lines) + "\n")

    def will_tell(self, *events: str, mark: str = CHANGES_FOLLOW, then: str = STAYS) -> None:
        self.will(*events, f"echo '{mark}' >&2", then)

    @property
    def calls(self) -> list[str]:
        return [line.partition(" ")[2] for line in (self.path.parent / "calls").read_text().splitlines()]

    @property
    def running(self) -> list[int]:
        """Those calls that have not ended."""
        called = (self.path.parent / "calls").read_text().splitlines()
        return [pid for pid in (int(line.split()[0]) for line in called) if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    made = Kubectl(tmp_path)
    yield made
    assert made.running == []


@pytest.fixture
def later(tmp_path: Path) -> Iterator[IO[str]]:
    """What is written here is told by a kubectl whose last step is `tell_later`."""
    os.mkfifo(tmp_path / "later")
    with open(os.open(tmp_path / "later", os.O_RDWR), "w", buffering=1) as pipe:
        yield pipe


def tell_later(kubectl: Kubectl) -> str:
    return f"exec cat {kubectl.path.parent}/later"


def names(found: Document) -> list[str]:
    return [each["metadata"]["name"] for each in found["items"]]


def phases(cluster: Cluster) -> dict[str, str]:
    return {each["metadata"]["name"]: each["status"]["phase"] for each in cluster.get("pods")["items"]}


def test_changes_come_from_the_one_kubectl_that_told_what_there_was(kubectl: Kubectl, later: IO[str]) -> None:
    kubectl.will_tell(
        watch_line("ADDED", "b", "Pending"), watch_line("ADDED", "a", "Pending"), then=tell_later(kubectl)
    )
    seen: list[dict[str, str]] = []

    def look() -> bool:
        found = phases(kubectl.cluster)
        if found in seen:
            return False
        seen.append(found)
        if len(seen) == 1:
            later.write(watch_line("MODIFIED", "a", "Running") + "\n")
        elif len(seen) == 2:
            later.write(watch_line("DELETED", "b") + "\n" + watch_line("ADDED", "c", "Pending") + "\n")
        return "b" not in found

    eventually(look, seconds=20)

    assert seen[0] == {"a": "Pending", "b": "Pending"}
    assert list(seen[0]) == ["a", "b"]
    assert seen[1] == {"a": "Running", "b": "Pending"}
    assert seen[-1] == {"a": "Running", "c": "Pending"}
    [call] = kubectl.calls
    assert call.endswith("kubeconfig get pods -o json --watch --output-watch-events -v=6")


def test_a_change_ends_the_pause(kubectl: Kubectl, later: IO[str]) -> None:
    kubectl.will_tell(then=tell_later(kubectl))
    with watching() as seen:
        assert names(kubectl.cluster.get("pods")) == []
        later.write(watch_line("ADDED", "a") + "\n")
        began = time.monotonic()
        seen.pause(patience(20))
        assert time.monotonic() - began < patience(10)
        assert names(kubectl.cluster.get("pods")) == ["a"]


@pytest.mark.parametrize("mark", [CHANGES_FOLLOW, OLDER_WORDS])
def test_nothing_is_looked_at_before_all_that_there_is_was_told(kubectl: Kubectl, mark: str) -> None:
    kubectl.will_tell(watch_line("ADDED", "a"), "sleep 0.3", watch_line("ADDED", "b"), mark=mark)
    with watching():
        assert names(kubectl.cluster.get("pods")) == ["a", "b"]


def test_a_line_that_is_told_in_two_parts_is_one(kubectl: Kubectl) -> None:
    event = watch_line("ADDED", "a")
    kubectl.will_tell(f"printf %s '{event[:20]}'", "sleep 0.2", f"echo '{event[20:]}'")
    with watching():
        assert names(kubectl.cluster.get("pods")) == ["a"]


def test_more_than_a_pipe_holds_is_taken_in(kubectl: Kubectl) -> None:
    kubectl.will_tell(*(watch_line("ADDED", f"{number:04}", "x" * 1000) for number in range(200)))
    with watching():
        assert len(kubectl.cluster.get("pods")["items"]) == 200


def test_who_is_asked_for_by_name_is_selected(kubectl: Kubectl, later: IO[str]) -> None:
    kubectl.will_tell(then=tell_later(kubectl))
    with watching() as seen:
        assert kubectl.cluster.pod_phase("a") == ""
        with pytest.raises(AssertionError, match="get pod a: not found"):
            kubectl.cluster.get("pod", "a")
        later.write(watch_line("ADDED", "a", "Pending") + "\n")
        seen.pause(patience(20))
        assert kubectl.cluster.pod_phase("a") == "Pending"
        assert kubectl.cluster.get("pod", "a")["metadata"]["name"] == "a"
    assert [call.partition(" get ")[2].partition(" -o")[0] for call in kubectl.calls] == [
        "pod --field-selector metadata.name=a"
    ]


def test_a_wait_goes_on_while_what_is_read_does_not_exist(kubectl: Kubectl, later: IO[str]) -> None:
    kubectl.will_tell(then=tell_later(kubectl))
    seen: list[int] = []

    def look() -> bool:
        seen.append(len(seen))
        if len(seen) == 2:
            later.write(watch_line("ADDED", "a", "Running") + "\n")
        return bool(kubectl.cluster.get("pod", "a")["status"]["phase"] == "Running")

    assert eventually(look, seconds=20)
    assert len(seen) > 1


def test_what_never_exists_is_named(kubectl: Kubectl) -> None:
    kubectl.will_tell()
    with pytest.raises(AssertionError, match=r"not seen within .* \(kubectl get pod a: not found\)"):
        eventually(lambda: kubectl.cluster.get("pod", "a"), seconds=0.3)


def test_each_thing_that_is_asked_for_has_a_watch(kubectl: Kubectl) -> None:
    kubectl.will_tell(watch_line("ADDED", "a"))
    kubectl.will_tell(watch_line("ADDED", "b"))
    with watching():
        for _ in range(2):
            assert names(kubectl.cluster.get("pods", "-n", "one")) == ["a"]
            assert names(kubectl.cluster.get("pods", "-n", "two")) == ["b"]
    assert len(kubectl.calls) == 2


def test_a_watch_that_ends_is_begun_again_and_knows_nothing_of_before(kubectl: Kubectl) -> None:
    kubectl.will_tell(watch_line("ADDED", "gone"), watch_line("ADDED", "stays"), then="exit 0")
    kubectl.will_tell(watch_line("ADDED", "stays"), watch_line("ADDED", "new"))
    assert eventually(lambda: (found := names(kubectl.cluster.get("pods"))) == ["new", "stays"] and found, seconds=20)
    assert len(kubectl.calls) == 2


def test_a_watch_that_tells_of_an_error_is_begun_again(kubectl: Kubectl) -> None:
    expired = json.dumps({"type": "ERROR", "object": {"kind": "Status", "metadata": {}, "code": 410}})
    kubectl.will_tell(watch_line("ADDED", "a"), then=f"echo '{expired}'; {STAYS}")
    kubectl.will_tell(watch_line("ADDED", "b"))
    assert eventually(lambda: names(kubectl.cluster.get("pods")) == ["b"], seconds=20)


def test_a_refusal_is_told_as_by_any_kubectl(kubectl: Kubectl) -> None:
    kubectl.will("echo 'error: the server does not have a resource type' >&2", "exit 1")
    with pytest.raises(AssertionError, match="does not have a resource type"):
        eventually(lambda: kubectl.cluster.find("pod", "a"), seconds=20)


def test_who_tells_nothing_is_given_up(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    kubectl.will(watch_line("ADDED", "a"), STAYS)
    with pytest.raises(AssertionError, match="get pods"):
        eventually(lambda: kubectl.cluster.get("pods"), seconds=20)


def test_what_never_comes_is_told(kubectl: Kubectl) -> None:
    kubectl.will_tell(watch_line("ADDED", "a", "Pending"))
    with pytest.raises(AssertionError, match=f"not seen within {patience(0.3):.0f} s: a running pod"):
        eventually(lambda: kubectl.cluster.pod_phase("a") == "Running", seconds=0.3, what="a running pod")


def test_outside_of_a_wait_each_question_is_asked(kubectl: Kubectl) -> None:
    kubectl.will_tell(watch_line("ADDED", "a"))
    one = {"metadata": {"name": "a"}}
    kubectl.will(json.dumps({"items": [one]}))
    kubectl.will("true")
    assert eventually(lambda: kubectl.cluster.get("pods"))
    assert kubectl.cluster.get("pods") == {"items": [one]}
    assert kubectl.cluster.find("pod", "b") is None
    assert [call.partition(" get ")[2] for call in kubectl.calls[1:]] == [
        "pods -o json",
        "pod b -o json --ignore-not-found",
    ]


@pytest.mark.parametrize("args", [("pods,services",), ("pods", "a", "b"), ("pod/a",)])
def test_several_kinds_or_names_are_asked_for_each_time(kubectl: Kubectl, args: tuple[str, ...]) -> None:
    for _ in range(2):
        kubectl.will(json.dumps({"items": []}))
    with watching():
        assert kubectl.cluster.get(*args) == {"items": []}
        assert kubectl.cluster.get(*args) == {"items": []}
    assert len(kubectl.calls) == 2


def test_a_wait_within_a_wait_has_its_own_watches(kubectl: Kubectl) -> None:
    kubectl.will_tell(watch_line("ADDED", "before"))
    kubectl.will_tell(watch_line("ADDED", "after"))
    with watching():
        assert names(kubectl.cluster.get("pods")) == ["before"]
        assert eventually(lambda: names(kubectl.cluster.get("pods")) == ["after"])
        assert names(kubectl.cluster.get("pods")) == ["before"]


def test_a_wait_that_fails_leaves_nothing_running(kubectl: Kubectl) -> None:
    kubectl.will_tell(watch_line("ADDED", "a"))

    def look() -> bool:
        assert kubectl.cluster.get("pods")
        assert len(kubectl.running) == 1
        raise subprocess.TimeoutExpired("other program", 1)

    with pytest.raises(subprocess.TimeoutExpired):
        eventually(look)
    assert kubectl.running == []
