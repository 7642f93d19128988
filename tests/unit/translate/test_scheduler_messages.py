"""Messages of an external scheduler: no text for a tenant names queues, gangs or pods of others."""

from __future__ import annotations

import json

import pytest

from tests.unit.translate.samples import forward, pod
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.kinds.pods.translation.to_tenant import EVICTED, UNPLACED, mirror_status

EXTERNAL = SchedulerMarks(scheduler_name="s", annotations={"vkgateway.io/scheduling-mode": "external"})
COUNTS = "0/4 nodes are available: 3 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."


def conditions(kind: str, reason: str, message: str, *, marks: SchedulerMarks | None = EXTERNAL) -> dict[str, Object]:
    """Return the tenant's conditions, by type, of a pod whose compute pod has one that is False or a disruption."""
    status = "True" if kind == "DisruptionTarget" else "False"
    entry = {"type": kind, "status": status, "reason": reason, "message": message}
    below = {**forward(pod(), marks=marks), "status": {"phase": "Pending", "conditions": [entry]}}
    patch = mirror_status(below, {"phase": "Pending"}, node_ip="") or {}
    return {one["type"]: one for one in patch.get("conditions", ())}


@pytest.mark.parametrize(
    "message",
    [
        COUNTS,
        f'Gang "victim--default/victim-1" gets rejected due to member Pod "x" is unschedulable with reason "{COUNTS}"',
        f"{COUNTS}\nqueue root.victim is full",
    ],
)
def test_counts_of_nodes_are_shown(message: str) -> None:
    assert conditions("PodScheduled", "Unschedulable", message)["vkgateway.io/PoolScheduled"]["message"] == COUNTS


@pytest.mark.parametrize(
    "message",
    [
        "0/7 nodes are available: gang scheduleCycle not valid, gangName: default/victim-1. preemption: not eligible",
        "queue root.victim is over its quota",
        "PodGroup victim-7 waits for gpu-host-17",
        'job "victim/train" goes first',
    ],
)
def test_other_words_are_replaced(message: str) -> None:
    found = conditions("PodScheduled", "Unschedulable", message)
    assert found["vkgateway.io/PoolScheduled"]["message"] == UNPLACED
    assert "victim" not in json.dumps(found)


def test_preemption_names_no_preemptor() -> None:
    found = conditions("DisruptionTarget", "PreemptionByScheduler", "s: preempting for victim/train on gpu-host-17")
    assert found["DisruptionTarget"]["message"] == EVICTED
    drained = conditions("DisruptionTarget", "EvictionByEvictionAPI", "Eviction API: evicting")
    assert drained["DisruptionTarget"]["message"] == "Eviction API: evicting"


def test_other_modes_keep_the_messages() -> None:
    found = conditions("PodScheduled", "Unschedulable", "no room", marks=None)
    assert found["vkgateway.io/PoolScheduled"]["message"] == "no room"
