"""Explanations for tenant pods without a compute pod."""

from __future__ import annotations

from typing import Any

import pytest

from vkgateway.nodes.absentpod import AbsentPod

END = "2026-01-02T03:04:05Z"
PREEMPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByVkgateway",
    "message": "makes room for default/urgent",
}


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": state, **more}


def ended(message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": 143, "finishedAt": END, "message": message}}


def waits(kind: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": f"vkgateway.io/{kind}", "status": "False", "reason": reason, "message": message}]}


def absent(**status: Any) -> AbsentPod:
    return AbsentPod("default/web", status)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ({}, "pod default/web has not been started yet"),
        (
            waits("Admitted", "NoRoom", "2 gangs are before it"),
            "pod default/web has not been started yet: it waits for admission: NoRoom: 2 gangs are before it",
        ),
        (
            waits("Forwarded", "MandatorySecretNotFound", 'secret "key" not found'),
            "pod default/web has not been started yet: it waits to be forwarded: "
            'MandatorySecretNotFound: secret "key" not found',
        ),
        (
            waits("PoolScheduled", "Unschedulable", "0/3 nodes are available"),
            "pod default/web has not been started yet: it waits for a compute node: "
            "Unschedulable: 0/3 nodes are available",
        ),
        (
            {"phase": "Failed", "reason": "PolicyRefused", "message": "hostNetwork is forbidden"},
            "pod default/web was never started: PolicyRefused: hostNetwork is forbidden",
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(ended())], "conditions": [PREEMPTED]},
            f"pod default/web ran and was evicted at {END} (PreemptionByVkgateway: makes room for default/urgent)",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [container(ended())],
                "conditions": [PREEMPTED | {"reason": "DeletionByComputeCluster", "message": "drained"}],
            },
            f"pod default/web ran and was deleted in the compute cluster at {END} (DeletionByComputeCluster: drained)",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [container({"running": {}})],
                "conditions": [PREEMPTED | {"reason": "Lost", "message": "nothing of it is left"}],
            },
            "pod default/web ran and was lost (Lost: nothing of it is left)",
        ),
        (
            {"phase": "Succeeded", "containerStatuses": [container(ended())]},
            f"pod default/web ran and ended at {END} (Succeeded)",
        ),
        (
            {"phase": "Running", "containerStatuses": [container({"running": {}})]},
            "pod default/web ran, but does not exist in the compute cluster now",
        ),
    ],
)
def test_sentence_describes_pod_state(status: dict[str, Any], sentence: str) -> None:
    assert absent(**status).describe_state() == sentence


def test_log_of_evicted_pod_contains_termination_message() -> None:
    pod = absent(phase="Failed", containerStatuses=[container(ended("step 41\nstep 42\n"))], conditions=[PREEMPTED])
    has_run, text = pod.log_replacement("main", previous=False)
    assert has_run
    first, *kept = text.splitlines()
    assert f"was evicted at {END}" in first
    assert "not been started" not in text
    assert kept == ["[vkgateway] Its termination message is:", "step 41", "step 42"]


def test_log_without_termination_message() -> None:
    pod = absent(phase="Failed", containerStatuses=[container(ended())], conditions=[PREEMPTED])
    has_run, text = pod.log_replacement("main", previous=False)
    assert (has_run, len(text.splitlines())) == (True, 1)


def test_container_that_never_started_has_no_log() -> None:
    waiting = {"name": "later", "state": {"waiting": {"reason": "PodInitializing"}}}
    pod = absent(phase="Failed", containerStatuses=[container(ended()), waiting], conditions=[PREEMPTED])
    assert pod.log_replacement("later", previous=False)[0] is False
    assert absent(**waits("Admitted", "NoRoom", "x")).log_replacement("main", previous=False) == (
        False,
        "container main of pod default/web has not been started yet: it waits for admission: NoRoom: x",
    )


def test_previous_log_exists_only_after_restart() -> None:
    once = absent(phase="Failed", containerStatuses=[container(ended("now"))], conditions=[PREEMPTED])
    message = 'previous terminated container "main" in pod "default/web" not found'
    assert once.log_replacement("main", previous=True) == (False, message)
    twice = absent(phase="Failed", containerStatuses=[container(ended("now"), lastState=ended("before"))])
    has_run, text = twice.log_replacement("main", previous=True)
    assert has_run
    assert text.splitlines()[-1] == "before"
