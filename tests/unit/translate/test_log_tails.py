"""Log tails as termination messages: bounded, and never in place of another message."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vkgateway.kinds.pods.translation.log_tails import (
    MAX_BYTES,
    MAX_LINES,
    MAX_POD_BYTES,
    cut_log,
    readable_containers,
    with_tails,
)


def status(**states: dict[str, Any]) -> dict[str, Any]:
    return {"containerStatuses": [{"name": name, "state": state} for name, state in states.items()]}


def test_containers_with_a_log_and_no_message_are_readable() -> None:
    found = status(
        runs={"running": {}}, ended={"terminated": {}}, told={"terminated": {"message": "x"}}, waits={"waiting": {}}
    )
    found["initContainerStatuses"] = [{"name": "sidecar", "state": {"running": {}}}]
    assert readable_containers(found) == ["sidecar", "runs", "ended"]


@given(st.binary(max_size=8192), st.integers(1, 40))
def test_tail_is_the_end_of_the_log_within_bounds(log: bytes, containers: int) -> None:
    tail = cut_log(log, containers=containers)
    text = log.decode("utf-8", "replace")
    assert text.endswith(tail)
    assert len(tail.encode()) <= min(MAX_BYTES, MAX_POD_BYTES // containers)
    assert len(tail.splitlines()) <= MAX_LINES
    assert bool(tail) == bool(text)


def test_tail_has_whole_lines_if_one_fits() -> None:
    lines = "".join(f"line {number}\n" for number in range(1000))
    tail = cut_log(lines.encode(), containers=1)
    assert tail.startswith("line 920\n")
    assert tail.endswith("line 999\n")


def test_tail_becomes_the_missing_termination_message() -> None:
    before = status(a={"terminated": {"exitCode": 143}}, b={"terminated": {"message": "own"}}, c={"running": {}})
    after = with_tails(before, {"a": "tail", "b": "tail", "c": "tail", "gone": "tail"})
    states = {one["name"]: one["state"] for one in after["containerStatuses"]}
    assert states == {
        "a": {"terminated": {"exitCode": 143, "message": "tail"}},
        "b": {"terminated": {"message": "own"}},
        "c": {"running": {}},
    }
    assert with_tails(before, {}) is before
