"""Phases of a start in `vkgateway explain`."""

from __future__ import annotations

from typing import Any

from vkgateway.cli.start_times import describe_start

Document = dict[str, Any]


def time(second: int) -> str:
    return f"1970-01-01T00:{second // 60:02}:{second % 60:02}Z"


def pod(
    *, node: str = "a100.local", phase: str = "Pending", container: Document | None = None, **since: int
) -> Document:
    return {
        "metadata": {"name": "web", "creationTimestamp": time(10)},
        "spec": {"nodeName": node},
        "status": {
            "phase": phase,
            "startTime": time(16),
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": time(second)} for kind, second in since.items()
            ],
            "containerStatuses": [container] if container is not None else None,
        },
    }


def event(reason: str, message: str, second: int) -> Document:
    return {"reason": reason, "message": message, "lastTimestamp": time(second)}


PULLING = event("Pulling", 'Pulling image "x"', 18)
PULLED = event("Pulled", 'Successfully pulled image "x" in 20s (25.5s including waiting)', 44)


def test_running_pod_shows_all_phases() -> None:
    running = {"state": {"running": {"startedAt": time(45)}}, "restartCount": 0}
    found = pod(phase="Running", container=running, PodScheduled=15, PodReadyToStartContainers=18, Ready=47)
    assert describe_start(found, [PULLED, PULLING], now=100.0) == (
        "admit 5.0 s, bind 1.0 s, sandbox 2.0 s, pull 25.5 s, start 1.5 s, ready 2.0 s"
    )


def test_starting_pod_shows_its_phase() -> None:
    found = pod(PodScheduled=15, PodReadyToStartContainers=18, container={"state": {"waiting": {}}})
    text = "admit 5.0 s, bind 1.0 s, sandbox 2.0 s"
    assert describe_start(found, [PULLING], now=58.0) == f"{text}; in pull for 40 s"
    assert describe_start(found, [PULLING, PULLED], now=58.0) == f"{text}; in start for 40 s"
    assert describe_start(pod(PodScheduled=15), [], now=20.0) == "admit 5.0 s, bind 1.0 s; in sandbox for 4 s"


def test_ended_pod_is_in_no_phase() -> None:
    ended = {"state": {"terminated": {"startedAt": time(20)}}, "restartCount": 0}
    found = pod(phase="Succeeded", container=ended, PodScheduled=15)
    assert describe_start(found, [], now=99.0) == "admit 5.0 s, bind 1.0 s, sandbox 0.0 s, pull 0.0 s, start 4.0 s"


def test_waiting_and_restarted_pods_show_nothing() -> None:
    assert describe_start(pod(node=""), [], now=99.0) == ""
    restarted = {"state": {"running": {"startedAt": time(90)}}, "restartCount": 1}
    assert describe_start(pod(container=restarted, PodScheduled=15), [], now=99.0) == ""
    assert describe_start({"metadata": {}}, [], now=0.0) == ""
